// SPDX-License-Identifier: Apache-2.0
// The collectives of the gloo backend, all on its worker thread.
#include <algorithm>
#include <array>
#include <cstring>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/gloo_backend.h"

namespace hyper_parallel::detail {
namespace {

// All_reduce: up to this, everybody gets everything in one round. For two ranks that is no more to send than in two rounds, only to add.
constexpr int64_t kGatherBytes = int64_t(32) << 10, kPairGatherBytes = int64_t(2) << 20;
constexpr int64_t kChunkBytes = int64_t(1) << 20;
constexpr int64_t kStagingBytes = int64_t(32) << 20;  // about this much is received ahead
constexpr int kMaxWindow = 16;                        // chunks under way

int window_of(int num_ranks) { return int(std::clamp<int64_t>(kStagingBytes / (kChunkBytes * num_ranks), 2, kMaxWindow)); }

int64_t num_chunks_of(int64_t numel, int64_t element_bytes) {
  const int64_t chunk_numel = kChunkBytes / element_bytes;
  return (numel + chunk_numel - 1) / chunk_numel;
}

}  // namespace

uint64_t signature_of(const Call& call, int64_t key, uint64_t sequence) {
  uint64_t hash = mix(mix(uint64_t(key), sequence), uint64_t(call.op));
  hash = mix(hash, uint64_t(call.reduce) << 32 | uint64_t(call.dtype));
  return mix(hash, uint64_t(int64_t(call.root)));
}

void GlooBackend::run(GlooRequest& request) {
  Call& call = request.call;
  num_rounds_ = 0;
  if (process_->check) check_calls(request);
  signature_ = signature_of(call, key_, request.sequence);
  switch (call.op) {
    case Op::kAllReduce:
      return run_all_reduce(call);
    case Op::kReduceScatter:
      return run_reduce_scatter(call);
    case Op::kReduce:
      return run_reduce(call);
    default:
      return run_moves(call);
  }
}

uint32_t GlooBackend::start(const Parcels& sends, const Parcels& recvs) {
  const uint32_t round = num_rounds_++;
  const Clock::time_point start = Clock::now();
  const auto fly = [&](const Parcel& parcel, int peer, bool send) {
    if (parcel.num_bytes == 0) return;
    const int tag = tag_of(mix(mix(signature_, round), uint64_t(parcel.whole_bytes)));
    GlooTransport& transport = *process_->transport;
    try {
      auto transfer = send ? transport.send(parcel.data, parcel.num_bytes, ranks()[peer], tag)
                           : transport.recv(parcel.data, parcel.num_bytes, ranks()[peer], tag);
      const std::lock_guard lock(mutex_);
      if (stop_) std::rethrow_exception(left_error());
      flights_.push_back({std::move(transfer), peer, round, start});
      if (!mismatch_.empty()) throw std::runtime_error("aborted");
    } catch (const CollectiveError&) {
      throw;
    } catch (const std::exception& cause) {
      throw PeerError(peer, cause);
    }
  };
  for (int i = 1; i < size(); ++i) fly(recvs[(rank() - i + size()) % size()], (rank() - i + size()) % size(), false);
  for (int i = 1; i < size(); ++i) fly(sends[(rank() + i) % size()], (rank() + i) % size(), true);
  return round;
}

void GlooBackend::finish(uint32_t round) {
  for (const Flight& flight : flights_) {
    if (flight.round != round) continue;
    const auto left = process_->timeout - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - flight.start);
    try {
      flight.transfer->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& cause) {
      throw PeerError(flight.peer, cause);
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(flights_, [&](const Flight& flight) { return flight.round == round; });
}

void GlooBackend::exchange(const Blocks& sends, const Blocks& recvs, int64_t element_bytes) {
  const auto parcels_of = [&](const Blocks& blocks) {
    Parcels parcels;
    for (const Block& block : blocks) parcels.push_back({block.data, block.numel * element_bytes, block.numel * element_bytes});
    return parcels;
  };
  const uint32_t round = start(parcels_of(sends), parcels_of(recvs));
  const Block &mine = sends[rank()], &target = recvs[rank()];
  if (mine.numel > 0 && target.numel == mine.numel && mine.data != target.data)
    std::memcpy(target.data, mine.data, mine.numel * element_bytes);
  finish(round);
}

Parcel GlooBackend::chunk_of(const Block& block, int64_t chunk, int64_t element_bytes) const {
  const int64_t chunk_bytes = kChunkBytes / element_bytes * element_bytes, whole = block.numel * element_bytes;
  const int64_t begin = std::min(whole, chunk * chunk_bytes), end = std::min(whole, begin + chunk_bytes);
  return {block.data + begin, end - begin, whole};
}

char* GlooBackend::staging(int64_t num_bytes) {
  if (staging_bytes_ < num_bytes) {
    staging_.reset();
    staging_.reset(new char[num_bytes]);
    staging_bytes_ = num_bytes;
  }
  return staging_.get();
}

template <class Then>
void GlooBackend::reduce_blocks(const Call& call, const Blocks& sends, const Block& output, Then&& then) {
  const int64_t element_bytes = call.element_bytes();
  const CombineKernel kernel = kernel_of(call.dtype, call.reduce);
  int64_t largest = 0;
  for (const Block& block : sends) largest = std::max(largest, block.numel);
  const int64_t num_chunks = num_chunks_of(largest, element_bytes);
  const int window = window_of(size());
  const int64_t slot_bytes = (std::min(kChunkBytes, output.numel * element_bytes) + 63) / 64 * 64;
  char* const slots = staging(std::min<int64_t>(window, num_chunks) * size() * slot_bytes);
  std::array<uint32_t, kMaxWindow> rounds{};
  std::vector<const void*> inputs(size());
  for (int64_t next = 0; next < num_chunks + window; ++next) {
    if (const int64_t chunk = next - window; chunk >= 0 && chunk < num_chunks) {
      finish(rounds[chunk % window]);
      const Parcel result = chunk_of(output, chunk, element_bytes);
      for (int r = 0; r < size(); ++r) inputs[r] = slots + (chunk % window * size() + r) * slot_bytes;
      inputs[rank()] = chunk_of(sends[rank()], chunk, element_bytes).data;
      void* to = result.data;
      const int divisor = call.reduce == ReduceOp::kAvg ? size() : 1;
      kernel({inputs.data(), size(), &to, 1, result.num_bytes / element_bytes, divisor, false});
      then(chunk);
    }
    if (next >= num_chunks) continue;
    Parcels out, in;
    for (int r = 0; r < size(); ++r) {
      out.push_back(chunk_of(sends[r], next, element_bytes));
      const Parcel result = chunk_of(output, next, element_bytes);
      in.push_back({slots + (next % window * size() + r) * slot_bytes, result.num_bytes, result.whole_bytes});
    }
    rounds[next % window] = start(out, in);
  }
}

void GlooBackend::run_all_reduce(Call& call) {
  const int64_t element_bytes = call.element_bytes();
  for (const Block& block : call.out) {
    if (block.numel * element_bytes <= (size() == 2 ? kPairGatherBytes : kGatherBytes)) {
      reduce_blocks(call, everybody(block), block, [](int64_t) {});
      continue;
    }
    Blocks parts;  // of the tensor, one for each rank
    for (int64_t r = 0, begin = 0; r < size(); ++r) {
      const int64_t end = block.numel * (r + 1) / size();
      parts.push_back({block.data + begin * element_bytes, end - begin});
      begin = end;
    }
    const int window = window_of(size());
    std::array<uint32_t, kMaxWindow> rounds{};
    int64_t num_shared = 0;
    reduce_blocks(call, parts, parts[rank()], [&](int64_t chunk) {
      if (chunk >= window) finish(rounds[chunk % window]);
      Parcels in;
      for (const Block& part : parts) in.push_back(chunk_of(part, chunk, element_bytes));
      rounds[chunk % window] = start(Parcels(size(), in[rank()]), in);
      num_shared = chunk + 1;
    });
    for (int64_t chunk = std::max<int64_t>(0, num_shared - window); chunk < num_shared; ++chunk) finish(rounds[chunk % window]);
  }
}

void GlooBackend::run_reduce_scatter(Call& call) {
  for (int t = 0; t < int(call.out.size()); ++t) {
    const Blocks sends(call.in.begin() + t * size(), call.in.begin() + (t + 1) * size());
    reduce_blocks(call, sends, call.out[t], [](int64_t) {});
  }
}

void GlooBackend::run_reduce(Call& call) {
  Blocks sends(size(), Block{nullptr, 0});
  sends[call.root] = call.out[0];
  reduce_blocks(call, sends, rank() == call.root ? call.out[0] : Block{nullptr, 0}, [](int64_t) {});
}

void GlooBackend::run_moves(Call& call) {
  const Blocks none(size(), Block{nullptr, 0});
  Blocks sends = none, recvs = none;
  static char barrier_send, barrier_recv;
  switch (call.op) {
    case Op::kAllGather:
      for (int t = 0; t < int(call.in.size()); ++t) {
        recvs.assign(call.out.begin() + t * size(), call.out.begin() + (t + 1) * size());
        exchange(everybody(call.in[t]), recvs, call.element_bytes());
      }
      return;
    case Op::kAllToAll:
      sends.assign(call.in.begin(), call.in.end());
      recvs.assign(call.out.begin(), call.out.end());
      break;
    case Op::kBroadcast:
      if (rank() == call.root)
        sends = everybody(call.out[0]);
      else
        recvs[call.root] = call.out[0];
      break;
    case Op::kGather:
      sends[call.root] = call.in[0];
      if (rank() == call.root) recvs.assign(call.out.begin(), call.out.end());
      break;
    case Op::kScatter:
      if (rank() == call.root) sends.assign(call.in.begin(), call.in.end());
      recvs[call.root] = call.out[0];
      break;
    default:
      sends = everybody({&barrier_send, 1});
      recvs = everybody({&barrier_recv, 1});
      sends[rank()].numel = 0;
  }
  exchange(sends, recvs, call.element_bytes());
}

}  // namespace hyper_parallel::detail
