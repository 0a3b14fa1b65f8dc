// The vocabulary of generated kernels: numbers, scalar functions, scratch, staging, block products.
//
// Shapes are in elements and so are all strides. A block product accumulates in float; of doubles in double, of
// integers modulo 2^64. Everything here is
// right for any size, 0 included. Generated code is compiled without -ffast-math: NaN and inf keep
// their meaning, and only `omp simd reduction` reorders a sum. Includes are few on purpose: they
// are most of what a small kernel costs to compile.
//
// Shape of a generated kernel, out = f(x @ w), for block sizes mb, nb, kb:
//
//   #pragma omp parallel
//   {
//     weft::Scratch scratch(weft::scratch_bytes<float>(mb * nb) + weft::scratch_bytes<T>(weft::panel_elements<T>(kb, nb)));
//     float* sum = scratch.take<float>(mb * nb);
//     T* panel = scratch.take<T>(weft::panel_elements<T>(kb, nb));
//     weft::Products products;  // this thread will call weft::dot
//   #pragma omp for schedule(static)
//     for (blocks of n, then of m) {
//       for (blocks of k) { weft::stage_panel(panel, w block); weft::dot(sum, .., k0 > 0, x block, .., panel, ..); }
//       for (rows i) {
//   #pragma omp simd
//         for (columns j) weft::store(&out[..], f(sum[..]));
//       }
//     }
//   }
//
// A loop over k of no blocks calls no dot(): where K may be 0, zero() the sum first.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// A function that is compiled once, wherever it is called from: what is copied to its callers costs compilers more than it gains.
#if defined(__clang__)
#define WEFT_APART __attribute__((noinline))
#else
#define WEFT_APART __attribute__((noinline, noclone))
#endif
// One that kernels may share, compiled in a file of its own (WEFT_DOTS, below), which is linked into each of them.
#define WEFT_SHARED WEFT_APART __attribute__((visibility("hidden")))
// And one that is copied to its callers, whatever compilers think of its size.
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft {

using i64 = int64_t;  // sizes, strides, positions

static inline i64 min_index(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 max_index(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
// The row of a block that begins at `first` which has this number; one that is none of the block's comes out beyond it.
static WEFT_INLINE i64 row_of(i64 number, i64 first) { return (i64)((uint64_t)number - (uint64_t)first); }
// Where an index lies in a dimension of so many elements, 1 at least: one that is none, at the nearest; that is noted in `wrong`.
static WEFT_INLINE i64 place(i64 index, i64 size, i64* wrong) {
  if ((uint64_t)index < (uint64_t)size) return index;
  __atomic_store_n(wrong, 1, __ATOMIC_RELAXED);
  return index < 0 ? 0 : size - 1;
}
// The integer that a floating-point number is truncated to; the least one for NaN and for those that the type does not have, as the
// machine's own conversion makes it. C++ leaves the conversion of these undefined, and a compiler makes a truncation of one that goes
// back to a float. One comparison: of two, after a clamp, gcc makes branches.
template <class Int, class T>
static WEFT_INLINE Int whole(T v) {
  constexpr Int least = (Int)((uint64_t)1 << (8 * sizeof(Int) - 1));
  return (v < 0 ? -v : v) < -(T)least ? (Int)v : least;
}

// How often a value grows by 1 until it is no longer less than `limit`: at most what no loop counts to.
static WEFT_INLINE i64 steps_below(i64 value, i64 limit) { return value < limit ? limit - value : INT64_MAX; }
// What stands for elements that are not there, to be read so far on and back from: a loop that reads one or the other has no branch.
constexpr i64 kBeside = 1024;
template <class T>
alignas(64) const T nothing[2 * kBeside] = {};
template <class T>
static WEFT_INLINE const T* there_or_nothing(bool there, const T* first, i64 at) {
  return there ? first + at : nothing<T> + kBeside;
}
static inline i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

// How many of `threads` have something to do: at most one per program, and one more for each 16384 elements worked on.
// To wake a thread takes microseconds, and to wait for one on a busy machine milliseconds.
static inline int team(int threads, i64 programs, double work) {
  const double useful = 1 + work / 16384;
  const double most = useful < (double)programs ? useful : (double)programs;
  return most < 1 ? 1 : most < threads ? (int)most : threads;
}

template <class To, class From>
static inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To out;
  __builtin_memcpy(&out, &value, sizeof(To));
  return out;
}

// ---------------------------------------------------------------------------------------------- numbers

struct bf16 {
  uint16_t bits;
};
// f16 is converted by integer arithmetic: compilers vectorise that everywhere, which they do not with _Float16.
struct f16 {
  uint16_t bits;
};
// Eight bits: a sign, 4 or 5 of exponent, 3 or 2 of mantissa. e4m3 has no infinity and one NaN of either sign.
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

// A value of memory as the type that kernels compute in: float for narrow floating types, else itself.
static WEFT_INLINE float load(float v) { return v; }
static WEFT_INLINE float load(bf16 v) { return bits_as<float>((uint32_t)v.bits << 16); }
static WEFT_INLINE float load(f16 v) {
  const uint32_t sign = (uint32_t)(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = (uint32_t)(v.bits & 0x7fffu) << 13;
  // Scaling by 2^112 turns the exponent's bias of 15 into 127, for subnormal numbers too.
  const uint32_t scaled = bits_as<uint32_t>(bits_as<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;  // inf and NaN
  return bits_as<float>((magnitude >= 0x0f800000u ? special : scaled) | sign);
}
// Those below the normal numbers are counted, not scaled as f16's are: there are many, and a machine is slow on such floats.
static WEFT_INLINE float load(e4m3 v) {
  const int32_t magnitude = v.bits & 0x7f;
  const uint32_t counted = bits_as<uint32_t>((float)magnitude * 0x1p-9f);
  const uint32_t normal = ((uint32_t)magnitude << 20) + 0x3c000000u;
  const uint32_t found = magnitude < 8 ? counted : magnitude == 0x7f ? 0x7fc00000u : normal;
  return bits_as<float>(found | (uint32_t)(v.bits & 0x80u) << 24);
}
static WEFT_INLINE float load(e5m2 v) {
  const int32_t magnitude = v.bits & 0x7f;
  const uint32_t counted = bits_as<uint32_t>((float)magnitude * 0x1p-16f);
  const uint32_t normal = ((uint32_t)magnitude << 21) + 0x38000000u;
  const uint32_t special = ((uint32_t)magnitude << 21) | 0x7f800000u;  // inf and NaN
  const uint32_t found = magnitude < 4 ? counted : magnitude >= 0x7c ? special : normal;
  return bits_as<float>(found | (uint32_t)(v.bits & 0x80u) << 24);
}
template <class T>
static WEFT_INLINE T load(T v) {
  return v;
}
// An element of a mask, as a byte: of what selects by a bool that is loaded, GCC makes a jump and no vectors.
static WEFT_INLINE bool is_set(const bool& at) { return *(const unsigned char*)&at != 0; }

// Rounds to nearest even; NaN stays NaN.
static WEFT_INLINE bf16 round_bf16(float v) {
  const uint32_t u = bits_as<uint32_t>(v);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  return bf16{(uint16_t)(v != v ? quiet : rounded)};
}
static WEFT_INLINE f16 round_f16(float v) {
  const uint32_t u = bits_as<uint32_t>(v), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal: adding 0.5 leaves the rounded mantissa in the low bits.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t out = magnitude < 0x38800000u ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;
  out = magnitude > 0x7f800000u ? 0x7e00u : out;
  return f16{(uint16_t)(sign | out)};
}
// The same for 8 bits, `Mantissa` of them behind the point: the bits of |v|, a number that is not NaN, its exponent unbounded above.
template <int Mantissa, int Least>  // Least: of the normal numbers' exponents
static WEFT_INLINE uint32_t round_magnitude(uint32_t magnitude) {
  constexpr int kGone = 23 - Mantissa;
  constexpr uint32_t kNormal = (uint32_t)(Least + 127) << 23, kUnits = (uint32_t)(Least - Mantissa + 23 + 127) << 23;
  const uint32_t normal = (magnitude - (kNormal - (1u << 23)) + (1u << (kGone - 1)) - 1 + ((magnitude >> kGone) & 1u)) >> kGone;
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(kUnits)) - kUnits;
  return magnitude < kNormal ? subnormal : normal;
}
static WEFT_INLINE e5m2 round_e5m2(float v) {
  const uint32_t u = bits_as<uint32_t>(v), magnitude = u & 0x7fffffffu;
  uint32_t out = round_magnitude<2, -14>(magnitude);
  out = out > 0x7cu ? 0x7cu : out;
  out = magnitude > 0x7f800000u ? 0x7fu : out;
  return e5m2{(uint8_t)(u >> 24 & 0x80u | out)};
}
// What is too large, infinity too, becomes 448.
static WEFT_INLINE e4m3 round_e4m3(float v) {
  const uint32_t u = bits_as<uint32_t>(v), magnitude = u & 0x7fffffffu;
  uint32_t out = round_magnitude<3, -6>(magnitude);
  out = out > 0x7eu ? 0x7eu : out;
  out = magnitude > 0x7f800000u ? 0x7fu : out;
  return e4m3{(uint8_t)(u >> 24 & 0x80u | out)};
}
// How a kernel writes a computed value: store(&out[i], v).
static WEFT_INLINE void store(float* at, float v) { *at = v; }
static WEFT_INLINE void store(bf16* at, float v) { *at = round_bf16(v); }
static WEFT_INLINE void store(f16* at, float v) { *at = round_f16(v); }
static WEFT_INLINE void store(e4m3* at, float v) { *at = round_e4m3(v); }
static WEFT_INLINE void store(e5m2* at, float v) { *at = round_e5m2(v); }
template <class T, class V>
static WEFT_INLINE void store(T* at, V v) {
  *at = (T)v;
}
// A semantic cast inside an expression: the value that T would hold, as it is computed with.
template <class T>
static WEFT_INLINE auto rounded(float v) {
  T kept;
  store(&kept, v);
  return load(kept);
}

// --------------------------------------------------------------------------------------- scalar functions
//
// In float, without branches, and always in line, so that `omp simd` turns them into vector code: at -O2 GCC leaves a longer one
// that is called twice (erf, tanh) a call, and the loop scalar, which takes twenty times as long. Limits and NaN as in eager PyTorch.
// In double most come from the C library. Of integers, arithmetic wraps. The polynomials are near-minimax fits of our own; errors are
// stated in units in the last place (ulp) against exact arithmetic.

#define WEFT_INFINITY (__builtin_inff())
#define WEFT_NAN (__builtin_nanf(""))

// a * b + c; fused where the machine fuses for free, since a call to the library would cost far more.
static WEFT_INLINE float fma(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
static WEFT_INLINE double fma(double a, double b, double c) {
#ifdef __FP_FAST_FMA
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
static WEFT_INLINE uint64_t fma(uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }
static WEFT_INLINE int32_t fma(int32_t a, int32_t b, int32_t c) { return a * b + c; }

// x / c for one c and many x, a third of what a division costs: a product with the inverse, put right by what it leaves. What
// depends on c alone leaves the loop. The same number as x / c to the last bit, but perhaps for |x| < 2^-100, whose remainder may be
// too small for a float; a c whose inverse is no normal number is scaled together with x.
static WEFT_INLINE float over(float x, float c) {
#ifdef __FP_FAST_FMAF
  // No branch, not even on what is the same all along a loop: the loop would be left in scalar code.
  const int32_t e = bits_as<int32_t>(c) >> 23 & 0xff;
  const float scale = bits_as<float>((127 + 64 * ((int32_t)(e < 27) - (int32_t)(e > 226))) << 23);
  const float by = c * scale, inverse = 1.0f / by, y = x * scale;
  const float first = y * inverse;
  const float second = fma(fma(-first, by, y), inverse, first);
  // What infinities and NaN leave is no number, and of -0 it is 0.
  return __builtin_fabsf(second) > 0.0f ? second : first;
#else
  return x / c;
#endif
}

// if-then-else on values: both sides are computed, which keeps a loop in vector form.
template <class T>
static WEFT_INLINE T where(bool c, T a, T b) {
  return c ? a : b;
}

static WEFT_INLINE float abs(float x) { return __builtin_fabsf(x); }
static WEFT_INLINE float floor(float x) { return __builtin_floorf(x); }
static WEFT_INLINE float ceil(float x) { return __builtin_ceilf(x); }
static WEFT_INLINE float trunc(float x) { return __builtin_truncf(x); }
static WEFT_INLINE float round(float x) { return __builtin_nearbyintf(x); }  // ties to even, as torch.round
static WEFT_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
static WEFT_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static WEFT_INLINE float reciprocal(float x) { return 1.0f / x; }
static WEFT_INLINE float square(float x) { return x * x; }
static WEFT_INLINE float sign(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }  // 0 for NaN, as torch.sign
static WEFT_INLINE float copysign(float x, float s) { return __builtin_copysignf(x, s); }
static WEFT_INLINE bool isnan(float x) { return x != x; }
static WEFT_INLINE bool isinf(float x) { return __builtin_fabsf(x) == WEFT_INFINITY; }

static WEFT_INLINE double abs(double x) { return __builtin_fabs(x); }
static WEFT_INLINE double floor(double x) { return __builtin_floor(x); }
static WEFT_INLINE double ceil(double x) { return __builtin_ceil(x); }
static WEFT_INLINE double trunc(double x) { return __builtin_trunc(x); }
static WEFT_INLINE double round(double x) { return __builtin_nearbyint(x); }
static WEFT_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
static WEFT_INLINE double sign(double x) { return (double)((x > 0.0) - (x < 0.0)); }
static WEFT_INLINE bool isnan(double x) { return x != x; }
static WEFT_INLINE bool isinf(double x) { return __builtin_fabs(x) == WEFT_INFINITY; }

static WEFT_INLINE i64 wrapping_mul(i64 a, i64 b) { return (i64)((uint64_t)a * (uint64_t)b); }
static WEFT_INLINE i64 abs(i64 x) { return x < 0 ? (i64)(0 - (uint64_t)x) : x; }
static WEFT_INLINE i64 floor(i64 x) { return x; }
static WEFT_INLINE i64 ceil(i64 x) { return x; }
static WEFT_INLINE i64 trunc(i64 x) { return x; }
static WEFT_INLINE i64 round(i64 x) { return x; }
static WEFT_INLINE i64 sign(i64 x) { return (x > 0) - (x < 0); }
static WEFT_INLINE bool isnan(i64) { return false; }
static WEFT_INLINE bool isinf(i64) { return false; }
// base to the power of a whole exponent, wrapping; 1 / base truncated for a negative one, as torch.pow.
static inline i64 pow(i64 base, i64 exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  i64 out = 1;
  for (; exponent; exponent >>= 1, base = wrapping_mul(base, base))
    if (exponent & 1) out = wrapping_mul(out, base);
  return out;
}
// Quotients of integers, rounded towards minus infinity and towards 0. Nothing divides by 0: by 0 they are 0, and the
// most negative number by -1 is itself, where the machine would trap.
static WEFT_INLINE i64 trunc_divide(i64 a, i64 b) {
  const bool negates = b == -1;
  const i64 quotient = a / (b == 0 || negates ? 1 : b);
  return b == 0 ? 0 : negates ? (i64)(0 - (uint64_t)a) : quotient;
}
static WEFT_INLINE i64 fmod(i64 a, i64 b) { return (i64)((uint64_t)a - (uint64_t)wrapping_mul(trunc_divide(a, b), b)); }
static WEFT_INLINE i64 floor_divide(i64 a, i64 b) {
  const i64 quotient = trunc_divide(a, b);
  const i64 rest = (i64)((uint64_t)a - (uint64_t)wrapping_mul(quotient, b));
  return quotient - (b != 0 && rest != 0 && (rest < 0) != (b < 0));
}
// Shifts of integers that are held in 64 bits but have `bits`: by less than 0 or at least that many, nothing but the sign is left.
static WEFT_INLINE i64 bitwise_left_shift(i64 a, i64 by) { return (uint64_t)by > 63 ? 0 : (i64)((uint64_t)a << by); }
static WEFT_INLINE i64 bitwise_right_shift(i64 a, i64 by) { return a >> ((uint64_t)by > 63 ? 63 : by); }

// NaN on either side gives NaN. Of a running extremum a, the machine's own one keeps a NaN; whether b is one is known before a is.
template <class T>
static WEFT_INLINE T unless_nan(T value, T b) {
  return b != b ? b : value;
}
static WEFT_INLINE float maximum(float a, float b) { return unless_nan(b > a ? b : a, b); }
static WEFT_INLINE float minimum(float a, float b) { return unless_nan(b < a ? b : a, b); }
static WEFT_INLINE double maximum(double a, double b) { return unless_nan(b > a ? b : a, b); }
static WEFT_INLINE double minimum(double a, double b) { return unless_nan(b < a ? b : a, b); }
// One of two numbers, by a condition that is the same all along a loop: in bits, since compilers make no vector code of a choice so.
template <class T, class Bits>
static WEFT_INLINE T by_bits(bool first, T a, T b) {
  const Bits mask = (Bits)0 - (Bits)first;
  return bits_as<T>((Bits)((bits_as<Bits>(a) & mask) | (bits_as<Bits>(b) & ~mask)));
}
static WEFT_INLINE float either(bool first, float a, float b) { return by_bits<float, uint32_t>(first, a, b); }
static WEFT_INLINE double either(bool first, double a, double b) { return by_bits<double, uint64_t>(first, a, b); }
static WEFT_INLINE float relu(float x) { return x < 0.0f ? 0.0f : x; }
static WEFT_INLINE float clamp(float x, float lo, float hi) { return minimum(maximum(x, lo), hi); }

// The same for every other arithmetic type.
template <class T>
static WEFT_INLINE T maximum(T a, T b) {
  return a > b ? a : b;
}
template <class T>
static WEFT_INLINE T minimum(T a, T b) {
  return a < b ? a : b;
}

// The shared middle of exp and expm1: x = k ln 2 + r with a whole k; gives e^r - 1.
constexpr float kWhole = 0x1.8p23f;  // added to a float, it leaves its nearest whole number in the low bits
static WEFT_INLINE float exp_parts(float x, float* k) {
  *k = fma(x, 1.44269504f, kWhole) - kWhole;
  float r = fma(*k, -0.693359375f, x);  // ln 2 in two parts, the first exact when multiplied by k
  r = fma(*k, 2.12194440e-4f, r);
  float q = 1.9789264e-04f;
  q = fma(q, r, 1.3945752e-03f);
  q = fma(q, r, 8.333504e-03f);
  q = fma(q, r, 4.166628e-02f);
  q = fma(q, r, 1.6666666e-01f);
  q = fma(q, r, 5.0e-01f);
  return fma(q * r, r, r);
}
// 2^k for a whole k that was left in the low bits of `bits`.
static WEFT_INLINE float power_in(float bits) { return bits_as<float>((bits_as<int32_t>(bits) << 23) + 0x3f800000); }

// 1 ulp; subnormal results included.
static WEFT_INLINE float exp(float x) {
  float c = x < -104.0f ? -104.0f : x;  // below: 0, above: inf; NaN passes both comparisons
  c = c > 89.0f ? 89.0f : c;
  float k;
  const float p = exp_parts(c, &k) + 1.0f;
  // In two factors, since 2^k alone may not be a float; neither ever leaves the floats.
  const float half = fma(k, 0.5f, kWhole), rest = (k - (half - kWhole)) + kWhole;
  return p * power_in(half) * power_in(rest);
}

// The same where 2^k is a float, -87 < x < 88: half the work beside the polynomial. NaN stays.
static WEFT_INLINE float exp_inside(float x) {
  float k;
  const float p = exp_parts(x, &k) + 1.0f;
  return p * power_in(k + kWhole);
}

// e^x for x <= 0, as significands are made: 1 ulp, subnormal results included, of which there may be a logarithm.
static WEFT_INLINE float decay(float x) {
  float k;
  const float p = exp_parts(x, &k) + 1.0f;
  return x < -104.0f ? 0.0f : p * power_in(k + (kWhole + 64.0f)) * 0x1p-64f;  // 2^k alone may be below the normal numbers
}
// The same to 2^-18 of its value, exact at 0, and 0 below the normal numbers: for what is kept in 16 bits, of which half the work
// is not seen.
static WEFT_INLINE float coarse_decay(float x) {
  const float whole = fma(x, 1.44269504f, kWhole), f = fma(x, 1.44269504f, kWhole - whole);
  float p = 9.5828532e-03f;
  p = fma(p, f, 5.59064252e-02f);
  p = fma(p, f, 2.40240986e-01f);
  p = fma(p, f, 6.93124193e-01f);
  p = fma(p, f, 1.0f);
  return x < -87.3f ? 0.0f : p * power_in(whole);
}

// 2 ulp, near 0 too.
static WEFT_INLINE float expm1(float x) {
  float c = x < -18.0f ? -18.0f : x;
  c = c > 89.0f ? 89.0f : c;
  float k;
  const float p = exp_parts(c, &k);
  const float half = fma(k, 0.5f, kWhole), rest = (k - (half - kWhole)) + kWhole;
  const float a = power_in(half), b = power_in(rest);
  // 2^k p + (2^k - 1); when 2^k is beyond float, the 1 has long stopped to count.
  const float scale = a * b;
  const float y = k > 126.0f ? (p + 1.0f) * a * b : fma(p, scale, scale - 1.0f);
  return x == 0.0f ? x : y;
}

// 1 ulp; log(0) = -inf, log(x < 0) = NaN.
static WEFT_INLINE float log(float x) {
  const float scaled = x * 0x1p23f;
  const bool tiny = x < 0x1p-126f;
  const int32_t u = bits_as<int32_t>(tiny ? scaled : x);
  const int32_t e = (u - 0x3f2aaaab) >> 23;  // mantissa into [2/3, 4/3)
  const float f = bits_as<float>(u - (int32_t)((uint32_t)e << 23)) - 1.0f;
  const float k = (float)e - (tiny ? 23.0f : 0.0f);
  float q = 1.20281294e-01f;
  q = fma(q, f, -1.2865308e-01f);
  q = fma(q, f, 1.07493825e-01f);
  q = fma(q, f, -1.2191666e-01f);
  q = fma(q, f, 1.4304829e-01f);
  q = fma(q, f, -1.6679834e-01f);
  q = fma(q, f, 1.9999588e-01f);
  q = fma(q, f, -2.4999815e-01f);
  q = fma(q, f, 3.3333337e-01f);
  const float ff = f * f;
  float y = fma(q * f, ff, -2.12194440e-4f * k);
  y = fma(-0.5f, ff, y) + f;
  y = fma(k, 0.693359375f, y);
  y = x == WEFT_INFINITY ? x : y;
  y = x == 0.0f ? -WEFT_INFINITY : y;
  return (x < 0.0f) | (x != x) ? WEFT_NAN : y;
}

static WEFT_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static WEFT_INLINE float silu(float x) { return x / (1.0f + exp(-x)); }

// 2 ulp.
static WEFT_INLINE float tanh(float x) {
  const float a = __builtin_fabsf(x), u = x * x;
  float q = 2.1309033e-03f;
  q = fma(q, u, -8.165034e-03f);
  q = fma(q, u, 2.169607e-02f);
  q = fma(q, u, -5.3945992e-02f);
  q = fma(q, u, 1.33332e-01f);
  q = fma(q, u, -3.333333e-01f);
  const float small = fma(q * u, x, x);
  const float c = a > 10.0f ? 10.0f : a;  // tanh(10) is 1 in float
  const float large = 1.0f - 2.0f / (exp_inside(c + c) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? small : large, x);
}

// 2 ulp.
static WEFT_INLINE float erf(float x) {
  const float a = __builtin_fabsf(x), u = x * x;
  float r = 8.4099214e-05f;
  r = fma(r, u, -8.1526284e-04f);
  r = fma(r, u, 5.2019604e-03f);
  r = fma(r, u, -2.68598e-02f);
  r = fma(r, u, 1.1283703e-01f);
  r = fma(r, u, -3.7612635e-01f);
  r = fma(r, u, 1.2837917e-01f);
  const float small = fma(r, x, x);
  const float c = a > 4.0f ? 4.0f : a;  // erf(4) is 1 in float
  float g = 2.0909512e-05f;             // -log(1 - erf c)
  g = fma(g, c, -4.3230254e-04f);
  g = fma(g, c, 4.160525e-03f);
  g = fma(g, c, -2.5091492e-02f);
  g = fma(g, c, 1.0823661e-01f);
  g = fma(g, c, 6.333867e-01f);
  g = fma(g, c, 1.1294951e+00f);
  g = fma(g, c, -1.7055146e-04f);
  const float large = 1.0f - exp_inside(-g);
  return a < 0.92f ? small : __builtin_copysignf(large, x);
}

// Rarer functions come from the C library. glibc has vector versions of them (libmvec, at most 4 ulp), which
// a compiler uses under `omp simd` only if told here: glibc's own header tells it under -ffast-math alone.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_VECTOR __attribute__((simd("notinbranch")))
#if __GLIBC_PREREQ(2, 35)
#define WEFT_VECTOR_2_35 WEFT_VECTOR
#endif
#endif
#ifndef WEFT_VECTOR
#define WEFT_VECTOR
#endif
#ifndef WEFT_VECTOR_2_35
#define WEFT_VECTOR_2_35
#endif

}  // namespace weft

extern "C" {
WEFT_VECTOR float sinf(float) noexcept;
WEFT_VECTOR float cosf(float) noexcept;
WEFT_VECTOR float powf(float, float) noexcept;
WEFT_VECTOR_2_35 float tanf(float) noexcept;
WEFT_VECTOR_2_35 float asinf(float) noexcept;
WEFT_VECTOR_2_35 float acosf(float) noexcept;
WEFT_VECTOR_2_35 float atanf(float) noexcept;
WEFT_VECTOR_2_35 float sinhf(float) noexcept;
WEFT_VECTOR_2_35 float coshf(float) noexcept;
WEFT_VECTOR_2_35 float asinhf(float) noexcept;
WEFT_VECTOR_2_35 float acoshf(float) noexcept;
WEFT_VECTOR_2_35 float atanhf(float) noexcept;
WEFT_VECTOR_2_35 float exp2f(float) noexcept;
WEFT_VECTOR_2_35 float log2f(float) noexcept;
WEFT_VECTOR_2_35 float log10f(float) noexcept;
WEFT_VECTOR_2_35 float log1pf(float) noexcept;
WEFT_VECTOR_2_35 float erfcf(float) noexcept;
WEFT_VECTOR_2_35 float atan2f(float, float) noexcept;
float fmodf(float, float) noexcept;
WEFT_VECTOR double exp(double) noexcept;
WEFT_VECTOR double log(double) noexcept;
WEFT_VECTOR double sin(double) noexcept;
WEFT_VECTOR double cos(double) noexcept;
WEFT_VECTOR double pow(double, double) noexcept;
WEFT_VECTOR_2_35 double exp2(double) noexcept;
WEFT_VECTOR_2_35 double expm1(double) noexcept;
WEFT_VECTOR_2_35 double log1p(double) noexcept;
WEFT_VECTOR_2_35 double tanh(double) noexcept;
WEFT_VECTOR_2_35 double erf(double) noexcept;
double fmod(double, double) noexcept;
}

namespace weft {

static WEFT_INLINE float sin(float x) { return sinf(x); }
static WEFT_INLINE float cos(float x) { return cosf(x); }
static WEFT_INLINE float tan(float x) { return tanf(x); }
static WEFT_INLINE float asin(float x) { return asinf(x); }
static WEFT_INLINE float acos(float x) { return acosf(x); }
static WEFT_INLINE float atan(float x) { return atanf(x); }
static WEFT_INLINE float sinh(float x) { return sinhf(x); }
static WEFT_INLINE float cosh(float x) { return coshf(x); }
static WEFT_INLINE float asinh(float x) { return asinhf(x); }
static WEFT_INLINE float acosh(float x) { return acoshf(x); }
static WEFT_INLINE float atanh(float x) { return atanhf(x); }
static WEFT_INLINE float exp2(float x) { return exp2f(x); }
static WEFT_INLINE float log2(float x) { return log2f(x); }
static WEFT_INLINE float log10(float x) { return log10f(x); }
static WEFT_INLINE float log1p(float x) { return log1pf(x); }
static WEFT_INLINE float erfc(float x) { return erfcf(x); }
static WEFT_INLINE float atan2(float y, float x) { return atan2f(y, x); }
static WEFT_INLINE float pow(float x, float y) { return powf(x, y); }
static WEFT_INLINE float fmod(float x, float y) { return fmodf(x, y); }

static WEFT_INLINE double exp(double x) { return ::exp(x); }
static WEFT_INLINE double coarse_decay(double x) { return x < -708.0 ? 0.0 : ::exp(x); }
static WEFT_INLINE double decay(double x) { return ::exp(x); }
static WEFT_INLINE double exp2(double x) { return ::exp2(x); }
static WEFT_INLINE double expm1(double x) { return ::expm1(x); }
static WEFT_INLINE double log(double x) { return ::log(x); }
static WEFT_INLINE double log1p(double x) { return ::log1p(x); }
static WEFT_INLINE double tanh(double x) { return ::tanh(x); }
static WEFT_INLINE double erf(double x) { return ::erf(x); }
static WEFT_INLINE double sin(double x) { return ::sin(x); }
static WEFT_INLINE double cos(double x) { return ::cos(x); }
static WEFT_INLINE double pow(double x, double y) { return ::pow(x, y); }
static WEFT_INLINE double fmod(double x, double y) { return ::fmod(x, y); }
// The remainder that takes the divisor's sign, as Python's and torch.remainder.
static WEFT_INLINE float remainder(float x, float y) {
  const float r = fmodf(x, y);
  return (r != 0.0f) & ((r < 0.0f) != (y < 0.0f)) ? r + y : r;
}

// Row reductions that carry NaN: `#pragma omp simd reduction(weft_max : m)`, likewise weft_min.
#pragma omp declare reduction(weft_max:float, double : omp_out = maximum(omp_out, omp_in)) initializer(omp_priv = -WEFT_INFINITY)
#pragma omp declare reduction(weft_min:float, double : omp_out = minimum(omp_out, omp_in)) initializer(omp_priv = WEFT_INFINITY)

// Reductions along a row in as many partial results as two vectors have lanes: short chains, so that sums are as exact as eager's, and
// one tree at the end. body(j, lane) works on element j, in lane number `lane`; after(start, first, count) on what so many lanes
// hold from `first` on. What a row has beyond whole vectors are pieces of 16, 8 and 4 elements and the last ones, each in lanes of
// its own: fold_lanes reads them in these pieces, because a wide load of what was stored in pieces waits for the stores (10 ns a row;
// it does for the last ones, of rows that are no multiple of 4).
constexpr i64 kLanes = 32;
constexpr i64 kEights = 16, kFours = 24, kLast = 28;  // the first lanes of pieces of 8, of 4, and of the last elements

template <i64 kCount, class Body, class After>
static inline __attribute__((always_inline)) void piece_in_lanes(i64 start, i64 first, Body body, After after) {
#pragma omp simd
  for (i64 lane = 0; lane < kCount; ++lane) body(start + lane, first + lane);
  after(start, first, kCount);
}
template <class Body, class After>
static inline __attribute__((always_inline)) i64 whole_lanes(i64 start, i64 n, Body body, After after) {
  for (; start + kLanes <= n; start += kLanes) piece_in_lanes<kLanes>(start, 0, body, after);
  return start;
}
template <class Body, class After>
static inline __attribute__((always_inline)) void rest_in_lanes(i64 start, i64 n, Body body, After after) {
  if (n - start >= 16) piece_in_lanes<16>(start, 0, body, after), start += 16;
  if (n - start >= 8) piece_in_lanes<8>(start, kEights, body, after), start += 8;
  if (n - start >= 4) piece_in_lanes<4>(start, kFours, body, after), start += 4;
  if (start == n) return;
  for (i64 j = start; j < n; ++j) body(j, kLast + j - start);
  after(start, kLast, n - start);
}
template <class Body, class After>
static inline __attribute__((always_inline)) void in_lanes(i64 n, Body body, After after) {
  rest_in_lanes(whole_lanes(0, n, body, after), n, body, after);
}
template <class Body>
static inline __attribute__((always_inline)) void in_lanes(i64 n, Body body) {
  in_lanes(n, body, [](i64, i64, i64) {});
}
// The same in runs of kChain elements a lane: flush() moves what the lanes have added up to where longer sums grow, but for the
// pieces at the end. Numbers that lie on a coarse grid, as those far from 0 do, round one way for as long as a chain of additions stays
// within a power of two.
constexpr i64 kChain = 16;

template <class Body, class Flush, class After>
static inline __attribute__((always_inline)) void in_chains(i64 n, Body body, Flush flush, After after) {
  i64 start = 0;
  while (start + kLanes <= n) {
    start = whole_lanes(start, min_index(n, start + kChain * kLanes), body, after);
    flush();
  }
  rest_in_lanes(start, n, body, after);
}
template <class Body, class Flush>
static inline __attribute__((always_inline)) void in_chains(i64 n, Body body, Flush flush) {
  in_chains(n, body, flush, [](i64, i64, i64) {});
}
template <class C>
static inline __attribute__((always_inline)) void move_lanes(C (&sums)[kLanes], C (&lanes)[kLanes]) {
  for (i64 lane = 0; lane < kLanes; ++lane) {
    sums[lane] += lanes[lane];
    lanes[lane] = C(0);
  }
}
// Writes `count` lanes as 16-bit numbers. In a loop of their own, they do not halve the vectors of the arithmetic before; and the
// machine's own rounding takes one instruction (numbers below the normal ones become 0).
template <class T>
static inline void store_lanes(T* at, const float* lanes, i64 count) {
#pragma omp simd
  for (i64 lane = 0; lane < count; ++lane) store(&at[lane], lanes[lane]);
}
#ifdef __AVX512BF16__
typedef float Floats512 __attribute__((vector_size(64)));
typedef uint16_t Halves256 __attribute__((vector_size(32)));
static inline void store_lanes(bf16* at, const float* lanes, i64 count) {
  if (count < kLanes) return store_lanes<bf16>(at, lanes, count);
#pragma GCC unroll 2
  for (i64 half = 0; half < kLanes; half += 16) {
    Floats512 wide;
    Halves256 narrow;
    __builtin_memcpy(&wide, lanes + half, sizeof wide);
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(wide));
    __builtin_memcpy(at + half, &narrow, sizeof narrow);
  }
}
#endif
template <class C>
static inline void fill_lanes(C (&lanes)[kLanes], C value) {
  for (i64 lane = 0; lane < kLanes; ++lane) lanes[lane] = value;
}
// Combines what at(lane) gives for all lanes.
template <class C, class At, class Combine>
static inline __attribute__((always_inline)) C fold(At at, Combine combine) {
  C eight[8], four[4], last[4];
  for (i64 lane = 0; lane < 8; ++lane) eight[lane] = combine(at(lane), at(kEights + lane));
  for (i64 lane = 0; lane < 4; ++lane) four[lane] = combine(at(8 + lane), at(kFours + lane));
  for (i64 lane = 0; lane < 4; ++lane) last[lane] = combine(at(12 + lane), at(kLast + lane));
  for (i64 lane = 0; lane < 4; ++lane)
    four[lane] = combine(combine(four[lane], last[lane]), combine(eight[lane], eight[4 + lane]));
  return combine(combine(four[0], four[2]), combine(four[1], four[3]));
}
template <class C, class Combine>
static inline __attribute__((always_inline)) C fold_lanes(C (&lanes)[kLanes], Combine combine) {
  return fold<C>([&](i64 lane) __attribute__((always_inline)) { return lanes[lane]; }, combine);
}
template <class C>
static inline C sum_of_lanes(C (&lanes)[kLanes]) {
  return fold_lanes(lanes, [](C a, C b) { return a + b; });
}
template <class C>
static inline C sum_of_lanes(C (&sums)[kLanes], C (&lanes)[kLanes]) {
  return fold<C>([&](i64 lane) __attribute__((always_inline)) { return sums[lane] + lanes[lane]; }, [](C a, C b) { return a + b; });
}
template <class C>
static inline C prod_of_lanes(C (&lanes)[kLanes]) {
  return fold_lanes(lanes, [](C a, C b) { return a * b; });
}
template <class C>
static inline C max_of_lanes(C (&lanes)[kLanes]) {
  return fold_lanes(lanes, [](C a, C b) { return maximum(a, b); });
}
template <class C>
static inline C min_of_lanes(C (&lanes)[kLanes]) {
  return fold_lanes(lanes, [](C a, C b) { return minimum(a, b); });
}

// States of long loops in levels: what kCount iterations come to goes from level 0 to level 1, what came there as often to level 2,
// and so on, so that no sum is one long chain of additions. move(from, to, add) merges what `from` holds into `to`, which is of before
// it; without `add` there is nothing, and it is copied. The loop begins level 0 anew.
constexpr int kLevels = 4;  // above level 0; the last one is never moved on

template <i64 kCount, class Move>
static inline void move_levels(i64 done, Move move) {
  for (int level = 0; level < kLevels && done % kCount == 0; ++level) {
    done /= kCount;
    move(level, level + 1, level + 1 == kLevels ? done > 1 : done % kCount != 1);
  }
}
// After `done` iterations: all levels are merged, the later ones into those before them, and moved to level 0.
template <i64 kCount, class Move>
static inline void merge_levels(i64 done, Move move) {
  if (done < kCount) return;
  int from = -1;
  for (int level = 0; level <= kLevels; ++level) {
    const i64 held = level < kLevels ? done % kCount : done;
    done /= kCount;
    if (held == 0) continue;
    if (from >= 0) move(from, level, true);
    from = level;
  }
  move(from, 0, false);
}

// ------------------------------------------------------------------------------------------------ scratch

constexpr i64 kLine = 64;  // bytes of a cache line, and of the widest vector

template <class T>
static inline i64 scratch_bytes(i64 elements) {
  return round_up(elements * (i64)sizeof(T), kLine) + kLine;
}

// A thread's own memory for the blocks of one kernel. It is kept from call to call (a fresh page costs more
// than the arithmetic on it), grows to the largest request, and is one for all kernels of a process, hence the
// visibility; its content is garbage at first. One Scratch per thread at a time.
class __attribute__((visibility("default"))) Scratch {
 public:
  explicit Scratch(i64 bytes) {
    if (bytes > owned().bytes) owned().grow(bytes);
    next_ = owned().base;
  }
  // `elements` values of T, aligned to a cache line; the next take starts behind them. Between
  // neighbours lies one line more, so that blocks of a power of two do not share cache sets.
  template <class T>
  T* take(i64 elements) {
    T* out = (T*)next_;
    next_ += scratch_bytes<T>(elements);
    return out;
  }

 private:
  struct Owned {
    char* base = nullptr;
    i64 bytes = 0;
    void grow(i64 wanted) {
      free(base);
      bytes = round_up(wanted, 4096);
      base = (char*)aligned_alloc(4096, (size_t)bytes);
      if (base == nullptr) abort();
    }
    ~Owned() { free(base); }
  };
  static Owned& owned() {
    static thread_local Owned memory;
    return memory;
  }
  char* next_;
};

// -------------------------------------------------------------------------------------- library products
//
// libtorch_cpu exports oneDNN's block product, undocumented. It is looked up by name in the library that is
// already loaded; where it is missing, dot() runs on plain code. WEFT_PLAIN_DOT leaves it out.

constexpr int8_t kByte = 0, kChar = 1, kHalf = 5, kBFloat16 = 15;  // c10::ScalarType

struct Library {
  using Float = void (*)(i64, i64, i64, i64, i64, i64, bool, const float*, const float*, float*, bool);
  using Packed = void (*)(i64, i64, i64, i64, i64, i64, bool, const void*, const void*, float*, bool);
  template <class T>
  using Bytes = void (*)(i64, i64, i64, i64, i64, i64, bool, const T*, const T*, int32_t*, bool);
  using Release = void (*)(bool);
  using CouldPack = bool (*)(int8_t);
  Float f32 = nullptr;
  Packed bf16 = nullptr, f16 = nullptr;
  Bytes<int8_t> s8 = nullptr;
  Bytes<uint8_t> u8 = nullptr;
  Release release = nullptr;
  CouldPack could_pack = nullptr;

  Library() {
#ifndef WEFT_PLAIN_DOT
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == nullptr) return;
    f32 = (Float)dlsym(torch, "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb");
    bf16 = (Packed)dlsym(torch, "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb");
    f16 = (Packed)dlsym(torch, "_ZN2at6native7cpublas6brgemmEllllllbPKN3c104HalfES5_Pfb");
    s8 = (Bytes<int8_t>)dlsym(torch, "_ZN2at6native7cpublas6brgemmEllllllbPKaS3_Pib");
    u8 = (Bytes<uint8_t>)dlsym(torch, "_ZN2at6native7cpublas6brgemmEllllllbPKhS3_Pib");
    release = (Release)dlsym(torch, "_ZN2at6native7cpublas14brgemm_releaseEb");
    could_pack = (CouldPack)dlsym(torch, "_ZN2at6native7cpublas10could_packEN3c1010ScalarTypeE");
#endif
  }
  // Asked at every call: a user may switch oneDNN off, and then the packed forms would throw.
  bool packs(int8_t scalar_type) const { return release && could_pack && could_pack(scalar_type); }
};

static inline const Library& library() {
  static const Library found;
  return found;
}

// ------------------------------------------------------------------------------------------------ staging

// Lanes of a transposed tile, and its element types as vectors.
#if defined(__AVX512F__)
constexpr int kTile = 16;
#else
constexpr int kTile = 8;
#endif
typedef int32_t Order32 __attribute__((vector_size(4 * kTile)));
typedef int16_t Order16 __attribute__((vector_size(2 * kTile)));
typedef uint32_t Lanes32 __attribute__((vector_size(4 * kTile)));
typedef uint16_t Lanes16 __attribute__((vector_size(2 * kTile)));

template <int Bytes>
struct Word;  // an element's bits, a vector of them, and the two orders that interleave vectors
#if defined(__AVX512F__)
#define WEFT_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define WEFT_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define WEFT_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define WEFT_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#endif
template <>
struct Word<4> {
  using type = uint32_t;
  using lanes = Lanes32;
  using order = Order32;
};
template <>
struct Word<2> {
  using type = uint16_t;
  using lanes = Lanes16;
  using order = Order16;
};

#if defined(__clang__)
#define WEFT_SHUFFLE(W, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define WEFT_SHUFFLE(W, a, b, ...) __builtin_shuffle(a, b, typename W::order{__VA_ARGS__})
#endif

// dst[c * ldd + r] = src[r * lds + c] for a full tile, of which so many c are stored: log2(kTile) perfect shuffles of its rows.
// Pointers are to bytes, leading dimensions in words: only bits move here.
template <class W>
static inline void transpose_tile(char* dst, i64 ldd, const char* src, i64 lds, i64 stored = kTile) {
  typename W::lanes rows[kTile], next[kTile];
  const i64 size = sizeof(typename W::type);
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) __builtin_memcpy(&rows[r], src + r * lds * size, sizeof(rows[r]));
#pragma GCC unroll 4
  for (int step = 1; step < kTile; step *= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < kTile / 2; ++r) {
      next[2 * r] = WEFT_SHUFFLE(W, rows[r], rows[r + kTile / 2], WEFT_LOW);
      next[2 * r + 1] = WEFT_SHUFFLE(W, rows[r], rows[r + kTile / 2], WEFT_HIGH);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r)
    if (r < stored) __builtin_memcpy(dst + r * ldd * size, &rows[r], sizeof(rows[r]));
}

// The same for any number of rows and columns.
template <class W>
static WEFT_APART void transpose(char* dst, i64 ldd, const char* src, i64 lds, i64 rows, i64 columns) {
  const i64 size = sizeof(typename W::type);
  const i64 full_rows = rows / kTile * kTile, full_columns = columns / kTile * kTile;
  const auto move = [&](i64 r, i64 c) { __builtin_memcpy(dst + (c * ldd + r) * size, src + (r * lds + c) * size, size); };
  for (i64 r = 0; r < full_rows; r += kTile)
    for (i64 c = 0; c < full_columns; c += kTile)
      transpose_tile<W>(dst + (c * ldd + r) * size, ldd, src + (r * lds + c) * size, lds);
  for (i64 c = 0; c < full_columns; ++c)
    for (i64 r = full_rows; r < rows; ++r) move(r, c);
  if (full_columns == columns) return;
  // Tiles of the last columns read on to the next rows, as long as the block goes on.
  i64 tiled = 0;
  for (; tiled + kTile <= rows && (tiled + kTile - rows) * lds + full_columns + kTile <= columns; tiled += kTile)
    transpose_tile<W>(
        dst + (full_columns * ldd + tiled) * size, ldd, src + (tiled * lds + full_columns) * size, lds,
        columns - full_columns);
  for (i64 c = full_columns; c < columns; ++c)
    for (i64 r = tiled; r < rows; ++r) move(r, c);
}

// Deals a stream of elements out to kRows rows in turn.
template <int kRows, class T>
static inline void deal(T* dst, i64 ldd, const T* src, i64 columns) {
#pragma omp simd
  for (i64 j = 0; j < columns; ++j)
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) dst[i * ldd + j] = src[j * kRows + i];
}

// Copies a rows x columns block of any strides to dst, row-major with leading dimension ldd.
template <class T>
static void stage_rows(T* dst, i64 ldd, const T* src, i64 row_stride, i64 column_stride, i64 rows, i64 columns) {
  if (row_stride == 1 && column_stride == rows) {
    if (rows == 2) return deal<2>(dst, ldd, src, columns);
    if (rows == 3) return deal<3>(dst, ldd, src, columns);
    if (rows == 4) return deal<4>(dst, ldd, src, columns);
  }
  if (column_stride == 1) {
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(dst + i * ldd, src + i * row_stride, (size_t)columns * sizeof(T));
    return;
  }
  if constexpr (sizeof(T) == 4 || sizeof(T) == 2)
    if (row_stride == 1) return transpose<Word<sizeof(T)>>((char*)dst, ldd, (const char*)src, column_stride, columns, rows);
  // In strips: a line that is read for one row has the elements of the next rows too.
  for (i64 i0 = 0; i0 < rows; i0 += 8)
    for (i64 j = 0; j < columns; ++j)
      for (i64 i = i0; i < min_index(i0 + 8, rows); ++i) dst[i * ldd + j] = src[i * row_stride + j * column_stride];
}

// The panel that dot() takes for a kb x nb block is row-major kb x nb, but for floats of 16 bits: there pairs of rows are
// interleaved (VNNI), [ceil(kb / 2)][nb][2], an odd last row paired with zeros; only f16 stays row-major where
// the library's product wants it so. Of bytes four rows are, [ceil(kb / 4)][nb][4], where the library multiplies bytes.
template <class T>
static inline bool paired() {
  return false;
}
template <>
inline bool paired<bf16>() {
  return true;
}
template <>
inline bool paired<f16>() {
  return library().packs(kHalf);
}
// The library's product of bytes; null where it has none here.
static inline Library::Bytes<int8_t> bytes_product(int8_t) { return library().packs(kChar) ? library().s8 : nullptr; }
static inline Library::Bytes<uint8_t> bytes_product(uint8_t) { return library().packs(kByte) ? library().u8 : nullptr; }
template <class T>
static inline bool fourfold() {
  return false;
}
template <>
inline bool fourfold<int8_t>() {
  return bytes_product(int8_t{}) != nullptr;
}
template <>
inline bool fourfold<uint8_t>() {
  return bytes_product(uint8_t{}) != nullptr;
}
// Elements of a panel, whatever its layout.
template <class T>
static inline i64 panel_elements(i64 kb, i64 nb) {
  return sizeof(T) < 4 ? round_up(kb, 4 / (i64)sizeof(T)) * nb : kb * nb;
}
// A panel: rows (of pairs) are `ld` elements (pairs) apart.
template <class T>
struct Panel {
  const T* base;
  i64 ld;
  // The part that starts at row k, a multiple of four.
  Panel at(i64 k) const { return Panel{base + k * ld, ld}; }
};

// The panel of a kb x nb block, element (k, n) at src[k * k_stride + n * n_stride], copied to `to` where it has to be.
// A block whose rows lie dense and near each other is its own panel: rows further apart fall into few cache sets.
template <class T>
static inline Panel<T> stage_panel(T* to, const T* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  if (n_stride == 1 && k_stride >= nb && k_stride <= 256) return Panel<T>{src, k_stride};
  stage_rows(to, nb, src, k_stride, n_stride, kb, nb);
  return Panel<T>{to, nb};
}
template <class T>
static inline void stage_pairs(T* to, const T* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  uint32_t* panel = (uint32_t*)to;  // a panel is written and read as words only
  const i64 pairs = kb / 2;
  if (n_stride == 1) {
    for (i64 p = 0; p < pairs; ++p) {
      const T *even = src + 2 * p * k_stride, *odd = even + k_stride;
      uint32_t* out = panel + p * nb;
#pragma omp simd
      for (i64 n = 0; n < nb; ++n) out[n] = (uint32_t)even[n].bits | (uint32_t)odd[n].bits << 16;
    }
  } else if (k_stride == 1 && n_stride % 2 == 0) {
    transpose<Word<4>>((char*)panel, nb, (const char*)src, n_stride / 2, nb, pairs);
  } else {
    for (i64 p = 0; p < pairs; ++p)
      for (i64 n = 0; n < nb; ++n) {
        const T* at = src + 2 * p * k_stride + n * n_stride;
        panel[p * nb + n] = (uint32_t)at[0].bits | (uint32_t)at[k_stride].bits << 16;
      }
  }
  if (kb % 2)
    for (i64 n = 0; n < nb; ++n) panel[pairs * nb + n] = src[(kb - 1) * k_stride + n * n_stride].bits;
}
static inline Panel<bf16> stage_panel(bf16* to, const bf16* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  stage_pairs(to, src, k_stride, n_stride, kb, nb);
  return Panel<bf16>{to, nb};
}
static inline Panel<f16> stage_panel(f16* to, const f16* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  if (paired<f16>())
    stage_pairs(to, src, k_stride, n_stride, kb, nb);
  else
    stage_rows(to, nb, src, k_stride, n_stride, kb, nb);
  return Panel<f16>{to, nb};
}
template <class T>
static inline Panel<T> stage_fours(T* to, const T* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  uint32_t* panel = (uint32_t*)to;
  const i64 fours = kb / 4;
  if (k_stride == 1 && n_stride % 4 == 0) {
    transpose<Word<4>>((char*)panel, nb, (const char*)src, n_stride / 4, nb, fours);
  } else {
    for (i64 f = 0; f < fours; ++f) {
      const T* at = src + 4 * f * k_stride;
      uint32_t* out = panel + f * nb;
#pragma omp simd
      for (i64 n = 0; n < nb; ++n) {
        const T* column = at + n * n_stride;
        out[n] = (uint32_t)(uint8_t)column[0] | (uint32_t)(uint8_t)column[k_stride] << 8 |
                 (uint32_t)(uint8_t)column[2 * k_stride] << 16 | (uint32_t)(uint8_t)column[3 * k_stride] << 24;
      }
    }
  }
  for (i64 n = 0; kb % 4 && n < nb; ++n) {
    panel[fours * nb + n] = 0;
    for (i64 k = 4 * fours; k < kb; ++k)
      panel[fours * nb + n] |= (uint32_t)(uint8_t)src[k * k_stride + n * n_stride] << 8 * (k % 4);
  }
  return Panel<T>{to, nb};
}
static inline Panel<int8_t> stage_panel(int8_t* to, const int8_t* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  if (fourfold<int8_t>()) return stage_fours(to, src, k_stride, n_stride, kb, nb);
  return stage_panel<int8_t>(to, src, k_stride, n_stride, kb, nb);
}
static inline Panel<uint8_t> stage_panel(uint8_t* to, const uint8_t* src, i64 k_stride, i64 n_stride, i64 kb, i64 nb) {
  if (fourfold<uint8_t>()) return stage_fours(to, src, k_stride, n_stride, kb, nb);
  return stage_panel<uint8_t>(to, src, k_stride, n_stride, kb, nb);
}

// ----------------------------------------------------------------------------------------- block products

// What a thread holds while it calls dot(): at its end the matrix unit, which 16-bit products may have
// configured for this thread, is given back. One per thread and parallel region, outside the loops.
struct Products {
  Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  ~Products() {
    if (library().release) library().release(true);
  }
};

// What products of T are summed in; integers are elements of a ring modulo 2^64, in which nothing overflows.
template <class T>
struct Sums {
  using type = uint64_t;
};
template <>
struct Sums<float> {
  using type = float;
};
template <>
struct Sums<bf16> {
  using type = float;
};
template <>
struct Sums<f16> {
  using type = float;
};
template <>
struct Sums<double> {
  using type = double;
};
template <class T>
using Sum = typename Sums<T>::type;
// What few of them are summed in: products of bytes are small, so that kFew of them fit 32 bits.
template <class T>
struct Bytes {
  using type = Sum<T>;
};
template <>
struct Bytes<int8_t> {
  using type = int32_t;
};
template <>
struct Bytes<uint8_t> {
  using type = int32_t;
};
template <class T>
using FewSum = typename Bytes<T>::type;
constexpr i64 kFew = 32768;
// An element as it is multiplied.
template <class T>
static inline Sum<T> factor(T v) {
  if constexpr (sizeof(Sum<T>) == 8)
    return (Sum<T>)v;
  else
    return load(v);
}

template <class C>
static inline void zero(C* c, i64 ldc, i64 mb, i64 nb) {
  for (i64 i = 0; i < mb; ++i) __builtin_memset(c + i * ldc, 0, (size_t)nb * sizeof(C));
}

// Element pair p, column n of a 16-bit panel, as two floats.
static inline float low_half(const bf16*, uint32_t w) { return bits_as<float>(w << 16); }
static inline float high_half(const bf16*, uint32_t w) { return bits_as<float>(w & 0xffff0000u); }
static inline float low_half(const f16*, uint32_t w) { return load(f16{(uint16_t)w}); }
static inline float high_half(const f16*, uint32_t w) { return load(f16{(uint16_t)(w >> 16)}); }

// Columns that the plain product keeps in registers, times four rows.
constexpr int kColumns = 2 * kTile;

// One step along k of `Rows` rows times `columns` columns, on a row-major panel and on one of pairs.
template <int Rows, class T>
static inline void row_step(FewSum<T> (&sum)[Rows][kColumns], const T* a, i64 lda, const T* panel, i64 ld, i64 k, int columns) {
  for (int r = 0; r < Rows; ++r) {
    const FewSum<T> x = (FewSum<T>)factor(a[r * lda + k]);
#pragma omp simd
    for (int n = 0; n < columns; ++n) sum[r][n] = fma(x, (FewSum<T>)factor(panel[k * ld + n]), sum[r][n]);
  }
}
template <int Rows, class T>
static inline void pair_step(float (&sum)[Rows][kColumns], const T* a, i64 lda, const T* panel, i64 ld, i64 k, i64 kb,
                             int columns) {
  const uint32_t* words = (const uint32_t*)panel + k / 2 * ld;
  for (int r = 0; r < Rows; ++r) {
    const float x = load(a[r * lda + k]), y = k + 1 < kb ? load(a[r * lda + k + 1]) : 0.0f;
#pragma omp simd
    for (int n = 0; n < columns; ++n)
      sum[r][n] = fma(y, high_half(panel, words[n]), fma(x, low_half(panel, words[n]), sum[r][n]));
  }
}
template <int Rows, bool Pairs, class T>
static WEFT_APART void plain_rows(Sum<T>* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 nb, i64 kb) {
  for (i64 n0 = 0; n0 < nb; n0 += kColumns) {
    const int columns = (int)min_index(kColumns, nb - n0);
    const T* from = panel.base + (Pairs ? 2 * n0 : n0);
    FewSum<T> sum[Rows][kColumns] = {};
    const auto run = [&](int width) {
      if constexpr (Pairs) {
        for (i64 k = 0; k < kb; k += 2) pair_step<Rows>(sum, a, lda, from, panel.ld, k, kb, width);
      } else {
        for (i64 k = 0; k < kb; ++k) row_step<Rows>(sum, a, lda, from, panel.ld, k, width);
      }
    };
    if (columns == kColumns) {
      run(kColumns);  // a constant width keeps the sums in registers
    } else {
      run(columns);
    }
    for (int r = 0; r < Rows; ++r)
      for (int n = 0; n < columns; ++n) c[r * ldc + n0 + n] = add ? c[r * ldc + n0 + n] + (Sum<T>)sum[r][n] : (Sum<T>)sum[r][n];
  }
}

#ifdef __AVX512BF16__
// The machine's own product of pairs of bf16, `Rows` rows times `Vectors` vectors of 16 columns of a panel of pairs, added up in
// fp32. It takes numbers below the normal ones for 0, factors and sums alike. A record of vectors and not an array: compilers
// keep its fields in registers.
template <int Rows, int Vectors>
struct PairSums {
  PairSums<Rows - 1, Vectors> before{};
  Floats512 first{}, second{};

  WEFT_INLINE void multiply(const bf16* a, i64 lda, bool whole, Lanes32 left, Lanes32 right) {
    before.multiply(a, lda, whole, left, right);
    uint32_t pair = 0;
    __builtin_memcpy(&pair, a + (Rows - 1) * lda, whole ? sizeof(bf16[2]) : sizeof(bf16));
    const Lanes32 x = pair - Lanes32{};
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(first) : "v"(x), "v"(left));
    if (Vectors == 2) __asm__("vdpbf16ps %2, %1, %0" : "+v"(second) : "v"(x), "v"(right));
  }
  WEFT_INLINE void store(float* c, i64 ldc, bool add) const {
    before.store(c, ldc, add);
    float* const to = c + (Rows - 1) * ldc;
    put(to, first, add);
    if (Vectors == 2) put(to + 16, second, add);
  }
  static WEFT_INLINE void put(float* to, Floats512 sum, bool add) {
    Floats512 there{};
    if (add) __builtin_memcpy(&there, to, sizeof there);
    sum += there;
    __builtin_memcpy(to, &sum, sizeof sum);
  }
};
template <int Vectors>
struct PairSums<0, Vectors> {
  void multiply(const bf16*, i64, bool, Lanes32, Lanes32) {}
  void store(float*, i64, bool) const {}
};
template <int Rows, int Vectors>
static inline void pair_block(float* c, i64 ldc, bool add, const bf16* a, i64 lda, const bf16* panel, i64 ld, i64 kb) {
  PairSums<Rows, Vectors> sums;
  for (i64 k = 0; k < kb; k += 2) {
    Lanes32 left, right{};
    __builtin_memcpy(&left, panel + k * ld, sizeof left);
    if (Vectors == 2) __builtin_memcpy(&right, panel + k * ld + 32, sizeof right);
    if (k + 1 < kb)
      sums.multiply(a + k, lda, true, left, right);
    else
      sums.multiply(a + k, lda, false, left, right);
  }
  sums.store(c, ldc, add);
}
template <int Rows>
static WEFT_APART void pair_rows(float* c, i64 ldc, bool add, const bf16* a, i64 lda, Panel<bf16> panel, i64 nb, i64 kb) {
  i64 n = 0;
  for (; n + 32 <= nb; n += 32) pair_block<Rows, 2>(c + n, ldc, add, a, lda, panel.base + 2 * n, panel.ld, kb);
  if (n + 16 <= nb) pair_block<Rows, 1>(c + n, ldc, add, a, lda, panel.base + 2 * n, panel.ld, kb);
}
// Gives how many columns are done: the whole vectors of them. None of small products, which PyTorch too computes without this
// instruction: where that decides over numbers below the normal ones, weft is not further off than eager.
static inline i64 pair_products(float* c, i64 ldc, bool add, const bf16* a, i64 lda, Panel<bf16> panel, i64 mb, i64 nb, i64 kb) {
  if (mb * nb * kb <= 16 * 16 * 16) return 0;
  i64 i = 0;
  for (; i + 8 <= mb; i += 8) pair_rows<8>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
  for (; i + 4 <= mb; i += 4) pair_rows<4>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
  for (; i < mb; ++i) pair_rows<1>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
  return nb / 16 * 16;
}
#endif
template <class T>
static inline i64 pair_products(Sum<T>*, i64, bool, const T*, i64, Panel<T>, i64, i64, i64) {
  return 0;
}

