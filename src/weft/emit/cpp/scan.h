// Elements along an axis, each combined with all that come before it: sums, products and extrema up to each element.
//
// Out of place or in place; strides are in elements. What is combined is carried in a type of its own, and rounded once for each result.
#pragma once

#include <string.h>

#include <limits>
#include <type_traits>
#include <utility>

#include "prelude.h"

namespace weft {

// How two are combined, numbers or vectors of them; and what changes nothing that it is combined with. Integers wrap: they are
// combined as unsigned ones.
struct UpSum {
  template <class V>
  static WEFT_INLINE V of(V a, V b) { return a + b; }
  template <class W>
  static constexpr W none() { return 0; }
};
struct UpProd {
  template <class V>
  static WEFT_INLINE V of(V a, V b) { return a * b; }
  template <class W>
  static constexpr W none() { return 1; }
};
struct UpMax {
  template <class V>
  static WEFT_INLINE V of(V a, V b) {
    V greater = b >= a ? b : a;  // of 0 and -0 the later, as eager
    return b != b ? b : greater;
  }
  template <class W>
  static constexpr W none() {
    using Range = std::numeric_limits<W>;
    return Range::has_infinity ? -Range::infinity() : Range::lowest();
  }
};
struct UpMin {
  template <class V>
  static WEFT_INLINE V of(V a, V b) {
    V less = b <= a ? b : a;
    return b != b ? b : less;
  }
  template <class W>
  static constexpr W none() {
    using Range = std::numeric_limits<W>;
    return Range::has_infinity ? Range::infinity() : Range::max();
  }
};

template <class Op, class A>
struct Combined {
  using type = A;
};
template <>
struct Combined<UpSum, i64> {
  using type = uint64_t;
};
template <>
struct Combined<UpProd, i64> {
  using type = uint64_t;
};

// As many neighbours as a register holds; of factors of 64 bits four at most, whose product cannot leave fp64's range if they are fp32.
#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
template <class Op, class W>
constexpr int kAbreast = (sizeof(W) == 8 && kRegister > 32 && std::is_same_v<Op, UpProd> ? 32 : kRegister) / (int)sizeof(W);
template <class W, int Count>
struct Neighbours {
  typedef W type __attribute__((vector_size(Count * sizeof(W))));
};
template <class Op, class W>
using Lanes = typename Neighbours<W, kAbreast<Op, W>>::type;

// The lanes of two vectors, those of `a` first, that have these numbers.
template <class Op, class W, int... At>
static WEFT_INLINE Lanes<Op, W> lanes_at(Lanes<Op, W> a, Lanes<Op, W> b, std::integer_sequence<int, At...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, At...);
#else
  using Place = std::conditional_t<sizeof(W) == 8, i64, int32_t>;
  return __builtin_shuffle(a, b, Lanes<Op, Place>{At...});
#endif
}
// The lanes of `v` so many places further up; below them the last of `before`, which came before `v`.
template <int By, class Op, class W, int... Lane>
static WEFT_INLINE Lanes<Op, W> moved_up(Lanes<Op, W> v, Lanes<Op, W> before, std::integer_sequence<int, Lane...>) {
  constexpr int wide = kAbreast<Op, W>;
  return lanes_at<Op, W>(v, before, std::integer_sequence<int, (Lane < By ? 2 * wide - By + Lane : Lane - By)...>{});
}

// Combines each element with those of the register's width before it: with the next before it, these with those two before, and so on.
// With what all came to so many elements earlier, that is all up to the element, and no lane waits for another.
template <class Op, class W>
struct Run {
  static constexpr int wide = kAbreast<Op, W>;
  static constexpr int steps = wide == 16 ? 4 : wide == 8 ? 3 : wide == 4 ? 2 : 1;
  Lanes<Op, W> before[steps];
  WEFT_INLINE Run() {
#pragma GCC unroll 16
    for (auto& each : before) each = Op::template none<W>() - Lanes<Op, W>{};
  }
  template <int Step = 0>
  WEFT_INLINE Lanes<Op, W> of(Lanes<Op, W> v) {
    if constexpr (Step < steps) {
      const Lanes<Op, W> earlier = moved_up<(1 << Step), Op, W>(v, before[Step], std::make_integer_sequence<int, wide>{});
      before[Step] = v;
      return of<Step + 1>(Op::of(earlier, v));
    }
    return v;
  }
};

