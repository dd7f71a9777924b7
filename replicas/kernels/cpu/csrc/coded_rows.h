// Rows of activations as codes of int8, and products of a few of them with a packed weight of codes.
//
// Every 64 numbers of a row share a scale (as in LLM.int8's vector-wise codes, but finer, so that
// the few large activations of a decoder cost their own group only). Sums of codes are exact, and
// groups are added in their order, so a row has the same bits in every batch.
#pragma once

#include "cache_codes.h"
#include "known_number.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

constexpr int kVectors = kPanel / kLanes;
constexpr long kGroupSteps = kGroup / 4;

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
constexpr int kCodeTileRows = 12;
struct CodeProducts {
  static constexpr long kWords = 1;
  using Weight = VecU;

  static PAGODA_INLINE void lay_out(const int8_t* codes, long steps, uint32_t* words) {
    __builtin_memcpy(words, codes, steps * 4);
  }

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

  static PAGODA_INLINE uint32_t pair(int8_t low, int8_t high) {
    return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
  }

  static PAGODA_INLINE void lay_out(const int8_t* codes, long steps, uint32_t* words) {
    for (long i = 0; i < steps; ++i, codes += 4) {
      words[2 * i] = pair(codes[0], codes[2]);
      words[2 * i + 1] = pair(codes[1], codes[3]);
    }
  }

  static PAGODA_INLINE Weight widen(VecU word) {
    return {word & 0x00ff00ffu, (word >> 8) & 0x00ff00ffu};
  }

  static PAGODA_INLINE VecI multiply_add(VecI total, const Weight& weight, const uint32_t* x) {
    return total + pair_products(weight.even, x[0]) + pair_products(weight.odd, x[1]);
  }
};
#endif

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

// Up to 64 numbers to as many codes; those beyond `count` are zero. A group with a number that is
// not finite gets a scale that is not, as the product would be.
template <class E>
PAGODA_INLINE Group code_group(const typename E::T* x, long count, int8_t* codes) {
  VecF most = {}, spoilt = {};
  for (long i = 0; i < count; i += kLanes) {
    VecF value = load_few<E>(x + i, count - i);
    most = larger(absolute(value), most);
    spoilt += value * 0.0f;
  }
  float largest = largest_lane(most);
  if (largest < 1e-30f) largest = 1e-30f;
  float inverse = 127.0f / largest;
  VecI sum = {};
  for (long i = 0; i < count; i += kLanes)
    sum += store_codes(load_few<E>(x + i, count - i) * inverse, codes + i);
  return {largest / 127.0f + sum_lanes(spoilt), -128 * sum_lanes(sum)};
}

// Memory of code_bytes(rows, width) as rows of codes with their groups.
class Coded {
 public:
  Coded(char* memory, long rows, long width)
      : rows_(rows),
        width_(width),
        steps_((width + 3) / 4),
        num_groups_((width + kGroup - 1) / kGroup),
        words_(reinterpret_cast<uint32_t*>(memory)),
        groups_(reinterpret_cast<Group*>(words_ + rows * steps_ * CodeProducts::kWords)) {}

  template <class E>
  PAGODA_INLINE void put(long row, const typename E::T* x) {
    uint32_t* words = words_ + row * steps_ * CodeProducts::kWords;
    for (long group = 0; group < num_groups_; ++group) {
      long first = group * kGroup, left = width_ - first, steps = steps_ - group * kGroupSteps;
      alignas(64) int8_t codes[kGroup] = {};
      groups_[row * num_groups_ + group] = code_group<E>(x + first, left < kGroup ? left : kGroup,
                                                         codes);
      CodeProducts::lay_out(codes, steps < kGroupSteps ? steps : kGroupSteps,
                            words + group * kGroupSteps * CodeProducts::kWords);
    }
  }

  Matrix matrix() const {
    return {words_, rows_, steps_ * CodeProducts::kWords, groups_, num_groups_};
  }

 private:
  long rows_, width_, steps_, num_groups_;
  uint32_t* words_;
  Group* groups_;
};

// out[M][32] = x[M] * panel[steps][32], without the scales of the weight.
template <int M>
void coded_tile(const Matrix& x, const uint32_t* panel, long steps, float* out) {
  constexpr long kWords = CodeProducts::kWords;
  VecF total[M][kVectors] = {};
  for (long group = 0; group < x.num_groups; ++group) {
    long first = group * kGroupSteps;
    long last = first + kGroupSteps < steps ? first + kGroupSteps : steps;
    VecI sum[M][kVectors];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < kVectors; ++v)
        sum[m][v] = VecI{} + x.groups[m * x.num_groups + group].offset;
    for (long step = first; step < last; ++step) {
      const uint32_t* words = panel + step * kPanel;
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
                       splat(x.groups[m * x.num_groups + group].scale);
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kVectors; ++v) store(out + m * kPanel + v * kLanes, total[m][v]);
}

PAGODA_INLINE void few_coded_rows(long rows, const Matrix& x, const uint32_t* panel, long steps,
                                  float* out) {
  with_number<kCodeTileRows>(rows, [&](auto number) {
    coded_tile<decltype(number)::value>(x, panel, steps, out);
  });
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
