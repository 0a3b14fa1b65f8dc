// One product of blocks of the prelude, or the staging of its panel, over and over in one thread.
#include "prelude.h"

#include <chrono>

namespace {

using weft::i64;

// The right operand's rows lie `far` elements apart, or side by side where that is 0.
template <class T>
double seconds(int way, i64 rows, i64 columns, i64 depth, i64 far, i64 times) {
  constexpr i64 kBytes = 1 << 25;
  static char* const memory = (char*)aligned_alloc(4096, 4 * kBytes);
  const T* const a = (const T*)memory;
  const T* const b = (const T*)(memory + kBytes);
  T* const to = (T*)(memory + 2 * kBytes);
  weft::Sum<T>* const c = (weft::Sum<T>*)(memory + 3 * kBytes);
  const i64 across = far > columns ? far : columns, along = far > depth ? far : depth;
  const auto panel = weft::stage_panel(to, b, across, 1, depth, columns);
  const auto run = [&] {
    switch (way) {
      case 0: weft::dot(c, columns, true, a, depth, panel, rows, columns, depth); break;
      case 1: weft::dot_direct(c, columns, true, a, depth, b, across, 1, rows, columns, depth); break;
      case 2: weft::dot_direct(c, columns, true, a, depth, b, 1, along, rows, columns, depth); break;
      case 3: weft::stage_panel(to, b, across, 1, depth, columns); break;
      default: weft::stage_panel(to, b, 1, along, depth, columns);
    }
    asm volatile("" ::: "memory");
  };
  run();
  const auto begin = std::chrono::steady_clock::now();
  for (i64 i = 0; i < times; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / (double)times;
}

}  // namespace

extern "C" double product_seconds(int half, int way, i64 rows, i64 columns, i64 depth, i64 far, i64 times) {
  return half ? seconds<weft::bf16>(way, rows, columns, depth, far, times) : seconds<float>(way, rows, columns, depth, far, times);
}