// dot() without a library.
template <bool Pairs, class T>
WEFT_SHARED void plain_dot(Sum<T>* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  if (sizeof(T) == 1 && kb > kFew) {
    for (i64 k = 0; k < kb; k += kFew)
      plain_dot<Pairs>(c, ldc, add || k > 0, a + k, lda, panel.at(k), mb, nb, min_index(kFew, kb - k));
    return;
  }
  if constexpr (Pairs) {
    const i64 done = pair_products(c, ldc, add, a, lda, panel, mb, nb, kb);
    c += done, nb -= done, panel.base += 2 * done;
    if (nb == 0) return;
  }
  i64 i = 0;
  if constexpr (sizeof(T) == 8 && kTile == 16)  // as many sums as there are registers for
    for (; i + 6 <= mb; i += 6) plain_rows<6, Pairs>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
  for (; i + 4 <= mb; i += 4) plain_rows<4, Pairs>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
  for (; i < mb; ++i) plain_rows<1, Pairs>(c + i * ldc, ldc, add, a + i * lda, lda, panel, nb, kb);
}

// c[mb x nb] = (add ? c : 0) + a[mb x kb] * panel, c and a row-major with leading dimensions ldc and lda, panel
// as stage_panel() leaves it. c may hold garbage, NaN included, when add is false.
//
// On a row-major panel:
template <class T, class Call>
static void dot_rows(Call call, float* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  if (call && mb && nb && kb) {
    try {
      return call(mb, nb, kb, lda, panel.ld, ldc, add, a, panel.base, c, sizeof(T) == 2);
    } catch (...) {  // the library cannot make this shape here; nothing was written yet
    }
  }
  plain_dot<false>(c, ldc, add, a, lda, panel, mb, nb, kb);
}
// On a panel of pairs. The library reads pairs of a, too: an odd last column would bring in what lies behind
// it, so that column is added here.
template <class T, class Call>
static void dot_pairs(Call call, float* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  i64 done = 0;
  if (call && mb && nb && kb > 1) {
    try {
      const i64 even = kb / 2 * 2;
      call(mb, nb, even, lda, panel.ld, ldc, add, a, panel.base, c, true);
      done = even;
    } catch (...) {
    }
  }
  if (done == 0 || done < kb)
    plain_dot<true>(c, ldc, add || done > 0, a + done, lda, panel.at(done), mb, nb, kb - done);
}
// On a panel of fours of bytes, in parts whose sums fit 32 bits. The rest of a row that is not a multiple of four is added here.
template <class T, class Call>
static void dot_fours(Call call, uint64_t* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  constexpr i64 kHigh = 64, kWide = 128;
  alignas(kLine) int32_t part[kHigh * kWide];
  for (i64 i = 0; i < mb; i += kHigh)
    for (i64 n = 0; n < nb; n += kWide) {
      const i64 height = min_index(kHigh, mb - i), width = min_index(kWide, nb - n);
      uint64_t* const to = c + i * ldc + n;
      if (!add) zero(to, ldc, height, width);
      for (i64 k = 0, depth = 0; k < kb; k += depth) {
        const T* const rows = a + i * lda + k;
        const T* const columns = panel.base + k * panel.ld + 4 * n;
        depth = min_index(kFew, (kb - k) / 4 * 4);
        bool done = false;
        if (depth) {
          try {
            call(height, width, depth, lda, panel.ld, width, false, rows, columns, part, true);
            done = true;
          } catch (...) {  // the library cannot make this shape here; nothing was written yet
          }
        }
        if (!done) {
          depth = min_index(kFew, kb - k);
          for (i64 r = 0; r < height; ++r)
            for (i64 j = 0; j < width; ++j) {
              int32_t sum = 0;
              for (i64 l = 0; l < depth; ++l) sum += rows[r * lda + l] * columns[l / 4 * 4 * panel.ld + 4 * j + l % 4];
              part[r * width + j] = sum;
            }
        }
        for (i64 r = 0; r < height; ++r) {
#pragma omp simd
          for (i64 j = 0; j < width; ++j) to[r * ldc + j] += (uint64_t)(i64)part[r * width + j];
        }
      }
    }
}
template <class T>
static inline void dot(Sum<T>* c, i64 ldc, bool add, const T* a, i64 lda, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  plain_dot<false>(c, ldc, add, a, lda, panel, mb, nb, kb);
}
static inline void dot(uint64_t* c, i64 ldc, bool add, const int8_t* a, i64 lda, Panel<int8_t> panel, i64 mb, i64 nb, i64 kb) {
  if (fourfold<int8_t>()) return dot_fours(bytes_product(int8_t{}), c, ldc, add, a, lda, panel, mb, nb, kb);
  plain_dot<false>(c, ldc, add, a, lda, panel, mb, nb, kb);
}
static inline void dot(uint64_t* c, i64 ldc, bool add, const uint8_t* a, i64 lda, Panel<uint8_t> panel, i64 mb, i64 nb, i64 kb) {
  if (fourfold<uint8_t>()) return dot_fours(bytes_product(uint8_t{}), c, ldc, add, a, lda, panel, mb, nb, kb);
  plain_dot<false>(c, ldc, add, a, lda, panel, mb, nb, kb);
}
// At most so many products of floats are one chain of additions: in equal parts, each added to what was there.
constexpr i64 kDeep = 64;
static inline void dot(float* c, i64 ldc, bool add, const float* a, i64 lda, Panel<float> panel, i64 mb, i64 nb, i64 kb) {
  const i64 depth = max_index(4, round_up(ceil_div(kb, max_index(1, ceil_div(kb, kDeep))), 4));
  for (i64 k = 0; k == 0 || k < kb; k += depth)
    dot_rows(library().f32, c, ldc, add || k > 0, a + k, lda, panel.at(k), mb, nb, min_index(depth, kb - k));
}
static inline void dot(float* c, i64 ldc, bool add, const bf16* a, i64 lda, Panel<bf16> panel, i64 mb, i64 nb, i64 kb) {
  dot_pairs(library().packs(kBFloat16) ? library().bf16 : nullptr, c, ldc, add, a, lda, panel, mb, nb, kb);
}
static inline void dot(float* c, i64 ldc, bool add, const f16* a, i64 lda, Panel<f16> panel, i64 mb, i64 nb, i64 kb) {
  if (paired<f16>()) return dot_pairs(library().f16, c, ldc, add, a, lda, panel, mb, nb, kb);
#ifdef __AVX512FP16__
  dot_rows(library().f16, c, ldc, add, a, lda, panel, mb, nb, kb);
#else
  dot_rows((Library::Packed) nullptr, c, ldc, add, a, lda, panel, mb, nb, kb);
#endif
}

