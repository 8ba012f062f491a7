// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/process_group.h"

#include <exception>
#include <functional>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "hyper_parallel/collectives/detail/backend.h"

namespace hyper_parallel {

using detail::Call;
using detail::Op;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work old(std::exchange(request_, std::exchange(other.request_, nullptr)));
  }
  return *this;
}

Work::~Work() {
  if (request_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    request_->abandon();
    return;
  }
  try {
    request_->wait();
  } catch (const std::exception& error) {
    log_error("a collective that was not waited for failed: ", error.what());
  }
}

void Work::wait() {
  if (request_ != nullptr) std::exchange(request_, nullptr)->wait();
}

bool Work::done() const { return request_ == nullptr || request_->done(); }

namespace {

using Tensors = std::span<const at::Tensor>;

[[noreturn]] void fail(Op op, const std::string& what) { throw CollectiveError(str(name_of(op), ": ", what)); }

void check_contiguous(const at::Tensor& tensor, Op op, const char* role) {
  if (!tensor.is_contiguous()) fail(op, str(role, " of shape ", bracketed(tensor.sizes()), " must be contiguous"));
}

void check_dtype(const at::Tensor& tensor, at::ScalarType dtype, Op op) {
  if (tensor.scalar_type() != dtype) {
    fail(op, str("tensors of ", detail::name_of_dtype(dtype), " and ", detail::name_of_dtype(tensor.scalar_type()), " in one call"));
  }
}

void check_count(size_t count, int size, Op op, const char* role) {
  if (int64_t(count) != size) fail(op, str(count, " ", role, " for a group of ", size, " (one for each rank)"));
}

void check_peer(const Backend& backend, int peer, Op op, const char* role) {
  if (peer < 0 || peer >= backend.size())
    fail(op, str(role, " ", peer, " is not a rank of the group (allowed: 0 to ", backend.size() - 1, ")"));
}

// What a rank sends to itself.
void check_own_block(Op op, int64_t given, int64_t expected) {
  if (given != expected) fail(op, str("this rank keeps ", given, " elements of its input but expects ", expected, " in its output"));
}

// Output holds `size` blocks as large as the input, or the other way around.
void check_blocks(const at::Tensor& whole, const at::Tensor& part, int size, Op op) {
  if (whole.numel() != part.numel() * size) {
    fail(op,
         str("the larger tensor has ", whole.numel(), " elements, expected ", size, " x ", part.numel(), " (ranks x the smaller one's)"));
  }
}

void check_all(Tensors tensors, at::ScalarType dtype, Op op, const char* role, bool contiguous) {
  for (const at::Tensor& tensor : tensors) {
    detail::check_tensor(tensor, op, role);
    check_dtype(tensor, dtype, op);
    if (contiguous) check_contiguous(tensor, op, role);
  }
}

void copy(const at::Tensor& output, const at::Tensor& input, Op op) {
  if (output.numel() != input.numel()) fail(op, str("output has ", output.numel(), " elements, input ", input.numel()));
  if (output.is_same(input) || output.numel() == 0) return;
  if (output.const_data_ptr() == input.const_data_ptr() && output.strides() == input.strides()) return;
  c10::NoGradGuard no_grad;
  output.detach().view(input.sizes()).copy_(input.detach());
}

Call& begin(Backend& backend, Op op, at::ScalarType dtype) {
  Call& call = backend.begin();
  call.op = op;
  call.dtype = dtype;
  return call;
}

Tensors one(const at::Tensor& tensor) { return {&tensor, 1}; }

// Checks and posts a call whose tensors all have `dtype`.
struct Lists {
  Tensors inputs, outputs;
  int input_blocks = 1, output_blocks = 1;
};
Call& begin_with(Backend& backend, Op op, const Lists& lists) {
  const at::ScalarType dtype = (lists.outputs.empty() ? lists.inputs : lists.outputs)[0].scalar_type();
  Call& call = begin(backend, op, dtype);
  for (const at::Tensor& tensor : lists.outputs) call.add_output(tensor, lists.output_blocks);
  for (const at::Tensor& tensor : lists.inputs) call.add_input(tensor, lists.input_blocks);
  return call;
}

Work post(Backend& backend, Call& call) {
  if (active_comm_debug_mode != nullptr) [[unlikely]]
    CommDebugMode::record(backend, call);
  return backend.post(call);
}

Work post_reduction(Backend& backend, Call& call, ReduceOp op) {
  call.reduce = op;
  return post(backend, call);
}

at::ScalarType first_dtype(Tensors tensors, Op op, const char* role) {
  detail::check_tensor(tensors[0], op, role);
  return tensors[0].scalar_type();
}

// Offsets of each rank's rows of dim 0.
void add_splits(c10::SmallVector<detail::Block, 8>& blocks, const at::Tensor& tensor, std::span<const int64_t> splits, int size,
                const char* role) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row_numel = rows == 0 ? 0 : tensor.numel() / rows;
  if (splits.empty() && rows % size != 0)
    fail(Op::kAllToAll, str(role, ": ", rows, " rows don't divide into ", size, " ranks (pass splits)"));
  if (!splits.empty()) check_count(splits.size(), size, Op::kAllToAll, "splits");
  char* data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  int64_t sum = 0;
  for (int r = 0; r < size; ++r) {
    const int64_t count = splits.empty() ? rows / size : splits[r];
    if (count < 0) fail(Op::kAllToAll, str(role, ": negative split ", count, " for rank ", r));
    blocks.push_back({data + sum * row_numel * int64_t(tensor.element_size()), count * row_numel});
    sum += count;
  }
  if (sum != rows) fail(Op::kAllToAll, str(role, ": splits add up to ", sum, " rows, the tensor has ", rows));
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
int ProcessGroup::rank() const { return backend_->rank(); }
int ProcessGroup::size() const { return backend_->size(); }
std::span<const int> ProcessGroup::ranks() const { return backend_->ranks(); }
const std::string& ProcessGroup::name() const { return backend_->name(); }
const char* ProcessGroup::backend_name() const { return backend_->kind(); }
bool ProcessGroup::checks_calls() const { return backend_->checks_calls(); }

Work ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) const { return all_reduce(one(tensor), op); }

