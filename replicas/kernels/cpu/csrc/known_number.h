// Turns a small number into a type, so that loops over it can be unrolled.
#pragma once

#include "simd.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

template <int M>
struct Number {
  static constexpr int value = M;
};

// Calls work(Number<number>), where number is between 1 and Most.
template <int Most, class Work>
PAGODA_INLINE void with_number(long number, Work work) {
  if constexpr (Most > 1)
    if (number < Most) return with_number<Most - 1>(number, work);
  work(Number<Most>{});
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