// A vector of elements as they are summed. Sums over k run in as many lanes: their chains of additions are short, so that
// they are as exact as eager's, whatever a compiler makes of a simd reduction.
typedef float FloatLanes __attribute__((vector_size(4 * kTile)));
typedef double DoubleLanes __attribute__((vector_size(4 * kTile)));
typedef uint64_t WholeLanes __attribute__((vector_size(4 * kTile)));

static inline FloatLanes load_lanes(const float* at) {
  FloatLanes v;
  __builtin_memcpy(&v, at, sizeof v);
  return v;
}
static inline FloatLanes load_lanes(const bf16* at) {
  Lanes16 v;
  __builtin_memcpy(&v, at, sizeof v);
  return (FloatLanes)(__builtin_convertvector(v, Lanes32) << 16);
}
static inline FloatLanes load_lanes(const f16* at) {
  FloatLanes v;
#ifdef __F16C__
  Lanes16 bits;
  __builtin_memcpy(&bits, at, sizeof bits);
  __asm__("vcvtph2ps %1, %0" : "=v"(v) : "v"(bits));
#else
  for (int i = 0; i < kTile; ++i) v[i] = load(at[i]);
#endif
  return v;
}
static inline DoubleLanes load_lanes(const double* at) {
  DoubleLanes v;
  __builtin_memcpy(&v, at, sizeof v);
  return v;
}
template <class T>
static inline WholeLanes load_lanes(const T* at) {
  WholeLanes v;
  for (int i = 0; i < kTile / 2; ++i) v[i] = factor(at[i]);
  return v;
}
static inline FloatLanes fma(FloatLanes a, FloatLanes b, FloatLanes c) {
#ifdef __FMA__
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  return a * b + c;
#endif
}

