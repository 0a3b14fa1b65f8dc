// The elements of a row that come first in order, kept as the row goes by: argmax, and the k of a top-k.
//
// Order is that of keys, integers that grow with how early an element comes; of equal keys the lower number is first. 0 and -0 have
// one key; NaN comes before all numbers or after them. A place of INT64_MAX says that there is no element; it has the least key.
#pragma once

#include "prelude.h"

namespace weft {

constexpr i64 kNothing = INT64_MAX;

template <class C>
struct Keys;
template <>
struct Keys<float> {
  using type = int32_t;
};
template <>
struct Keys<double> {
  using type = i64;
};
template <>
struct Keys<i64> {
  using type = i64;
};
template <class C>
using Key = typename Keys<C>::type;

template <class K>
constexpr K kGreatest = (K)(~(uint64_t)0 >> (65 - 8 * sizeof(K)));

template <bool Largest, bool NanFirst, class C>
static inline Key<C> key_of(C x) {
  using K = Key<C>;
  K bits = bits_as<K>(x + (C)0);  // -0 + 0 is 0
  bits ^= bits >> (8 * sizeof(K) - 1) & kGreatest<K>;
  bits = Largest ? bits : ~bits;
  return x != x ? NanFirst ? kGreatest<K> : -kGreatest<K> : bits;
}
template <bool Largest, bool NanFirst>
static inline i64 key_of(i64 x) {
  return Largest ? x : ~x;
}

// The first `count` of K so far, by keys, and of each where it comes from: element `from` of the run, or, where that is negative,
// number ~from of the ranking that the run started with. What is inserted comes after all equal ones.
template <int K, class Integer>
struct Sorted {
  Integer keys[K];
  int32_t from[K];
  int count;

  void start() { count = 0; }
  Integer last() const { return keys[K - 1]; }
  void insert(Integer key, int32_t place) {
    if (count == K && key <= keys[K - 1]) return;
    int at = count < K ? count++ : K - 1;
    for (; at > 0 && keys[at - 1] < key; --at) {
      keys[at] = keys[at - 1];
      from[at] = from[at - 1];
    }
    keys[at] = key;
    from[at] = place;
  }
};

constexpr int kRun = 16;  // elements that are looked at together

// Up to a vector of keys stays in registers: what comes later moves up by one lane, without a branch.
typedef int32_t KeyLanes __attribute__((vector_size(4 * kRun)));
#if defined(__clang__)
#define WEFT_MOVED_UP(v) __builtin_shufflevector(v, v, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
#else
#define WEFT_MOVED_UP(v) __builtin_shuffle(v, KeyLanes{0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
#endif

template <int K>
struct SortedLanes {
  KeyLanes keys, from;
  int count;