// Elements as what they are combined as, and back.
template <class W, class T>
constexpr bool kAsNumbers = sizeof(T) == sizeof(W) && std::is_arithmetic_v<T>&& std::is_floating_point_v<T> == std::is_floating_point_v<W>;
template <class W, class T>
constexpr bool kInRegisters = kAsNumbers<W, T> || (std::is_same_v<T, float> && std::is_same_v<W, double>);
template <class Op, class W, class T>
static WEFT_INLINE Lanes<Op, W> lanes_from(const T* at) {
  Lanes<Op, W> found;
  if constexpr (kAsNumbers<W, T>)
    memcpy(&found, at, sizeof found);
  else
#pragma GCC unroll 16
    for (int lane = 0; lane < kAbreast<Op, W>; ++lane) found[lane] = (W)at[lane];
  return found;
}
template <class Op, class T, class W>
static WEFT_INLINE void put_lanes(T* at, Lanes<Op, W> v) {
  if constexpr (kAsNumbers<W, T>) {
    memcpy(at, &v, sizeof v);
  } else {
    const auto narrow = __builtin_convertvector(v, typename Neighbours<T, kAbreast<Op, W>>::type);
    memcpy(at, &narrow, sizeof narrow);
  }
}

// Whether elements may be combined before what comes before them is. Where this leaves the range of the type, or what comes before them
// times them, or and them, does, or comes back from there, the order shows; such a window goes one by one. Products of four fp32 numbers
// are in the range of fp64, those of two fp64 ones need not be.
enum class Window { always, if_plain, never };
template <class Op, class W, class I>
constexpr Window kInWindows = Window::always;
template <class I>
constexpr Window kInWindows<UpProd, double, I> = Window::if_plain;
template <>
constexpr Window kInWindows<UpProd, double, double> = Window::never;
template <>
constexpr Window kInWindows<UpSum, double, double> = Window::if_plain;

// Zeros where numbers are finite and, if they are factors, neither 0 nor too small for all their digits.
template <class Op, bool Factors = std::is_same_v<Op, UpProd>>
static WEFT_INLINE Lanes<Op, i64> odd_lanes(Lanes<Op, double> v) {
  constexpr uint64_t exponents = 0x7ff;
  constexpr uint64_t least = Factors ? 1 : 0;
  Lanes<Op, uint64_t> bits;
  memcpy(&bits, &v, sizeof bits);
  return (Lanes<Op, i64>)((bits << 1) - (least << 53) >= ((exponents - least) << 53));
}
// Lanes that stay what they are, or turn into no number, whatever they are combined with: infinities and NaN, and zeros among factors.
template <class Op>
static WEFT_INLINE Lanes<Op, i64> settled_lanes(Lanes<Op, double> v) {
  const Lanes<Op, i64> beyond = odd_lanes<Op, false>(v);
  if constexpr (std::is_same_v<Op, UpProd>) return beyond | (Lanes<Op, i64>)(v == 0.0);
  return beyond;
}
// Whether windows that come to `v` alone took what came before, `from`, to `up_to` as one by one would have: nothing left the range there,
// or lost digits below it.
template <class Op>
static WEFT_INLINE bool are_plain(const Lanes<Op, double>* v, int count, Lanes<Op, double> from, const Lanes<Op, double>* up_to) {
  static_assert(!std::is_same_v<Op, UpProd> || kAbreast<Op, double> <= 4, "products of more fp32 numbers may be too large for fp64");
  Lanes<Op, i64> odd = odd_lanes<Op>(up_to[count - 1]);
#pragma GCC unroll 16
  for (int k = 0; k + 1 < (std::is_same_v<Op, UpProd> ? count : 0); ++k) odd |= odd_lanes<Op>(up_to[k]);
  odd &= ~settled_lanes<Op>(from);
#pragma GCC unroll 16
  for (int k = 0; k < (std::is_same_v<Op, UpSum> ? count : 0); ++k) odd |= odd_lanes<Op>(v[k]);
  i64 any = 0;
#pragma GCC unroll 16
  for (int lane = 0; lane < kAbreast<Op, double>; ++lane) any |= odd[lane];
  return any == 0;
}