Work ProcessGroup::all_reduce(Tensors tensors, ReduceOp op) const {
  if (tensors.empty()) return {};
  const at::ScalarType dtype = first_dtype(tensors, Op::kAllReduce, "tensor");
  check_all(tensors, dtype, Op::kAllReduce, "tensor", false);
  detail::kernel_of(dtype, op);
  if (size() == 1) return {};
  Call& call = begin_with(*backend_, Op::kAllReduce, {.outputs = tensors});
  call.same_shape = true;
  return post_reduction(*backend_, call, op);
}

Work ProcessGroup::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  return all_gather_coalesced(one(output), one(input));
}

Work ProcessGroup::all_gather_coalesced(Tensors outputs, Tensors inputs) const {
  check_count(outputs.size(), int(inputs.size()), Op::kAllGather, "outputs");
  if (inputs.empty()) return {};
  const at::ScalarType dtype = first_dtype(inputs, Op::kAllGather, "input");
  check_all(inputs, dtype, Op::kAllGather, "input", false);
  check_all(outputs, dtype, Op::kAllGather, "output", true);
  for (size_t t = 0; t < inputs.size(); ++t) check_blocks(outputs[t], inputs[t], size(), Op::kAllGather);
  if (size() == 1) {
    for (size_t t = 0; t < inputs.size(); ++t) copy(outputs[t], inputs[t], Op::kAllGather);
    return {};
  }
  Call& call = begin_with(*backend_, Op::kAllGather, {.inputs = inputs, .outputs = outputs, .output_blocks = size()});
  call.same_shape = true;
  return post(*backend_, call);
}

Work ProcessGroup::all_gather(Tensors outputs, const at::Tensor& input) const {
  check_count(outputs.size(), size(), Op::kAllGather, "outputs");
  const at::ScalarType dtype = first_dtype(one(input), Op::kAllGather, "input");
  check_all(outputs, dtype, Op::kAllGather, "output", true);
  if (outputs[rank()].numel() != input.numel()) {
    fail(Op::kAllGather, str("outputs[", rank(), "] has ", outputs[rank()].numel(), " elements, this rank's input ", input.numel()));
  }
  if (size() == 1) return copy(outputs[0], input, Op::kAllGather), Work();
  return post(*backend_, begin_with(*backend_, Op::kAllGather, {.inputs = one(input), .outputs = outputs}));
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  return reduce_scatter_coalesced(one(output), one(input), op);
}

