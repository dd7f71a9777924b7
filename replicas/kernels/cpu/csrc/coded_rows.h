// Rows of activations as codes of int8, and products of a few of them with a packed weight of codes.
//
// Every 32 numbers of a row share a scale, so that the few large activations of a decoder (LLM.int8,
// Dettmers et al. 2022) cost their own group only. Sums of codes are exact, and
// groups are added in their order, so a row has the same bits in every batch.
#pragma once

#include "cache_codes.h"
#include "known_number.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

constexpr int kVectors = kPanel / kLanes;
constexpr long kGroupSteps = kGroup / 4;

// From so many rows on a tile computes for as long as the memory takes to bring another panel, which
// it may as well ask for. A tile of fewer is done before: it would wait for both.
constexpr int kFetchRows = 6;

// Into the second cache, what a tile reads in one step.
PAGODA_INLINE void fetch_step(const uint32_t* words) {
  constexpr long kLine = 16;
  for (long word = 0; word < kPanel; word += kLine) __builtin_prefetch(words + word, 0, 2);
}

// What a sum of products of one group begins with, since weights lie in their words plus 128, and
// what it is then multiplied by.
struct Group {
  float scale;
  int32_t offset;
};

// Rows of words; of codes also [rows][num_groups] groups, which plain numbers have not.
struct Matrix {
  const uint32_t* words;
  long rows;
  long stride;  // words from row to row
  const Group* groups;
  long num_groups;
};

PAGODA_INLINE Matrix plain_matrix(const void* data, long rows, const Packed& w) {
  return {static_cast<const uint32_t*>(data), rows, w.steps, nullptr, 0};
}

PAGODA_INLINE Matrix rows_from(const Matrix& x, long row) {
  return {x.words + row * x.stride, x.rows - row, x.stride, x.groups + row * x.num_groups,
          x.num_groups};
}

// How pack_panels sees a code.
struct Code {
  using T = int8_t;
  static constexpr long kPerWord = 4;
};

#if defined(__AVX512VNNI__)
// Four products and their sum in one instruction.
constexpr int kCodeTileRows = 8;
struct CodeProducts {
  static constexpr long kWords = 1;
  using Weight = VecU;

  static PAGODA_INLINE Weight widen(VecU word) { return word; }

  static PAGODA_INLINE VecI multiply_add(VecI total, Weight weight, const uint32_t* x) {
    return (VecI)_mm512_dpbusd_epi32((__m512i)total, (__m512i)weight, (__m512i)splat_word(*x));
  }
};
#else
#if defined(__AVX512BW__)
constexpr int kCodeTileRows = 6;
#elif defined(__AVX2__)
constexpr int kCodeTileRows = 2;
#else
constexpr int kCodeTileRows = 1;
#endif

// Both products of the pairs of 16 bits in each lane's word and in x, and their sum.
PAGODA_INLINE VecI pair_products(VecU words, uint32_t x) {
#if defined(__AVX512BW__)
  return (VecI)_mm512_madd_epi16((__m512i)words, (__m512i)splat_word(x));
#elif defined(__AVX2__)
  return (VecI)_mm256_madd_epi16((__m256i)words, (__m256i)splat_word(x));
#else
  VecI low = (VecI)(words & 0xffffu), high = (VecI)(words >> 16);
  return low * static_cast<int16_t>(x) + high * static_cast<int16_t>(x >> 16);
#endif
}

// In pairs of 16 bits: first the even ones of four codes, then the odd ones.
struct CodeProducts {
  static constexpr long kWords = 2;
  struct Weight {
    VecU even, odd;
  };

  static PAGODA_INLINE Weight widen(VecU word) {
    return {word & 0x00ff00ffu, (word >> 8) & 0x00ff00ffu};
  }

  static PAGODA_INLINE VecI multiply_add(VecI total, const Weight& weight, const uint32_t* x) {
    return total + pair_products(weight.even, x[0]) + pair_products(weight.odd, x[1]);
  }
};
#endif

PAGODA_INLINE uint32_t pair(int8_t low, int8_t high) {
  return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
}

PAGODA_INLINE void pair_up(const int8_t* codes, long steps, uint32_t* words) {
  for (long i = 0; i < steps; ++i, codes += 4) {
    words[2 * i] = pair(codes[0], codes[2]);
    words[2 * i + 1] = pair(codes[1], codes[3]);
  }
}

constexpr int kMostTileRows = kCodeTileRows > kTileRows ? kCodeTileRows : kTileRows;

PAGODA_INLINE int32_t sum_lanes(VecI value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)value);
#else
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += value[i];
  return sum;
#endif
}

PAGODA_INLINE float largest_size(VecI sizes) {
#if defined(__AVX512F__)
  int32_t largest = _mm512_reduce_max_epi32((__m512i)sizes);
#else
  int32_t largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = largest > sizes[i] ? largest : sizes[i];
#endif
  return __builtin_bit_cast(float, largest);
}

