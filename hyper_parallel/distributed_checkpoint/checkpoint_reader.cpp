// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/checkpoint_reader.h"

#include <ATen/ops/empty.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/checksum.h"
#include "hyper_parallel/distributed_checkpoint/detail/coverage.h"

namespace hyper_parallel {
namespace {

std::vector<int64_t> difference(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> result(a.size());
  for (size_t dim = 0; dim < a.size(); ++dim) result[dim] = a[dim] - b[dim];
  return result;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& folder, bool verify_checksums)
    : folder_(checkpoint_location(folder)),
      verify_checksums_(verify_checksums),
      metadata_(inspect_checkpoint(folder_)),
      files_(metadata_.files.size()) {
  for (const CheckpointTensor& tensor : metadata_.tensors) verified_.emplace_back(tensor.pieces.size(), false);
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> result;
  for (const CheckpointTensor& tensor : metadata_.tensors) result.push_back(tensor.name);
  return result;
}

const CheckpointTensor& CheckpointReader::info(const std::string& name) const {
  if (const CheckpointTensor* found = metadata_.find(name)) return *found;
  const std::string near = nearest_name(name, names());
  throw CheckpointError(str(folder_.string(), ": no tensor \"", name, "\"", near.empty() ? "" : str(" (did you mean \"", near, "\"?)")));
}

const SafetensorsFile& CheckpointReader::file(size_t index) {
  if (files_[index]) return *files_[index];
  const CheckpointFile& expected = metadata_.files[index];
  const std::filesystem::path path = folder_ / expected.name;
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (error) throw CheckpointError(str(path.string(), ": ", error.message()));
  if (num_bytes != static_cast<uint64_t>(expected.num_bytes)) {
    throw CheckpointError(str(path.string(), ": ", num_bytes, " bytes, expected ", expected.num_bytes));
  }
  files_[index].emplace(path);
  if (detail::checksum(files_[index]->header_bytes()) != expected.header_checksum) {
    files_[index].reset();
    throw CheckpointError(str(path.string(), ": damaged header: wrong checksum"));
  }
  return *files_[index];
}

void CheckpointReader::verify_piece(const CheckpointTensor& tensor, const CheckpointPiece& piece, std::span<const std::byte> bytes) {
  const auto verified = verified_[&tensor - metadata_.tensors.data()].begin() + (&piece - tensor.pieces.data());
  if (!verify_checksums_ || *verified) return;
  const uint64_t found = detail::checksum(bytes);
  if (found != piece.checksum) {
    throw CheckpointError(str((folder_ / metadata_.files[piece.file].name).string(), ": tensor \"", piece.key, "\": damaged: checksum ",
                              detail::checksum_text(found), ", expected ", detail::checksum_text(piece.checksum)));
  }
  *verified = true;
}

at::Tensor CheckpointReader::read(const std::string& name) {
  const CheckpointTensor& tensor = info(name);
  at::Tensor result = at::empty(tensor.sizes, tensor.dtype);
  read_box(name, detail::whole_box(tensor.sizes), result);
  return result;
}

void CheckpointReader::read_box(const std::string& name, const Box& box, const at::Tensor& destination) {
  const CheckpointTensor& tensor = info(name);
  if (!detail::inside(box, tensor.sizes)) {
    throw CheckpointError(
        str(folder_.string(), ": tensor \"", name, "\": box at ", box.offsets, " of ", box.sizes, " is not inside shape ", tensor.sizes));
  }
  for (const CheckpointPiece& piece : tensor.pieces) {
    const auto common = intersect(piece.box, box);
    if (!common) continue;
    const SafetensorsFile& source = file(piece.file);
    const SafetensorsInfo& found = source.info(piece.key);
    if (found.dtype != tensor.dtype || found.sizes != piece.box.sizes) {
      throw CheckpointError(str(source.path().string(), ": tensor \"", piece.key, "\" is ", safetensors_name(found.dtype), " ", found.sizes,
                                ", expected ", safetensors_name(tensor.dtype), " ", piece.box.sizes));
    }
    // A piece that is the whole request is read straight into place and checked there: one pass less over the file.
    const bool direct = piece.box == box && destination.scalar_type() == tensor.dtype;
    if (!direct) verify_piece(tensor, piece, source.bytes(piece.key));
    source.read_box_into(piece.key, {difference(common->offsets, piece.box.offsets), common->sizes}, destination, box.sizes,
                         difference(common->offsets, box.offsets));
    if (direct) verify_piece(tensor, piece, {static_cast<const std::byte*>(destination.const_data_ptr()), destination.nbytes()});
  }
}

}  // namespace hyper_parallel