  void start() {
    count = 0;
    keys = KeyLanes{} - kGreatest<int32_t> - 1;  // less than any key
    from = KeyLanes{};
  }
  int32_t last() const { return keys[K - 1]; }
  void insert(int32_t key, int32_t place) {
    count = count < K ? count + 1 : K;
    KeyLanes above = WEFT_MOVED_UP(keys);
    above[0] = kGreatest<int32_t>;
    const KeyLanes stays = keys >= key, next = above >= key;  // the first lane that does not stay takes the new one
    from = stays ? from : next ? KeyLanes{} + place : WEFT_MOVED_UP(from);
    keys = stays ? keys : next ? KeyLanes{} + key : above;
  }
};

template <int K, class Integer, bool InLanes>
struct SortedFor {
  using type = Sorted<K, Integer>;
};
template <int K>
struct SortedFor<K, int32_t, true> {
  using type = SortedLanes<K>;
};

// Which of `kRun` keys are greater than `than`, one bit each.
static inline uint32_t greater(const int32_t* keys, int32_t than) {
#ifdef __AVX512F__
  KeyLanes v;
  __builtin_memcpy(&v, keys, sizeof v);
  return __builtin_ia32_pcmpgtd512_mask(v, KeyLanes{} + than, 0xffff);
#else
  uint32_t found = 0;
  for (int lane = 0; lane < kRun; ++lane) found |= (uint32_t)(keys[lane] > than) << lane;
  return found;
#endif
}
static inline uint32_t greater(const i64* keys, i64 than) {
  uint32_t found = 0;
  for (int lane = 0; lane < kRun; ++lane) found |= (uint32_t)(keys[lane] > than) << lane;
  return found;
}

// Looks at the keys of n elements, numbered from `start` of their run on, and inserts those that may be among the first.
template <int K, class Integer, class KeyOf>
static inline void rank_keys(Sorted<K, Integer>& first, KeyOf key, i64 start, i64 n) {
  i64 i = start;
  for (; i + kRun <= start + n; i += kRun) {
    Integer keys[kRun];
#pragma omp simd
    for (int lane = 0; lane < kRun; ++lane) keys[lane] = key(i + lane);
    uint32_t hits = first.count < K ? 0xffffu : greater(keys, first.last());
    for (; hits; hits &= hits - 1) {
      const int lane = __builtin_ctz(hits);
      first.insert(keys[lane], (int32_t)i + lane);
    }
  }
  for (; i < start + n; ++i) first.insert(key(i), (int32_t)i);
}

constexpr int kChunk = 256;  // elements whose keys are held at once

// In lanes: the elements of a chunk are shared out among K groups or more; below the least of their greatest ones none can be first.
template <int K, class KeyOf>
static inline void rank_keys(SortedLanes<K>& first, KeyOf key, i64 start, i64 n) {
  constexpr int32_t none = -kGreatest<int32_t> - 1;
  constexpr int groups = K <= 2 ? 2 : K <= 4 ? 4 : K <= 8 ? 8 : 16;
  for (i64 at = start; at < start + n; at += kChunk) {
    const int count = (int)min_index(kChunk, start + n - at), padded = (int)round_up(count, 4 * kRun);
    int32_t keys[kChunk];
    int32_t most[kRun];
    for (int lane = 0; lane < kRun; ++lane) most[lane] = none;
#pragma omp simd
    for (int i = 0; i < count; ++i) keys[i] = key(at + i);
    for (int i = count; i < padded; ++i) keys[i] = none;
    for (int i = 0; i < padded; i += kRun)
#pragma omp simd
      for (int lane = 0; lane < kRun; ++lane) most[lane] = keys[i + lane] > most[lane] ? keys[i + lane] : most[lane];
    int32_t least = kGreatest<int32_t>;
    for (int lane = 0; lane < groups; ++lane) {
      int32_t top = most[lane];
      for (int other = lane + groups; other < kRun; other += groups) top = most[other] > top ? most[other] : top;
      least = top < least ? top : least;
    }
    const int32_t below = least == none ? none : least - 1;
    for (int i = 0; i < padded; i += 4 * kRun) {
      const int32_t than = first.last() > below ? first.last() : below;
      uint64_t hits = 0;
      for (int part = 0; part < 4; ++part) hits |= (uint64_t)greater(keys + i + part * kRun, than) << part * kRun;
      for (; hits; hits &= hits - 1) {
        const int place = i + __builtin_ctzll(hits);
        first.insert(keys[place], (int32_t)at + place);
      }
    }
  }
}

// The ranking `v`, `p` of K elements goes on with the run x of n elements, numbered from `base` on: after all that were before.
template <bool Largest, bool NanFirst, int K, bool Dense, class C, class T>
static inline void rank_run(C* v, i64 vs, i64* p, i64 ps, const T* x, i64 xs, i64 base, i64 n) {
  using Integer = Key<C>;
  const i64 step = Dense ? 1 : xs;
  typename SortedFor<K, Integer, (K <= kRun && sizeof(Integer) == 4)>::type first;
  C values[K];
  i64 places[K];
  first.start();
  for (int k = 0; k < K; ++k) {
    values[k] = v[k * vs];
    places[k] = p[k * ps];
    if (places[k] != kNothing) first.insert(key_of<Largest, NanFirst>(values[k]), ~k);
  }
  rank_keys(first, [&](i64 i) { return key_of<Largest, NanFirst>((C)load(x[i * step])); }, 0, n);
  for (int k = 0; k < first.count; ++k) {
    const int32_t from = first.from[k];
    v[k * vs] = from < 0 ? values[~from] : (C)load(x[from * step]);
    p[k * ps] = from < 0 ? places[~from] : base + from;
  }
}

// The same of one element: the first of each lane, and then the first of these.
template <bool Largest, bool NanFirst, bool Dense, class C, class T>
static inline void rank_one(C* v, i64* p, const T* x, i64 xs, i64 base, i64 n) {
  using Integer = Key<C>;
  constexpr int kLanesOfOne = 2 * kRun;
  const i64 step = Dense ? 1 : xs;
  const auto key = [&](i64 i) { return key_of<Largest, NanFirst>((C)load(x[i * step])); };
  Integer best = key(0);
  i64 at = 0, i = 1;
  if (n >= kLanesOfOne) {
    Integer keys[kLanesOfOne], block[kLanesOfOne];
#pragma omp simd
    for (int lane = 0; lane < kLanesOfOne; ++lane) {
      keys[lane] = key(lane);
      block[lane] = 0;
    }
    for (i = kLanesOfOne; i + kLanesOfOne <= n; i += kLanesOfOne) {
#pragma omp simd
      for (int lane = 0; lane < kLanesOfOne; ++lane) {
        const Integer k = key(i + lane);
        const bool before = k > keys[lane];
        keys[lane] = before ? k : keys[lane];
        block[lane] = before ? (Integer)i : block[lane];
      }
    }
    best = keys[0];
#pragma omp simd reduction(max : best)
    for (int lane = 0; lane < kLanesOfOne; ++lane) best = keys[lane] > best ? keys[lane] : best;
    Integer lowest = kGreatest<Integer>;
#pragma omp simd reduction(min : lowest)
    for (int lane = 0; lane < kLanesOfOne; ++lane) {
      const Integer here = keys[lane] == best ? block[lane] + lane : kGreatest<Integer>;
      lowest = here < lowest ? here : lowest;
    }
    at = lowest;
  }
  for (; i < n; ++i) {
    const Integer k = key(i);
    at = k > best ? i : at;
    best = k > best ? k : best;
  }
  if (*p == kNothing || best > key_of<Largest, NanFirst>(*v)) {
    *v = (C)load(x[at * step]);
    *p = base + at;
  }
}

template <bool Largest, bool NanFirst, int K, class C, class T>
static inline void rank(C* v, i64 vs, i64* p, i64 ps, const T* x, i64 xs, i64 base, i64 n) {
  constexpr i64 kMost = (i64)1 << 30;  // places within a run are 32 bits wide
  for (i64 start = 0; start < n; start += kMost) {
    const i64 count = min_index(kMost, n - start);
    const T* const from = x + start * xs;
    if constexpr (K == 1) {
      if (xs == 1) rank_one<Largest, NanFirst, true>(v, p, from, xs, base + start, count);
      else rank_one<Largest, NanFirst, false>(v, p, from, xs, base + start, count);
    } else {
      if (xs == 1) rank_run<Largest, NanFirst, K, true>(v, vs, p, ps, from, xs, base + start, count);
      else rank_run<Largest, NanFirst, K, false>(v, vs, p, ps, from, xs, base + start, count);
    }
  }
}

// The ranking `v`, `p` and another one, or a single element: n values x that are in order already, with their numbers.
template <bool Largest, bool NanFirst, int K, class C, class T>
static inline void rank_both(C* v, i64 vs, i64* p, i64 ps, const T* x, i64 xs, const i64* numbers, i64 ns, i64 n) {
  C values[K];
  i64 places[K];
  for (int k = 0; k < K; ++k) {
    values[k] = v[k * vs];
    places[k] = p[k * ps];
  }
  i64 i = 0, j = 0;
  for (int k = 0; k < K; ++k) {
    const i64 there = i < K ? places[i] : kNothing, other = j < n ? numbers[j * ns] : kNothing;
    bool new_one = other != kNothing;
    if (new_one && there != kNothing) {
      const Key<C> old = key_of<Largest, NanFirst>(values[i]), key = key_of<Largest, NanFirst>((C)load(x[j * xs]));
      new_one = key > old || (key == old && other < there);
    }
    if (!new_one && there == kNothing) return;
    v[k * vs] = new_one ? (C)load(x[j * xs]) : values[i];
    p[k * ps] = new_one ? other : there;
    j += new_one;
    i += !new_one;
  }
}

}  // namespace weft