// One row, dense, of what were once elements of type `From`: what it comes to with `acc`. A window of a few registers waits for what
// came before it but once.
template <class Op, class A, class From, class O, class I>
static WEFT_INLINE A prefix_numbers(O* out, const I* in, i64 n, A acc) {
  using W = typename Combined<Op, A>::type;
  constexpr int many = 4, wide = kAbreast<Op, W>;
  constexpr Window windows = kInWindows<Op, W, From>;
  Lanes<Op, W> all = (W)acc - Lanes<Op, W>{};
  Run<Op, W> run;
  i64 i = 0;
  const auto singly = [&](i64 stop) {
    W before = all[wide - 1];
    for (; i < stop; ++i) {
      before = Op::of(before, (W)in[i]);
      out[i] = (O)before;
    }
    all = before - Lanes<Op, W>{};
  };
  while (windows != Window::never && i + many * wide <= n) {
    Lanes<Op, W> v[many];
#pragma GCC unroll 16
    for (int k = 0; k < many; ++k) v[k] = run.of(lanes_from<Op, W>(in + i + k * wide));
    Lanes<Op, W> up_to[many];
#pragma GCC unroll 16
    for (int k = 0; k < many; ++k) up_to[k] = Op::of(k > 0 ? up_to[k - 1] : all, v[k]);
    if constexpr (windows == Window::if_plain)
      if (!are_plain<Op>(v, many, all, up_to)) {
        singly(i + many * wide);
        run = {};
        continue;
      }
#pragma GCC unroll 16
    for (int k = 0; k < many; ++k) put_lanes<Op, O, W>(out + i + k * wide, up_to[k]);
    all = up_to[many - 1];
    i += many * wide;
  }
  singly(n);
  return (A)all[wide - 1];
}

// The same for elements of any types: those that no register holds as they lie are converted, some hundreds at a time.
template <class Op, class A, class O, class I>
static WEFT_INLINE A prefix_row(O* out, const I* in, i64 n, A acc) {
  using W = typename Combined<Op, A>::type;
  if constexpr (kInRegisters<W, O> && kInRegisters<W, I>) {
    return prefix_numbers<Op, A, I>(out, in, n, acc);
  } else {
    constexpr i64 most = 512;
    alignas(kRegister) W some[most];
    for (i64 i = 0; i < n; i += most) {
      const i64 count = min_index(n - i, most);
#pragma omp simd
      for (i64 k = 0; k < count; ++k) some[k] = (W)load(in[i + k]);
      acc = prefix_numbers<Op, A, I>(some, some, count, acc);
#pragma omp simd
      for (i64 k = 0; k < count; ++k) store(out + i + k, (A)some[k]);
    }
    return acc;
  }
}

// Rows side by side: element after element of all of them.
template <class Op, class A, class O, class I>
static WEFT_INLINE void prefix_columns(
    O* out, i64 out_along, i64 out_rows, const I* in, i64 in_along, i64 in_rows, A* total, i64 total_rows, i64 n, i64 rows) {
  using W = typename Combined<Op, A>::type;
  for (i64 i = 0; i < n; ++i) {
#pragma omp simd
    for (i64 r = 0; r < rows; ++r) {
      W made = Op::of((W)total[r * total_rows], (W)load(in[i * in_along + r * in_rows]));
      total[r * total_rows] = (A)made;
      store(&out[i * out_along + r * out_rows], (A)made);
    }
  }
}

// Combine the `n` elements of each of `rows` rows with `acc`, one for each row, and with those before: results in `out`, and in
// `total` what each row comes to. Each has a stride along a row, if it has elements there, and one from row to row.
template <class Op, class A, class O, class I>
static inline void prefix(O* out, i64 out_along, i64 out_rows, const I* in, i64 in_along, i64 in_rows, A* total, i64 total_rows,
                          const A* acc, i64 acc_rows, i64 n, i64 rows) {
  if (out_along == 1 && in_along == 1) {
    for (i64 r = 0; r < rows; ++r)
      total[r * total_rows] = prefix_row<Op, A>(out + r * out_rows, in + r * in_rows, n, acc[r * acc_rows]);
    return;
  }
  for (i64 r = 0; r < rows; ++r) total[r * total_rows] = acc[r * acc_rows];
  if (out_rows == 1 && in_rows == 1 && total_rows == 1)
    prefix_columns<Op, A>(out, out_along, 1, in, in_along, 1, total, 1, n, rows);
  else
    prefix_columns<Op, A>(out, out_along, out_rows, in, in_along, in_rows, total, total_rows, n, rows);
}

}  // namespace weft