Work ProcessGroup::reduce_scatter_coalesced(Tensors outputs, Tensors inputs, ReduceOp op) const {
  check_count(outputs.size(), int(inputs.size()), Op::kReduceScatter, "outputs");
  if (inputs.empty()) return {};
  const at::ScalarType dtype = first_dtype(inputs, Op::kReduceScatter, "input");
  check_all(inputs, dtype, Op::kReduceScatter, "input", true);
  check_all(outputs, dtype, Op::kReduceScatter, "output", true);
  detail::kernel_of(dtype, op);
  for (size_t t = 0; t < inputs.size(); ++t) check_blocks(inputs[t], outputs[t], size(), Op::kReduceScatter);
  if (size() == 1) {
    for (size_t t = 0; t < inputs.size(); ++t) copy(outputs[t], inputs[t], Op::kReduceScatter);
    return {};
  }
  Call& call = begin_with(*backend_, Op::kReduceScatter, {.inputs = inputs, .outputs = outputs, .input_blocks = size()});
  call.same_shape = true;
  return post_reduction(*backend_, call, op);
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, Tensors inputs, ReduceOp op) const {
  check_count(inputs.size(), size(), Op::kReduceScatter, "inputs");
  const at::ScalarType dtype = first_dtype(one(output), Op::kReduceScatter, "output");
  check_all(inputs, dtype, Op::kReduceScatter, "input", false);
  detail::kernel_of(dtype, op);
  if (inputs[rank()].numel() != output.numel()) {
    fail(Op::kReduceScatter, str("inputs[", rank(), "] has ", inputs[rank()].numel(), " elements, this rank's output ", output.numel()));
  }
  if (size() == 1) return copy(output, inputs[0], Op::kReduceScatter), Work();
  return post_reduction(*backend_, begin_with(*backend_, Op::kReduceScatter, {.inputs = inputs, .outputs = one(output)}), op);
}

Work ProcessGroup::all_to_all(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> output_splits,
                              std::span<const int64_t> input_splits) const {
  const at::ScalarType dtype = first_dtype(one(input), Op::kAllToAll, "input");
  check_all(one(input), dtype, Op::kAllToAll, "input", true);
  check_all(one(output), dtype, Op::kAllToAll, "output", true);
  c10::SmallVector<detail::Block, 8> in, out;
  add_splits(in, input, input_splits, size(), "input");
  add_splits(out, output, output_splits, size(), "output");
  check_own_block(Op::kAllToAll, in[rank()].numel, out[rank()].numel);
  if (size() == 1) return copy(output, input, Op::kAllToAll), Work();
  Call& call = begin(*backend_, Op::kAllToAll, dtype);
  call.in = std::move(in);
  call.out = std::move(out);
  call.tensors.push_back(output);
  call.tensors.push_back(input);
  return post(*backend_, call);
}

Work ProcessGroup::all_to_all(Tensors outputs, Tensors inputs) const {
  check_count(outputs.size(), size(), Op::kAllToAll, "outputs");
  check_count(inputs.size(), size(), Op::kAllToAll, "inputs");
  const at::ScalarType dtype = first_dtype(inputs, Op::kAllToAll, "input");
  check_all(inputs, dtype, Op::kAllToAll, "input", false);
  check_all(outputs, dtype, Op::kAllToAll, "output", false);
  check_own_block(Op::kAllToAll, inputs[rank()].numel(), outputs[rank()].numel());
  if (size() == 1) return copy(outputs[0], inputs[0], Op::kAllToAll), Work();
  return post(*backend_, begin_with(*backend_, Op::kAllToAll, {.inputs = inputs, .outputs = outputs}));
}

Work ProcessGroup::broadcast(const at::Tensor& tensor, int root) const {
  detail::check_tensor(tensor, Op::kBroadcast, "tensor");
  check_peer(*backend_, root, Op::kBroadcast, "root");
  if (size() == 1) return {};
  Call& call = begin_with(*backend_, Op::kBroadcast, {.outputs = one(tensor)});
  call.root = root;
  call.same_shape = true;
  return post(*backend_, call);
}

Work ProcessGroup::reduce(const at::Tensor& tensor, int root, ReduceOp op) const {
  detail::check_tensor(tensor, Op::kReduce, "tensor");
  check_peer(*backend_, root, Op::kReduce, "root");
  detail::kernel_of(tensor.scalar_type(), op);
  if (size() == 1) return {};
  Call& call = begin_with(*backend_, Op::kReduce, {.outputs = one(tensor)});
  call.root = root;
  call.same_shape = true;
  if (rank() != root) call.copy_back.clear();
  return post_reduction(*backend_, call, op);
}

Work ProcessGroup::gather(Tensors outputs, const at::Tensor& input, int root) const {
  check_peer(*backend_, root, Op::kGather, "root");
  const at::ScalarType dtype = first_dtype(one(input), Op::kGather, "input");
  check_count(outputs.size(), rank() == root ? size() : 0, Op::kGather, "outputs");
  check_all(outputs, dtype, Op::kGather, "output", false);
  if (rank() == root) check_own_block(Op::kGather, input.numel(), outputs[root].numel());
  if (size() == 1) return copy(outputs[0], input, Op::kGather), Work();
  Call& call = begin_with(*backend_, Op::kGather, {.inputs = one(input), .outputs = outputs});
  call.root = root;
  return post(*backend_, call);
}

