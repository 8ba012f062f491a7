// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/detail/cache.h"

#include <c10/core/UndefinedTensorImpl.h>

namespace hyper_parallel::detail {
namespace {

constexpr int kSpilled = 8192;
thread_local std::vector<uint64_t> spilled_words;

}  // namespace

void Key::plain(const c10::TensorImpl* tensor) {
  if (tensor == c10::UndefinedTensorImpl::singleton()) return put(kNone);
  put(kPlain | uint64_t(c10::typeMetaToScalarType(tensor->dtype())) << 8 | uint64_t(tensor->is_wrapped_number()) << 16 |
      uint64_t(tensor->dim()) << 32);
  if (tensor->dim() > 0) put(kBool | uint64_t(in_backward()) << 8);  // allowed there only
  for (int64_t size : tensor->sizes()) put(uint64_t(size));
}

// Long lists (foreach) go on in a buffer of the thread; a second overflow gives up caching.
void Key::spill() {
  if (capacity_ == kInline) {
    spilled_words.resize(kSpilled);
    std::copy(inline_, inline_ + kInline, spilled_words.begin());
    words_ = spilled_words.data();
    capacity_ = kSpilled;
  } else {
    cacheable_ = false;
    size_ = 0;
  }
}

void Key::value(const c10::IValue& value, bool drop) {
  if (value.isNone()) return put(kNone);
  if (value.isTensor()) return tensor(value.unsafeToTensorImpl());
  if (value.isInt()) return number(kInt, drop, [&] { return uint64_t(value.toInt()); });
  if (value.isDouble()) return number(kDouble, drop, [&] { return std::bit_cast<uint64_t>(value.toDouble()); });
  if (value.isBool()) return put(kBool | uint64_t(value.toBool()) << 8);
  if (value.isList()) {
    const auto list = value.toListRef();
    put(kList | list.size() << 8);
    for (const c10::IValue& item : list) this->value(item, drop);
    return;
  }
  if (value.isDevice()) return add(value.toDevice(), drop);
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    put(kText | text.size() << 8);
    for (char letter : text) put(uint64_t(uint8_t(letter)));
    return;
  }
  cacheable_ = false;
}

const Propagation* Cache::insert(const Key& key, Propagation propagation) {
  ++misses_;
  if (!key.cacheable()) {
    Propagation& slot = uncached_[next_uncached_++ % 8];
    slot = std::move(propagation);
    return &slot;
  }
  entries_.push_back({key.hash(), {key.words(), key.words() + key.size()}, std::move(propagation)});
  if (entries_.size() * 2 > slots_.size()) {
    slots_.assign(slots_.size() * 2, {});
    mask_ = slots_.size() - 1;
    for (Entry& entry : entries_) place(&entry);
  } else
    place(&entries_.back());
  return &entries_.back().propagation;
}

void Cache::place(Entry* entry) {
  size_t slot = entry->hash & mask_;
  while (slots_[slot].entry) slot = (slot + 1) & mask_;
  slots_[slot] = {entry->hash, entry};
}

constinit thread_local Cache* cache_of_thread = nullptr;

Cache& make_cache() {
  thread_local std::unique_ptr<Cache> owner;
  owner = std::make_unique<Cache>();
  cache_of_thread = owner.get();
  return *owner;
}

}  // namespace hyper_parallel::detail