// c[s] (+)= sum over k of x[k] * b[s * stride + k], for `Streams` neighbouring s.
template <int Streams, class T>
static inline void row_products(Sum<T>* c, bool add, const T* x, const T* b, i64 stride, i64 kb) {
  using Lanes = decltype(load_lanes(x));
  constexpr int kWidth = sizeof(Lanes) / sizeof(Sum<T>);
  Lanes sums[Streams] = {};
  i64 k = 0;
  for (; k + kWidth <= kb; k += kWidth) {
    const Lanes y = load_lanes(x + k);
    for (int s = 0; s < Streams; ++s) sums[s] += y * load_lanes(b + s * stride + k);
  }
  for (int lane = 0; k < kb; ++k, ++lane)
    for (int s = 0; s < Streams; ++s) sums[s][lane] += factor(x[k]) * factor(b[s * stride + k]);
  for (int s = 0; s < Streams; ++s) {
    for (int width = kWidth / 2; width; width /= 2)
      for (int lane = 0; lane < width; ++lane) sums[s][lane] += sums[s][lane + width];
    c[s] = add ? c[s] + sums[s][0] : sums[s][0];
  }
}

static constexpr bool is_float(float) { return true; }
template <class C>
static constexpr bool is_float(C) {
  return false;
}
// As many such sums in float at once as a vector has lanes: one vector for each s, and shuffles instead of sums of lanes at the end.
// Lane s of the result is the sum of all lanes of sums[s]: each step adds halves of two vectors, lanes of both interleaved.
static inline FloatLanes sums_of_all(FloatLanes (&sums)[kTile]) {
#pragma GCC unroll 4
  for (int half = kTile / 2; half; half /= 2)
#pragma GCC unroll 8
    for (int s = 0; s < half; ++s)
      sums[s] = WEFT_SHUFFLE(Word<4>, sums[s], sums[s + half], WEFT_LOW) + WEFT_SHUFFLE(Word<4>, sums[s], sums[s + half], WEFT_HIGH);
  return sums[0];
}
// Two vectors of elements. Those of 16 bits are split by parity, an instruction for each vector.
constexpr int kCouple = 2 * kTile;
struct Couple {
  FloatLanes first, second;
};
template <class T>
static inline Couple load_couple(const T* at) {
  return Couple{load_lanes(at), load_lanes(at + kTile)};
}
static inline Couple load_couple(const bf16* at) {
  Lanes32 v;
  __builtin_memcpy(&v, at, sizeof v);
  return Couple{(FloatLanes)(v << 16), (FloatLanes)(v & 0xffff0000u)};
}
// Gives the products of x[k] and b[k] for k < kb, as long as there are whole vectors, summed in the lanes of one; `done` is the first k
// that is left. The machine's own product of pairs is no faster where memory is waited for, and takes numbers below the normal ones for 0.
template <class T>
static inline FloatLanes lanes_of_row(const T* x, const T* b, i64 kb, i64& done) {
  constexpr int kChains = 2;  // of two sums each: enough to hide how long an addition takes
  Couple sums[kChains] = {};
  const auto step = [&](Couple& sum, i64 k) {
    const Couple y = load_couple(x + k), z = load_couple(b + k);
    sum.first = fma(y.first, z.first, sum.first);
    sum.second = fma(y.second, z.second, sum.second);
  };
  i64 k = 0;
  for (; k + kChains * kCouple <= kb; k += kChains * kCouple) {
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) step(sums[chain], k + chain * kCouple);
  }
  for (; k + kCouple <= kb; k += kCouple) step(sums[0], k);
  for (; k + kTile <= kb; k += kTile) sums[1].first = fma(load_lanes(x + k), load_lanes(b + k), sums[1].first);
  done = k;
  return (sums[0].first + sums[0].second) + (sums[1].first + sums[1].second);
}
// The rows of b one after the other: a machine fetches ahead of one stream best.
template <class T>
static WEFT_APART void tile_products(float* c, bool add, const T* x, const T* b, i64 stride, i64 kb) {
  FloatLanes sums[kTile];
  i64 done = 0;
  for (int s = 0; s < kTile; ++s) sums[s] = lanes_of_row(x, b + s * stride, kb, done);
  const FloatLanes whole = sums_of_all(sums);
  for (int s = 0; s < kTile; ++s) {
    float sum = whole[s];
    for (i64 k = done; k < kb; ++k) sum += load(x[k]) * load(b[s * stride + k]);
    c[s] = add ? c[s] + sum : sum;
  }
}

