// Scores to weights within a split, and the merging of splits (FlashAttention, FlashDecoding).
#pragma once

#include "key_value_tiles.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;

// An unfinished result of one query: [0] largest score times scale, in powers of two, [1] sum of
// weights, then from kHeader on the sums of values.
constexpr long kHeader = 16;

PAGODA_INLINE void clear_result(float* result, long size) {
  __builtin_memset(result, 0, size * sizeof(float));
  result[0] = -__builtin_inff();
}

// into = both parts of one softmax; a part that saw nothing changes no bit. `values` are the sums
// that belong to `part`.
PAGODA_INLINE void merge_results(float* into, const float* part, const float* values, long width) {
  if (part[0] == -__builtin_inff()) return;
  float largest = into[0] > part[0] ? into[0] : part[0];
  float old_share = power_of_two(into[0] - largest), new_share = power_of_two(part[0] - largest);
  into[0] = largest;
  into[1] = into[1] * old_share + part[1] * new_share;
  float* sums = into + kHeader;
  for (long i = 0; i < width; i += kLanes)
    store(sums + i, load<VecF>(sums + i) * old_share + load<VecF>(values + i) * new_share);
}

template <class E>
PAGODA_INLINE void finish_result(const float* result, typename E::T* out, long dim) {
  float inverse = 1.0f / result[1];
  for (long i = 0; i < dim; i += kLanes)
    store_few<E>(out + i, load<VecF>(result + kHeader + i) * inverse, dim - i);
}

// Scores of keys from to last (multiples of 32) become weights 2^(score * factor - largest); only
// seen_from to seen_to count. header gets the first two numbers of a result.
template <class E>
PAGODA_INLINE void weigh(float* scores, typename E::T* weights, long from, long last,
                         long seen_from, long seen_to, float factor, float* header) {
  const float nothing = -__builtin_inff();
  for (long i = from; i < seen_from; ++i) scores[i] = nothing;
  for (long i = seen_to < from ? from : seen_to; i < last; ++i) scores[i] = nothing;
  VecF most = splat(nothing);
  for (long i = from; i < last; i += kLanes) most = larger(most, load<VecF>(scores + i));
  float largest = largest_lane(most);
  header[0] = largest * factor;
  float offset = largest == nothing ? 0.0f : -largest * factor;
  VecF sum = {};
  for (long i = from; i < last; i += kLanes) {
    VecF weight = E::power_of_two(load<VecF>(scores + i) * factor + offset);
    sum += weight;
    E::store_floats(weights + i, weight);
  }
  header[1] = sum_lanes(sum);
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
