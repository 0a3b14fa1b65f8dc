// What one call of `weft doctor --measure` times: reads of a buffer that each thread has to itself, or multiplications
// with additions in registers. Every thread starts when all are ready, and the slowest one's seconds count.
//
// words: the address of `repeats` doubles, all 0, for seconds; repeats; threads; passes in a repeat; bytes of each
// thread's part of the buffer; the buffer's address.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <omp.h>

// The flags that kernels are compiled with forbid fused multiplications with additions; here they are what is measured.
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(__AVX512F__)
#define WEFT_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define WEFT_VECTOR_BYTES 32
#else
#define WEFT_VECTOR_BYTES 16
#endif

namespace {

typedef std::uint64_t Words __attribute__((vector_size(WEFT_VECTOR_BYTES), may_alias));
typedef float Floats __attribute__((vector_size(WEFT_VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(WEFT_VECTOR_BYTES)));

constexpr int chains = 12;  // enough to hide the latency of two units, and few enough for 16 registers
constexpr std::int64_t steps = 1024;

struct Call {
  double* seconds;
  std::int64_t repeats, threads, passes, bytes;
  char* buffer;
  explicit Call(const std::int64_t* words)
      : seconds(reinterpret_cast<double*>(words[0])), repeats(words[1]), threads(words[2]), passes(words[3]), bytes(words[4]),
        buffer(reinterpret_cast<char*>(words[5])) {}
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
void keep(const T& value) {  // the compiler must believe that the value is used
  asm volatile("" : : "m"(value) : "memory");
}

template <typename Pass>
void timed(const Call& call, const Pass& pass) {
  for (std::int64_t repeat = -1; repeat < call.repeats; ++repeat) {  // the first one only fills the caches
#pragma omp barrier
    const double begin = now();
    for (std::int64_t n = 0; n < (repeat < 0 ? 1 : call.passes); ++n) pass();
    const double taken = now() - begin;  // without the wait for others, which is long where other programs have their cores
#pragma omp critical
    if (repeat >= 0 && taken > call.seconds[repeat]) call.seconds[repeat] = taken;
  }
}

void read(const char* buffer, std::int64_t bytes) {
  Words sums[8] = {};
  const auto* data = reinterpret_cast<const Words*>(buffer);
  const std::int64_t count = bytes / std::int64_t(sizeof(Words));
  for (std::int64_t i = 0; i + 8 <= count; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] |= data[i + k];
  Words all = sums[0];
  for (int k = 1; k < 8; ++k) all |= sums[k];
  keep(all);  // a copy: the address of one of `sums` would keep them all in memory
}

template <typename Vector, typename Scalar>
void multiply(volatile const Scalar& given) {
  const Vector factor = Vector{} + given;
  Vector sums[chains];
  for (int k = 0; k < chains; ++k) sums[k] = factor + Scalar(k);
  for (std::int64_t i = 0; i < steps; ++i)
    for (int k = 0; k < chains; ++k) sums[k] = sums[k] * factor + factor;
  for (int k = 0; k < chains; ++k) keep(sums[k]);
}

template <typename Vector, typename Scalar>
void multiplications(const std::int64_t* words) {
  const Call call(words);
  volatile const Scalar given = Scalar(0.5);
#pragma omp parallel num_threads(int(call.threads))
  timed(call, [&] { multiply<Vector, Scalar>(given); });
}

}  // namespace

extern "C" void weft_read(const std::int64_t* words) {
  const Call call(words);
#pragma omp parallel num_threads(int(call.threads))
  {
    char* buffer = call.buffer + omp_get_thread_num() * call.bytes;
    std::memset(buffer, 1, std::size_t(call.bytes));  // first touched by the thread that reads it
    timed(call, [&] { read(buffer, call.bytes); });
  }
}

// The operations of one pass of one thread, two for each multiplication with its addition, as a double, at the first word's address.
extern "C" void weft_float32_work(const std::int64_t* words) { *Call(words).seconds = 2.0 * chains * steps * WEFT_VECTOR_BYTES / 4; }
extern "C" void weft_float64_work(const std::int64_t* words) { *Call(words).seconds = 2.0 * chains * steps * WEFT_VECTOR_BYTES / 8; }

extern "C" void weft_float32(const std::int64_t* words) { multiplications<Floats, float>(words); }
extern "C" void weft_float64(const std::int64_t* words) { multiplications<Doubles, double>(words); }