Work ProcessGroup::scatter(const at::Tensor& output, Tensors inputs, int root) const {
  check_peer(*backend_, root, Op::kScatter, "root");
  const at::ScalarType dtype = first_dtype(one(output), Op::kScatter, "output");
  check_count(inputs.size(), rank() == root ? size() : 0, Op::kScatter, "inputs");
  check_all(inputs, dtype, Op::kScatter, "input", false);
  if (rank() == root) check_own_block(Op::kScatter, inputs[root].numel(), output.numel());
  if (size() == 1) return copy(output, inputs[0], Op::kScatter), Work();
  Call& call = begin_with(*backend_, Op::kScatter, {.inputs = inputs, .outputs = one(output)});
  call.root = root;
  return post(*backend_, call);
}

Work ProcessGroup::send(const at::Tensor& tensor, int peer) const {
  detail::check_tensor(tensor, Op::kSend, "tensor");
  check_peer(*backend_, peer, Op::kSend, "peer");
  if (peer == rank()) fail(Op::kSend, str("peer ", peer, " is this rank itself"));
  Call& call = begin_with(*backend_, Op::kSend, {.inputs = one(tensor)});
  call.root = peer;
  return post(*backend_, call);
}

Work ProcessGroup::recv(const at::Tensor& tensor, int peer) const {
  detail::check_tensor(tensor, Op::kRecv, "tensor");
  check_peer(*backend_, peer, Op::kRecv, "peer");
  if (peer == rank()) fail(Op::kRecv, str("peer ", peer, " is this rank itself"));
  Call& call = begin_with(*backend_, Op::kRecv, {.outputs = one(tensor)});
  call.root = peer;
  return post(*backend_, call);
}

void ProcessGroup::barrier() const {
  if (size() == 1) return;
  post(*backend_, begin(*backend_, Op::kBarrier, at::kByte)).wait();
}

namespace {

// All ranks' pairs of numbers, and the key of the sub-group that they make.
struct Agreement {
  std::vector<int64_t> values;  // [size, 2]
  int64_t key = 0;
};

Agreement agree(const ProcessGroup& group, int64_t first, int64_t second) {
  Backend& backend = group.backend();
  const at::Tensor mine = at::empty({3}, at::kLong), all = at::empty({group.size(), 3}, at::kLong);
  int64_t* data = mine.mutable_data_ptr<int64_t>();
  data[0] = first, data[1] = second, data[2] = backend.propose_key();
  group.all_gather(all, mine).wait();
  Agreement result;
  const int64_t* row = all.const_data_ptr<int64_t>();
  for (int r = 0; r < group.size(); ++r, row += 3) {
    result.values.insert(result.values.end(), {row[0], row[1]});
    result.key = std::max(result.key, row[2]);
  }
  backend.use_key(result.key);
  return result;
}

}  // namespace

ProcessGroup ProcessGroup::subgroup(std::span<const int> group_ranks, const std::string& name) const {
  std::vector<bool> seen(size(), false);
  for (const int r : group_ranks) {
    if (r < 0 || r >= size() || seen[r]) {
      throw CollectiveError(
          str("subgroup \"", name, "\": bad or repeated rank ", r, " in ", bracketed(group_ranks), " (allowed: 0 to ", size() - 1, ")"));
    }
    seen[r] = true;
  }
  const int64_t hash = int64_t(std::hash<std::string>()(str(bracketed(group_ranks), name)));
  const Agreement agreement = agree(*this, hash, 0);
  for (int r = 0; r < size(); ++r) {
    if (agreement.values[2 * r] != hash) {
      throw CollectiveError(str("subgroup \"", name, "\" of group \"", this->name(), "\": rank ", r, " passed another list or name than ",
                                bracketed(group_ranks)));
    }
  }
  const auto mine = std::find(group_ranks.begin(), group_ranks.end(), rank());
  if (mine == group_ranks.end()) return {};
  std::vector<int> members;
  for (const int r : group_ranks) members.push_back(ranks()[r]);
  return ProcessGroup(backend_->make_subgroup(std::move(members), int(mine - group_ranks.begin()), name, agreement.key));
}

ProcessGroup ProcessGroup::split(int color, int key, const std::string& name) const {
  const Agreement agreement = agree(*this, color, key);
  if (color < 0) return {};
  std::vector<std::pair<int64_t, int>> order;  // (key, rank)
  for (int r = 0; r < size(); ++r)
    if (agreement.values[2 * r] == color) order.emplace_back(agreement.values[2 * r + 1], r);
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  int position = -1;
  for (const auto& [ignored, r] : order) {
    if (r == rank()) position = int(members.size());
    members.push_back(ranks()[r]);
  }
  return ProcessGroup(backend_->make_subgroup(std::move(members), position, name, agreement.key));
}

}  // namespace hyper_parallel