// out[n] = sum over k of x[k] * b[k * k_stride + n * n_stride].
template <class T>
static inline void add_rows(Sum<T>* __restrict out, const T* x, const T* b, i64 k_stride, i64 n_stride, i64 nb, i64 kb) {
#pragma omp simd
  for (i64 n = 0; n < nb; ++n) out[n] = 0;
  i64 k = 0;
  for (; n_stride == 1 && k + 4 <= kb; k += 4) {  // four rows of b at a time: out is read and written less often
    const T *b0 = b + k * k_stride, *b1 = b0 + k_stride, *b2 = b1 + k_stride, *b3 = b2 + k_stride;
    const Sum<T> x0 = factor(x[k]), x1 = factor(x[k + 1]), x2 = factor(x[k + 2]), x3 = factor(x[k + 3]);
#pragma omp simd
    for (i64 n = 0; n < nb; ++n)
      out[n] = fma(x3, factor(b3[n]), fma(x2, factor(b2[n]), fma(x1, factor(b1[n]), fma(x0, factor(b0[n]), out[n]))));
  }
  for (; k < kb; ++k) {
    const Sum<T> xk = factor(x[k]);
#pragma omp simd
    for (i64 n = 0; n < nb; ++n) out[n] = fma(xk, factor(b[k * k_stride + n * n_stride]), out[n]);
  }
}

