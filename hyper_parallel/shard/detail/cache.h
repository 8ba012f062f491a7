// SPDX-License-Identifier: Apache-2.0
// The per-thread cache of Propagations and its key: words on the stack, hashed while they are written; all words are compared on a hit.
//
// The key of a call: the op, each tensor's Spec pointer (or shape and dtype of a plain one), and its other arguments. The values of scalars
// that the rule ignores (alpha, lr) are left out, their type stays: it decides promotion.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <bit>
#include <cstring>
#include <deque>

#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel::detail {

class Key {
 public:
  C10_ALWAYS_INLINE explicit Key(const void* op) : hash_(uint64_t(reinterpret_cast<uintptr_t>(op))) { put(hash_); }
  Key(const Key&) = delete;

  uint64_t hash() const { return hash_; }
  int size() const { return size_; }
  const uint64_t* words() const { return words_; }
  bool cacheable() const { return cacheable_; }

  C10_ALWAYS_INLINE void put(uint64_t word) {
    if (C10_UNLIKELY(size_ == capacity_)) spill();
    words_[size_++] = word;
    const auto product = static_cast<unsigned __int128>(hash_ ^ word) * 0x9E3779B97F4A7C15ull;  // wyhash's multiply and fold
    hash_ = uint64_t(product) ^ uint64_t(product >> 64);
  }

  C10_ALWAYS_INLINE void tensor(const c10::TensorImpl* tensor) {
    if (const DTensorImpl* impl = dtensor_impl(tensor)) return put(uint64_t(reinterpret_cast<uintptr_t>(impl->spec())));
    plain(tensor);
  }

  // Typed arguments write the same words as value() does for them boxed.
  C10_ALWAYS_INLINE void add(const at::Tensor& value, bool) { tensor(value.unsafeGetTensorImpl()); }
  C10_ALWAYS_INLINE void add(const at::Scalar& value, bool drop) {
    if (value.isFloatingPoint()) return number(kDouble, drop, [&] { return std::bit_cast<uint64_t>(value.toDouble()); });
    if (value.isBoolean()) return put(kBool | uint64_t(value.toBool()) << 8);
    if (value.isIntegral(false)) return number(kInt, drop, [&] { return uint64_t(value.toLong()); });
    cacheable_ = false;
  }
  C10_ALWAYS_INLINE void add(double value, bool drop) {
    number(kDouble, drop, [&] { return std::bit_cast<uint64_t>(value); });
  }
  C10_ALWAYS_INLINE void add(c10::SymIntArrayRef list, bool) {
    put(kList | list.size() << 8);
    for (const auto& item : list) put(kInt), put(uint64_t(item.as_int_unchecked()));
  }
  C10_ALWAYS_INLINE void add(at::IntArrayRef list, bool) {
    put(kList | list.size() << 8);
    for (int64_t item : list) put(kInt), put(uint64_t(item));
  }
  C10_ALWAYS_INLINE void add(bool value, bool) { put(kBool | uint64_t(value) << 8); }
  C10_ALWAYS_INLINE void add(int64_t value, bool) { put(kInt), put(uint64_t(value)); }
  C10_ALWAYS_INLINE void add(const c10::SymInt& value, bool) { put(kInt), put(uint64_t(value.as_int_unchecked())); }
  C10_ALWAYS_INLINE void add(c10::Device value, bool) { put(kText | uint64_t(value.type()) << 8 | uint64_t(uint8_t(value.index())) << 16); }
  template <class Enum>
  requires std::is_enum_v<Enum> C10_ALWAYS_INLINE void add(Enum value, bool) { put(kInt), put(uint64_t(value)); }
  template <class T>
  C10_ALWAYS_INLINE void add(const std::optional<T>& value, bool drop) {
    value ? add(*value, drop) : put(kNone);
  }
  template <class T>
  C10_ALWAYS_INLINE void add(const c10::OptionalArrayRef<T>& value, bool drop) {
    value ? add(*value, drop) : put(kNone);
  }

  void value(const c10::IValue& value, bool drop);

 private:
  // Odd: never a Spec pointer.
  enum Tag : uint64_t { kPlain = 1, kNone = 3, kInt = 5, kDouble = 7, kBool = 9, kList = 11, kText = 13, kDropped = 15 };
  static constexpr int kInline = 40;

  template <class Word>
  C10_ALWAYS_INLINE void number(Tag tag, bool drop, const Word& word) {
    if (drop) return put(kDropped | tag << 8);
    put(tag), put(word());
  }
  void plain(const c10::TensorImpl* tensor);
  void spill();

  int size_ = 0, capacity_ = kInline;
  bool cacheable_ = true;
  uint64_t hash_;
  uint64_t* words_ = inline_;
  uint64_t inline_[kInline];  // not zeroed
};

// Open addressing, linear probing, at most half full.
class Cache {
 public:
  struct Entry {
    uint64_t hash;
    std::vector<uint64_t> words;
    Propagation propagation;
  };

  C10_ALWAYS_INLINE const Propagation* find(const Key& key) const {
    for (size_t slot = key.hash() & mask_; slots_[slot].entry; slot = (slot + 1) & mask_) {
      const Entry& entry = *slots_[slot].entry;
      if (slots_[slot].hash == key.hash() && entry.words.size() == size_t(key.size()) &&
          std::memcmp(entry.words.data(), key.words(), size_t(key.size()) * 8) == 0)
        return &entry.propagation;
    }
    return nullptr;
  }
  // Propagations of uncacheable keys live until the next one.
  const Propagation* insert(const Key& key, Propagation propagation);
  size_t misses() const { return misses_; }

 private:
  struct Slot {
    uint64_t hash;
    Entry* entry;
  };
  void place(Entry* entry);

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::deque<Entry> entries_;
  size_t mask_ = 1023, misses_ = 0;
  Propagation uncached_[8];
  size_t next_uncached_ = 0;
};

// A constinit pointer: no initialisation guard on the hit path.
extern constinit thread_local Cache* cache_of_thread;
Cache& make_cache();
C10_ALWAYS_INLINE Cache& cache() { return C10_LIKELY(cache_of_thread != nullptr) ? *cache_of_thread : make_cache(); }

}  // namespace hyper_parallel::detail
