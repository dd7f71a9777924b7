// The two products of attention for one query token, straight from the cache.
//
// The heads that share a KV head are too few to pay for packing keys and values first. Every sum
// is added up in the order in which product.h would, so both ways give the same bits.
#pragma once

#include "softmax.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr bool kHasDirect = true;

// scores[M][32] of 32 keys; fetches the same part of the keys `ahead`.
template <class E, int M>
void direct_scores(const typename E::T* const* keys, const typename E::T* const* ahead, long offset,
                   long words, const uint32_t* queries, float* scores) {
  const uint32_t* rows[kPanel];
  for (int i = 0; i < kPanel; ++i)
    rows[i] = reinterpret_cast<const uint32_t*>(keys[i] + offset);
  for (int half = 0; half < kPanel; half += 16) {
    VecF total[M] = {};
    for (long word = 0; word < words; word += 16) {
      __m512i columns[16];
      transpose_words(rows + half, word, columns);
      for (int i = 0; i < 16; ++i)
        fetch_line(reinterpret_cast<const uint32_t*>(ahead[half + i] + offset) + word);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        for (int m = 0; m < M; ++m)
          total[m] = E::multiply_add(total[m], E::widen((VecU)columns[i]),
                                     queries + m * words + word + i);
    }
    for (int m = 0; m < M; ++m) store(scores + m * kSplit + half, total[m]);
  }
}

// sums[M][width] += weights of 32 keys times their values; fetches the same part of `ahead`.
template <class E, int M>
void direct_values(const typename E::T* const* values, const typename E::T* const* ahead,
                   long offset, long width, const uint32_t* weights, float* sums) {
  for (long column = 0; column < width; column += kPanel) {
    VecF total[M][2];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < 2; ++v) total[m][v] = load<VecF>(sums + m * width + column + v * 16);
    for (long key = 0; key < kPanel; key += E::kPerWord) {
      VecU words[2];
      value_words(E{}, values + key, offset + column, words);
      for (long i = 0; i < E::kPerWord; ++i) fetch_line(ahead[key + i] + offset + column);
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < 2; ++v)
          total[m][v] = E::multiply_add(total[m][v], E::widen(words[v]),
                                        weights + m * kSplit + key / E::kPerWord);
    }
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < 2; ++v) store(sums + m * width + column + v * 16, total[m][v]);
  }
}
#else
constexpr bool kHasDirect = false;

template <class E, int M>
void direct_scores(const typename E::T* const*, const typename E::T* const*, long, long,
                   const uint32_t*, float*) {}
template <class E, int M>
void direct_values(const typename E::T* const*, const typename E::T* const*, long, long,
                   const uint32_t*, float*) {}
#endif

constexpr long kMostDirect = 8;  // query heads of a KV head, so that sums stay in registers

PAGODA_INLINE bool can_go_direct(const Heads& heads, long words) {
  return kHasDirect && heads.query / heads.kv <= kMostDirect && words % 16 == 0 &&
         heads.dim % kPanel == 0;
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
