// SPDX-License-Identifier: Apache-2.0
// Debug mode of the gloo backend: before each collective all ranks compare what they are about to do.
#include <cstring>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/gloo_backend.h"

namespace hyper_parallel::detail {
namespace {

constexpr int kMaxDims = 8;

struct Fingerprint {
  uint64_t sequence;
  int32_t op, reduce, root, dtype, num_tensors, dim;
  int64_t numel, sizes[kMaxDims];
};

Fingerprint fingerprint_of(const Call& call, uint64_t sequence) {
  Fingerprint print{};
  print.sequence = sequence;
  print.op = int(call.op), print.reduce = int(call.reduce), print.root = call.root, print.dtype = int(call.dtype);
  if (call.tensors.empty()) return print;
  print.num_tensors = int(call.tensors.size());
  print.dim = int(call.tensors[0].dim());
  print.numel = call.tensors[0].numel();
  for (int d = 0; d < std::min(print.dim, kMaxDims); ++d) print.sizes[d] = call.tensors[0].size(d);
  return print;
}

std::string describe(const Fingerprint& print) {
  const std::span<const int64_t> sizes(print.sizes, size_t(std::min(print.dim, kMaxDims)));
  return str(name_of(Op(print.op)), " #", print.sequence, " ", hyper_parallel::name_of(ReduceOp(print.reduce)), " ",
             name_of_dtype(at::ScalarType(print.dtype)), " ", bracketed(sizes), print.root >= 0 ? str(" root ", print.root) : "");
}

// Blocks of uneven collectives differ between ranks, so shapes and sizes are compared only where they must agree.
bool agree(const Fingerprint& a, const Fingerprint& b, bool same_shape) {
  if (a.sequence != b.sequence || a.op != b.op || a.reduce != b.reduce || a.root != b.root || a.dtype != b.dtype) return false;
  return !same_shape || (a.num_tensors == b.num_tensors && a.dim == b.dim && std::memcmp(a.sizes, b.sizes, sizeof a.sizes) == 0);
}

}  // namespace

void GlooBackend::check_fingerprints(GlooRequest& request) {
  Fingerprint mine = fingerprint_of(request.call, request.sequence);
  std::vector<Fingerprint> all(size());
  Blocks recvs;
  for (Fingerprint& print : all) recvs.push_back({reinterpret_cast<char*>(&print), int64_t(sizeof print)});
  exchange(everybody({reinterpret_cast<char*>(&mine), int64_t(sizeof mine)}), recvs, 1);
  for (int r = 1; r < size(); ++r) {
    if (agree(all[0], all[r], request.call.same_shape)) continue;
    throw CollectiveError(str(operation_text(request), ": ranks don't agree: rank ", ranks()[0], " does ", describe(all[0]), ", rank ",
                              ranks()[r], " does ", describe(all[r])));
  }
}

}  // namespace hyper_parallel::detail