// A couple as it lies in memory.
template <class T>
static inline Couple in_order(const T*, Couple c) {
  return c;
}
static inline Couple in_order(const bf16*, Couple c) {
  return Couple{WEFT_SHUFFLE(Word<4>, c.first, c.second, WEFT_LOW), WEFT_SHUFFLE(Word<4>, c.first, c.second, WEFT_HIGH)};
}
// out[n] += sum over k of x[k] * b[k * k_stride + n] for n < kCouple * Couples. The sums stay in registers, and the machine is told of
// the rows that lie 2 KiB of such rows ahead: short rows end too soon for it to see what comes next.
template <int Couples, class T>
static WEFT_APART void add_short_rows(float* out, const T* x, const T* b, i64 k_stride, i64 kb) {
  constexpr int kChains = kTile / 2 / Couples;  // enough sums at a time to hide how long an addition takes
  constexpr i64 kAhead = 2048 / (kCouple * Couples * (i64)sizeof(T));
  Couple sums[kChains][Couples] = {};
  const auto step = [&](Couple (&sum)[Couples], i64 k) {
    const FloatLanes by = load(x[k]) - FloatLanes{};
    const T* const row = b + k * k_stride;
#pragma GCC unroll 4
    for (int c = 0; c < Couples; ++c) {
      __builtin_prefetch(row + kAhead * k_stride + kCouple * c);
      if (sizeof(T) == 4) __builtin_prefetch(row + kAhead * k_stride + kCouple * c + kTile);
      const Couple y = load_couple(row + kCouple * c);
      sum[c].first = fma(by, y.first, sum[c].first);
      sum[c].second = fma(by, y.second, sum[c].second);
    }
  };
  i64 k = 0;
  for (; k + kChains <= kb; k += kChains) {
#pragma GCC unroll 8
    for (int chain = 0; chain < kChains; ++chain) step(sums[chain], k + chain);
  }
  for (; k < kb; ++k) step(sums[0], k);
  for (int c = 0; c < Couples; ++c) {
    for (int chain = 1; chain < kChains; ++chain) {
      sums[0][c].first += sums[chain][c].first;
      sums[0][c].second += sums[chain][c].second;
    }
    const Couple sum = in_order(b, sums[0][c]);
    float* const at = out + kCouple * c;
    const FloatLanes first = load_lanes(at) + sum.first, second = load_lanes(at + kTile) + sum.second;
    __builtin_memcpy(at, &first, sizeof first);
    __builtin_memcpy(at + kTile, &second, sizeof second);
  }
}
// The same for the whole couples of `nb` columns; gives the first column that is left.
template <class T>
static inline i64 add_short_rows(float* out, const T* x, const T* b, i64 k_stride, i64 nb, i64 kb) {
  i64 n = 0;
  for (; n + 4 * kCouple <= nb; n += 4 * kCouple) add_short_rows<4>(out + n, x, b + n, k_stride, kb);
  for (; n + 2 * kCouple <= nb; n += 2 * kCouple) add_short_rows<2>(out + n, x, b + n, k_stride, kb);
  for (; n + kCouple <= nb; n += kCouple) add_short_rows<1>(out + n, x, b + n, k_stride, kb);
  return n;
}

