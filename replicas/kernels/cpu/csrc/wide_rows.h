// Rows of activations in f32, for products with a weight of bf16 that are computed in f32.
#pragma once

#include "coded_rows.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

// Memory of wide_bytes(rows, width) as rows of floats.
class Wide {
 public:
  Wide(char* memory, long rows, long width)
      : rows_(rows), width_(width), floats_(reinterpret_cast<float*>(memory)) {}

  template <class E>
  PAGODA_INLINE void put(long row, const typename E::T* x) {
    float* own = floats_ + row * width_;
    for (long i = 0; i < width_; i += kLanes)
      store_few<F32>(own + i, load_few<E>(x + i, width_ - i), width_ - i);
  }

  Matrix matrix() const {
    return {reinterpret_cast<const uint32_t*>(floats_), rows_, width_, nullptr, 0};
  }

 private:
  long rows_, width_;
  float* floats_;
};

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