// The nearest whole numbers as bytes; ties go to even. Returns them as words.
PAGODA_INLINE VecI store_codes(VecF scaled, int8_t* to) {
#if defined(__AVX512F__)
  __m512i whole = _mm512_cvtps_epi32((__m512)scaled);
  __m128i bytes = _mm512_cvtepi32_epi8(whole);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
  return (VecI)whole;
#else
  VecI whole = __builtin_convertvector(nearest_whole(scaled), VecI);
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(whole[i]);
  return whole;
#endif
}

// Up to kGroup numbers to as many codes, and zeros up to a whole vector. Sizes are compared as bits,
// where what is not a number is larger than all: its group gets a scale that is none either.
template <class E>
PAGODA_INLINE Group code_group(const typename E::T* x, long count, int8_t* codes) {
  VecI sizes = {};
  for (long i = 0; i < count; i += kLanes) {
    VecI size = (VecI)absolute(load_few<E>(x + i, count - i));
    sizes = size > sizes ? size : sizes;
  }
  float largest = largest_size(sizes);
  if (largest < 1e-30f) largest = 1e-30f;
  float inverse = 127.0f / largest;
  VecI sum = {};
  for (long i = 0; i < count; i += kLanes)
    sum += store_codes(load_few<E>(x + i, count - i) * inverse, codes + i);
  return {largest * (1.0f / 127.0f), -128 * sum_lanes(sum)};
}

// Memory of code_bytes(rows, width) as rows of codes with their groups.
class Coded {
 public:
  Coded(char* memory, long rows, long width)
      : rows_(rows),
        width_(width),
        num_groups_((width + kGroup - 1) / kGroup),
        stride_((width + 15) / 16 * 4 * CodeProducts::kWords),
        words_(reinterpret_cast<uint32_t*>(memory)),
        groups_(reinterpret_cast<Group*>(words_ + rows * stride_)) {}

  template <class E>
  PAGODA_INLINE void put(long row, const typename E::T* x) {
    Group* groups = groups_ + row * num_groups_;
    uint32_t* words = words_ + row * stride_;
    for (long group = 0; group < num_groups_; ++group) {
      long first = group * kGroup, left = width_ - first, count = left < kGroup ? left : kGroup;
      if constexpr (CodeProducts::kWords == 1) {
        groups[group] = code_group<E>(x + first, count, reinterpret_cast<int8_t*>(words) + first);
      } else {
        alignas(64) int8_t codes[kGroup] = {};
        groups[group] = code_group<E>(x + first, count, codes);
        pair_up(codes, (count + 3) / 4, words + first / 2);
      }
    }
  }

  Matrix matrix() const { return {words_, rows_, stride_, groups_, num_groups_}; }

 private:
  long rows_, width_, num_groups_, stride_;
  uint32_t* words_;
  Group* groups_;
};

// Registers are given out for a whole function at once: loop by loop, as gcc would do it, the weights
// of some tiles are fetched from the stack for every product, at half the speed.
#if defined(__GNUC__) && !defined(__clang__)
#define PAGODA_ONE_REGION __attribute__((optimize("ira-region=one")))
#else
#define PAGODA_ONE_REGION
#endif

// out[M][32] = x[M] * panel[steps][32], without the scales of the weight. Fetches: see tile().
template <int M, bool Fetches>
PAGODA_ONE_REGION void coded_tile(Matrix x, const uint32_t* panel, long steps, float* out,
                                  const uint32_t* next) {
  constexpr long kWords = CodeProducts::kWords;
  VecF total[M][kVectors] = {};
  for (long group = 0; group < x.num_groups; ++group) {
    const Group* groups = x.groups + group;
    long first = group * kGroupSteps;
    long last = first + kGroupSteps < steps ? first + kGroupSteps : steps;
    VecI sum[M][kVectors];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < kVectors; ++v)
        sum[m][v] = (VecI)splat_word(groups[m * x.num_groups].offset);
    for (long step = first; step < last; ++step) {
      const uint32_t* words = panel + step * kPanel;
      if constexpr (Fetches) fetch_step(next + step * kPanel);
      CodeProducts::Weight weight[kVectors];
      for (int v = 0; v < kVectors; ++v)
        weight[v] = CodeProducts::widen(load<VecU>(words + v * kLanes));
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const uint32_t* own = x.words + m * x.stride + step * kWords;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[m][v] = CodeProducts::multiply_add(sum[m][v], weight[v], own);
      }
    }
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < kVectors; ++v)
        total[m][v] += __builtin_convertvector(sum[m][v], VecF) *
                       splat(groups[m * x.num_groups].scale);
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kVectors; ++v) store(out + m * kPanel + v * kLanes, total[m][v]);
}

PAGODA_INLINE void few_coded_rows(long rows, const Matrix& x, const uint32_t* panel, long steps,
                                  float* out, const uint32_t* next) {
  with_number<kCodeTileRows>(rows, [&](auto number) {
    constexpr int kRows = decltype(number)::value;
    if constexpr (kRows >= kFetchRows)
      if (next) return coded_tile<kRows, true>(x, panel, steps, out, next);
    coded_tile<kRows, false>(x, panel, steps, out, nullptr);
  });
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