// Adds x[r] * b[r * k_stride + n], r < Rows, to sums[n], n < nb: a multiple of kCouple. The sums of a couple lie as load_couple() has
// them.
template <int Rows, class T>
static inline void add_rows_at_once(float* sums, const T* x, const T* b, i64 k_stride, i64 nb) {
  FloatLanes by[Rows];
  for (int r = 0; r < Rows; ++r) by[r] = load(x[r]) - FloatLanes{};
  for (i64 n = 0; n < nb; n += kCouple) {
    FloatLanes first = load_lanes(sums + n), second = load_lanes(sums + n + kTile);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Couple y = load_couple(b + r * k_stride + n);
      first = fma(by[r], y.first, first);
      second = fma(by[r], y.second, second);
    }
    __builtin_memcpy(sums + n, &first, sizeof first);
    __builtin_memcpy(sums + n + kTile, &second, sizeof second);
  }
}
// out[n] += sum over k of x[k] * b[k * k_stride + n] for the whole couples of `nb` columns; gives the first column that is left. So
// many rows at once, from end to end, are streams that a machine sees by itself, and sums are read and written rarely.
template <class T>
static inline i64 add_long_rows(float* __restrict out, float* __restrict sums, const T* x, const T* b, i64 k_stride, i64 nb, i64 kb) {
  nb = nb / kCouple * kCouple;
  __builtin_memset(sums, 0, (size_t)nb * sizeof(float));
  // Rows whole pages apart fall into the same few lines of a first-level cache, which has room for half as many.
  const bool crowded = k_stride * (i64)sizeof(T) % 4096 == 0;
  i64 k = 0;
  for (; !crowded && k + kTile <= kb; k += kTile) add_rows_at_once<kTile>(sums, x + k, b + k * k_stride, k_stride, nb);
  for (; k + kTile / 2 <= kb; k += kTile / 2) add_rows_at_once<kTile / 2>(sums, x + k, b + k * k_stride, k_stride, nb);
  for (; k < kb; ++k) add_rows_at_once<1>(sums, x + k, b + k * k_stride, k_stride, nb);
  for (i64 n = 0; n < nb; n += kCouple) {
    const Couple sum = in_order(b, Couple{load_lanes(sums + n), load_lanes(sums + n + kTile)});
    const FloatLanes first = load_lanes(out + n) + sum.first, second = load_lanes(out + n + kTile) + sum.second;
    __builtin_memcpy(out + n, &first, sizeof first);
    __builtin_memcpy(out + n + kTile, &second, sizeof second);
  }
  return nb;
}

// The product with a block whose columns lie dense, b[n * n_stride + k]: turned, so that the block's columns are dot()'s rows and
// need no copy. What is copied instead is a, and the result: less where a has few rows. kb is not 0.
template <class T>
WEFT_SHARED void dot_turned(float* c, i64 ldc, bool add, const T* a, i64 lda, const T* b, i64 n_stride, i64 mb, i64 nb, i64 kb) {
  constexpr i64 kRows = 64, kColumns = 128, kDepth = 1024 / sizeof(T);
  alignas(kLine) T rows[kRows * kDepth];
  alignas(kLine) float turned[kColumns * kRows];
  for (i64 i = 0; i < mb; i += kRows)
    for (i64 k = 0; k < kb; k += kDepth) {
      const i64 height = min_index(kRows, mb - i), depth = min_index(kDepth, kb - k);
      const Panel<T> panel = stage_panel(rows, a + i * lda + k, 1, lda, depth, height);
      const bool more = add || k > 0;
      for (i64 n = 0; n < nb; n += kColumns) {
        const i64 width = min_index(kColumns, nb - n);
        float* const out = c + i * ldc + n;
        if (more) transpose<Word<4>>((char*)turned, height, (const char*)out, ldc, height, width);
        dot(turned, height, more, b + n * n_stride + k, n_stride, panel, width, height, depth);
        transpose<Word<4>>((char*)out, ldc, (const char*)turned, height, width, height);
      }
    }
}

