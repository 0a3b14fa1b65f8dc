// Elements along an axis, each combined with all that come before it: sums, products and extrema up to each element.
//
// Out of place or in place; strides are in elements. What is combined is carried in a type of its own, and rounded once for each result.
#pragma once

#include <string.h>

#include "prelude.h"

namespace weft {

// How two are combined, numbers or vectors of them. Integers wrap: they are combined as unsigned ones.
struct UpSum {
  template <class V>
  static WEFT_INLINE V of(V a, V b) { return a + b; }
};
struct UpProd {
  template <class V>
  static WEFT_INLINE V of(V a, V b) { return a * b; }
};
struct UpMax {
  template <class V>
  static WEFT_INLINE V of(V a, V b) {
    V greater = b >= a ? b : a;  // of 0 and -0 the later, as eager
    return b != b ? b : greater;
  }
};
struct UpMin {
  template <class V>
  static WEFT_INLINE V of(V a, V b) {
    V less = b <= a ? b : a;
    return b != b ? b : less;
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

// Four neighbours.
template <class W>
struct Four {
  typedef W type __attribute__((vector_size(4 * sizeof(W))));
};
template <class W>
using Lanes = typename Four<W>::type;

#if defined(__clang__)
#define WEFT_FOUR(W, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
template <int Bytes>
struct Places {
  using type = i64;
};
template <>
struct Places<4> {
  using type = int32_t;
};
#define WEFT_FOUR(W, a, b, ...) __builtin_shuffle(a, b, Lanes<typename Places<sizeof(W)>::type>{__VA_ARGS__})
#endif

template <class W, class I>
static WEFT_INLINE Lanes<W> four_of(const I* at) {
  return Lanes<W>{(W)load(at[0]), (W)load(at[1]), (W)load(at[2]), (W)load(at[3])};
}
template <>
WEFT_INLINE Lanes<double> four_of<double, float>(const float* at) {
  Lanes<float> narrow;
  memcpy(&narrow, at, sizeof narrow);
  return __builtin_convertvector(narrow, Lanes<double>);
}
template <>
WEFT_INLINE Lanes<double> four_of<double, double>(const double* at) {
  Lanes<double> found;
  memcpy(&found, at, sizeof found);
  return found;
}
template <>
WEFT_INLINE Lanes<float> four_of<float, float>(const float* at) {
  Lanes<float> found;
  memcpy(&found, at, sizeof found);
  return found;
}

template <class A, class O, class W>
static WEFT_INLINE void put_four(O* at, Lanes<W> v) {
  for (int lane = 0; lane < 4; ++lane) store(at + lane, (A)v[lane]);
}
template <>
WEFT_INLINE void put_four<double, float, double>(float* at, Lanes<double> v) {
  Lanes<float> narrow = __builtin_convertvector(v, Lanes<float>);
  memcpy(at, &narrow, sizeof narrow);
}
template <>
WEFT_INLINE void put_four<double, double, double>(double* at, Lanes<double> v) { memcpy(at, &v, sizeof v); }
template <>
WEFT_INLINE void put_four<float, float, float>(float* at, Lanes<float> v) { memcpy(at, &v, sizeof v); }

// Whether the elements of a window, of type I, may be combined before what comes before them is. Products of a few numbers may be
// infinite, where times 0, which comes before, they are 0; and so may sums of numbers as wide as they are carried.
template <class Op, class W, class I>
constexpr bool kInWindows = true;
template <class I>
constexpr bool kInWindows<UpProd, double, I> = false;
template <>
constexpr bool kInWindows<UpSum, double, double> = false;

// The lanes of `v`, each combined with those before it.
template <class Op, class W>
static WEFT_INLINE Lanes<W> up_to_each(Lanes<W> v) {
  v = WEFT_FOUR(W, v, Op::of(WEFT_FOUR(W, v, v, 0, 0, 1, 2), v), 0, 5, 6, 7);
  return WEFT_FOUR(W, v, Op::of(WEFT_FOUR(W, v, v, 0, 0, 0, 1), v), 0, 1, 6, 7);
}

// One row, dense: what it comes to with `acc`. Sixteen elements wait for what came before them but once.
template <class Op, class A, class O, class I>
static WEFT_INLINE A prefix_row(O* out, const I* in, i64 n, A acc) {
  using W = typename Combined<Op, A>::type;
  using V = Lanes<W>;
  W before = (W)acc;
  i64 i = 0;
  for (; kInWindows<Op, W, I> && i + 16 <= n; i += 16) {
    V v[4], all[4], carry = {before, before, before, before};
    for (int k = 0; k < 4; ++k) {
      v[k] = up_to_each<Op, W>(four_of<W>(in + i + 4 * k));
      all[k] = WEFT_FOUR(W, v[k], v[k], 3, 3, 3, 3);
      if (k > 0) all[k] = Op::of(all[k - 1], all[k]);
    }
    for (int k = 0; k < 4; ++k) put_four<A, O, W>(out + i + 4 * k, Op::of(k > 0 ? Op::of(carry, all[k - 1]) : carry, v[k]));
    before = Op::of(carry, all[3])[0];
  }
  for (; i < n; ++i) {
    before = Op::of(before, (W)load(in[i]));
    store(out + i, (A)before);
  }
  return (A)before;
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