// The product with a block that is not staged, element (k, n) at b[k * k_stride + n * n_stride]: where staging would cost more than
// the product. One of the two strides should be 1; for more than a few rows, k_stride.
template <class T>
WEFT_SHARED void dot_direct(Sum<T>* c, i64 ldc, bool add, const T* a, i64 lda, const T* b, i64 k_stride, i64 n_stride,
                       i64 mb, i64 nb, i64 kb) {
  if (k_stride == 1 && n_stride != 1) {
    if constexpr (is_float(Sum<T>{})) {
      const i64 few = sizeof(T) == 2 ? 2 : 5;
      if (mb > few && kb > 0 && n_stride >= kb) return dot_turned(c, ldc, add, a, lda, b, n_stride, mb, nb, kb);
    }
    i64 n = 0;
    if constexpr (is_float(Sum<T>{}))
      for (; n + kTile <= nb; n += kTile)
        for (i64 i = 0; i < mb; ++i) tile_products(c + i * ldc + n, add, a + i * lda, b + n * n_stride, n_stride, kb);
    for (; n + 4 <= nb; n += 4)  // four streams of b at a time keep more of memory busy
      for (i64 i = 0; i < mb; ++i) row_products<4>(c + i * ldc + n, add, a + i * lda, b + n * n_stride, n_stride, kb);
    for (; n < nb; ++n)
      for (i64 i = 0; i < mb; ++i) row_products<1>(c + i * ldc + n, add, a + i * lda, b + n * n_stride, n_stride, kb);
    return;
  }
  if (!add) zero(c, ldc, mb, nb);
  // Short sums are added up, not one long one: its rounding would grow with kb.
  // Several rows of a go over a block of b that stays in the cache; one takes rows of b from end to end.
  constexpr i64 kColumns = 2048, kDepth = 64;
  const i64 few = k_stride == nb ? 256 : 64;  // rows side by side are one stream however short they are
  const i64 wide = mb == 1 ? kColumns : kColumns / 2;
  Sum<T> part[kColumns];
  for (i64 n0 = 0; n0 < nb; n0 += wide)
    for (i64 k0 = 0; k0 < kb; k0 += kDepth)
      for (i64 i = 0; i < mb; ++i) {
        const i64 columns = min_index(wide, nb - n0), depth = min_index(kDepth, kb - k0);
        const T *x = a + i * lda + k0, *y = b + k0 * k_stride + n0 * n_stride;
        Sum<T>* const out = c + i * ldc + n0;
        i64 done = 0;
        if constexpr (is_float(Sum<T>{}))
          if (n_stride == 1)
            done = nb <= few ? add_short_rows(out, x, y, k_stride, columns, depth) : add_long_rows(out, part, x, y, k_stride, columns, depth);
        add_rows(part, x, y + done * n_stride, k_stride, n_stride, columns - done, depth);
#pragma omp simd
        for (i64 n = done; n < columns; ++n) out[n] += part[n - done];
      }
}

// ------------------------------------------------------------------------------- operands that lie anyhow

struct Yes {
  constexpr operator bool() const { return true; }
};
struct No {
  constexpr operator bool() const { return false; }
};
// Runs a loop nest whose innermost strides are all 1 where `dense` is true: it is compiled once for each case.
template <class Nest>
static inline auto with_dense(bool dense, Nest nest) {
  if (dense) return nest(Yes{});
  return nest(No{});
}

// Tells whether all of rows x columns elements are `number`; what follows the first stretch in which one is not is not read.
template <class N, class T>
static bool all_are(N number, const T* at, i64 row, i64 column, i64 rows, i64 columns) {
  if (row == 1 && column != 1) return all_are(number, at, column, row, columns, rows);
  constexpr i64 stretch = 64;
  return with_dense(column == 1, [=](auto dense) {
    const i64 step = dense ? 1 : column;
    for (i64 i = 0; i < rows; ++i)
      for (i64 start = 0; start < columns; start += stretch) {
        const T* const from = at + i * row + start * step;
        const i64 count = min_index(stretch, columns - start);
        unsigned char others = 0;
        if (dense && count == stretch) {
#pragma omp simd reduction(| : others)
          for (i64 j = 0; j < stretch; ++j) others |= (unsigned char)(load(from[j]) != number);
        } else {
          for (i64 j = 0; j < count; ++j) others |= (unsigned char)(load(from[j * step]) != number);
        }
        if (others) return false;
      }
    return true;
  });
}
// Bools as bytes, each 0 or 1, of which GCC makes vectors.
static bool all_are(bool number, const bool* at, i64 row, i64 column, i64 rows, i64 columns) {
  return all_are((unsigned char)number, (const unsigned char*)at, row, column, rows, columns);
}

// The first of `count` elements that is not `number`, and the one after the last: 0 and 0 where all are.
template <class N, class T>
static i64 first_other(N number, const T* at, i64 step, i64 count) {
  for (i64 i = 0; i < count; ++i)
    if (load(at[i * step]) != number) return i;
  return 0;
}
template <class N, class T>
static i64 after_others(N number, const T* at, i64 step, i64 count) {
  while (count > 0 && load(at[(count - 1) * step]) == number) --count;
  return count;
}

// Copies rows x columns elements as they lie. Where those of the source lie side by side down the columns, and those of the copy along
// the rows, whole lines of the source are read into a small square first: a line of which one element is read may be gone again before
// the next is.
template <class T>
static void copy_items(T* to, i64 to_row, i64 to_column, const T* from, i64 from_row, i64 from_column, i64 rows, i64 columns) {
  if (from_row != 1 || from_column == 1 || to_column != 1)
    return with_dense(to_column == 1 && from_column == 1, [&](auto dense) {
      const i64 put = dense ? 1 : to_column, take = dense ? 1 : from_column;
      for (i64 i = 0; i < rows; ++i) {
#pragma omp simd
        for (i64 j = 0; j < columns; ++j) to[i * to_row + j * put] = from[i * from_row + j * take];
      }
    });
  constexpr i64 side = 64 / sizeof(T);
  T square[side * side];
  for (i64 i = 0; i < rows; i += side)
    for (i64 j = 0; j < columns; j += side) {
      const i64 high = min_index(side, rows - i), wide = min_index(side, columns - j);
      const T* const first = from + i + j * from_column;
      for (i64 q = 0; q < wide; ++q) {
#pragma omp simd
        for (i64 p = 0; p < high; ++p) square[q * side + p] = first[q * from_column + p];
      }
      T* const put = to + i * to_row + j;
      for (i64 p = 0; p < high; ++p) {
#pragma omp simd
        for (i64 q = 0; q < wide; ++q) put[p * to_row + q] = square[q * side + p];
      }
    }
}

// Calls product(rows, lda, i, k, mb, kb) with parts of an mb x kb block of any strides, from row i and column k on,
// whose columns are dense: the block itself where they are, else copies on the stack.
template <class T, class Product>
static void in_dense_rows(const T* a, i64 a_m, i64 a_k, i64 mb, i64 kb, Product product) {
  constexpr i64 kRows = 32, kDepth = 256;
  if (mb == 1 && (a_k == 1 || kb <= 1)) return product(a, kb, (i64)0, (i64)0, mb, kb);
  if (a_k == 1 && a_m >= kb) return product(a, a_m, (i64)0, (i64)0, mb, kb);
  alignas(kLine) T rows[kRows * kDepth];
  for (i64 i = 0; i < mb; i += kRows) {
    i64 k = 0;
    do {  // once for an empty sum, too
      const i64 height = min_index(kRows, mb - i), depth = min_index(kDepth, kb - k);
      stage_rows(rows, kDepth, a + i * a_m + k * a_k, a_m, a_k, height, depth);
      product((const T*)rows, kDepth, i, k, height, depth);
      k += kDepth;
    } while (k < kb);
  }
}

// dot() for a left operand of any strides.
template <class T>
static void dot_strided(Sum<T>* c, i64 ldc, bool add, const T* a, i64 a_m, i64 a_k, Panel<T> panel, i64 mb, i64 nb, i64 kb) {
  in_dense_rows(a, a_m, a_k, mb, kb, [&](const T* rows, i64 lda, i64 i, i64 k, i64 height, i64 depth) {
    dot(c + i * ldc, ldc, add || k > 0, rows, lda, panel.at(k), height, nb, depth);
  });
}

// dot_direct() for a left operand of any strides.
template <class T>
static void dot_direct_strided(Sum<T>* c, i64 ldc, bool add, const T* a, i64 a_m, i64 a_k, const T* b, i64 k_stride,
                               i64 n_stride, i64 mb, i64 nb, i64 kb) {
  in_dense_rows(a, a_m, a_k, mb, kb, [&](const T* rows, i64 lda, i64 i, i64 k, i64 height, i64 depth) {
    dot_direct(c + i * ldc, ldc, add || k > 0, rows, lda, b + k * k_stride, k_stride, n_stride, height, nb, depth);
  });
}

// Element (k, n) of a right operand: one that lies in memory with these strides, or a panel.
template <class T>
static inline auto reader(const T* b, i64 k_stride, i64 n_stride) {
  return [=](i64 k, i64 n) { return factor(b[k * k_stride + n * n_stride]); };
}
template <class T>
static inline auto panel_reader(Panel<T> panel) {
  const i64 together = paired<T>() ? 2 : fourfold<T>() ? 4 : 1;  // rows that are interleaved
  const T* const at = panel.base;
  const i64 ld = panel.ld;
  return [=](i64 k, i64 n) { return factor(at[(k - k % together) * ld + n * together + k % together]); };
}
// The product of operands of two types, or into a result without dense rows: plain and slow, for rare programs.
template <class T, class Reader>
static void dot_anyhow(Sum<T>* c, i64 c_m, i64 c_n, bool add, const T* a, i64 a_m, i64 a_k, Reader b, i64 mb, i64 nb, i64 kb) {
  for (i64 i = 0; i < mb; ++i)
    for (i64 n = 0; n < nb; ++n) {
      Sum<T> sum = 0;
      for (i64 k0 = 0; k0 < kb; k0 += kDeep) {
        Sum<T> part = 0;
        for (i64 k = k0; k < min_index(kb, k0 + kDeep); ++k) part = fma(factor(a[i * a_m + k * a_k]), (Sum<T>)b(k, n), part);
        sum += part;
      }
      Sum<T>* out = c + i * c_m + n * c_n;
      *out = add ? *out + sum : sum;
    }
}

// ---------------------------------------------------------------------------------- what kernels share

// The products of blocks of T: declared by WEFT_DOTS(extern template, T), compiled by WEFT_DOTS(template, T).
#define WEFT_DOTS(which, T)                                                                              \
  which void dot_direct<T>(Sum<T>*, i64, bool, const T*, i64, const T*, i64, i64, i64, i64, i64);        \
  which void dot_turned<T>(float*, i64, bool, const T*, i64, const T*, i64, i64, i64, i64);              \
  which void plain_dot<false, T>(Sum<T>*, i64, bool, const T*, i64, Panel<T>, i64, i64, i64);
#define WEFT_PAIRED_DOTS(which, T) which void plain_dot<true, T>(Sum<T>*, i64, bool, const T*, i64, Panel<T>, i64, i64, i64);
#ifdef WEFT_DOTS_OF_float
WEFT_DOTS(extern template, float)
#endif
#ifdef WEFT_DOTS_OF_bf16
WEFT_DOTS(extern template, bf16)
WEFT_PAIRED_DOTS(extern template, bf16)
#endif

}  // namespace weft
