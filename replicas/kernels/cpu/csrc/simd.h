// Vectors as wide as the instruction set has them, and the two element types in terms of them.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define PAGODA_INLINE inline __attribute__((always_inline))

namespace pagoda {
namespace PAGODA_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // 24 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 2;  // 8 accumulators of 16 registers; the rest holds unpacked weights
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 1;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));

template <class V>
PAGODA_INLINE V load(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
PAGODA_INLINE void store(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// The compiler's own way adds to a zero, which takes a register.
#if defined(__AVX512F__)
PAGODA_INLINE VecF splat(float value) { return (VecF)_mm512_set1_ps(value); }
PAGODA_INLINE VecU splat_word(uint32_t value) { return (VecU)_mm512_set1_epi32(value); }
#else
PAGODA_INLINE VecF splat(float value) { return VecF{} + value; }
PAGODA_INLINE VecU splat_word(uint32_t value) { return VecU{} + value; }
#endif

PAGODA_INLINE VecF larger(VecF a, VecF b) { return a > b ? a : b; }

// Halves are added to halves, so the order is the same for every use.
PAGODA_INLINE float sum_lanes(VecF value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}

PAGODA_INLINE float largest_lane(VecF value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

// e^x to about 2 ulp: x is split into whole powers of two and a rest below ln(2) / 2, whose series
// has six terms. Exactly 1 at 0, exactly 0 below -87.
PAGODA_INLINE VecF exponential(VecF x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  VecF bounded = larger(x, splat(-87.0f));
  bounded = bounded < 88.0f ? bounded : splat(88.0f);
  VecF shifted = bounded * 1.44269504f + magic;
  VecF whole = shifted - magic;
  VecF rest = bounded - whole * 0.693359375f;
  rest = rest + whole * 2.12194440e-4f;
  VecF series = splat(1.9875691500e-4f);
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  VecI exponent = ((VecI)shifted - (VecI)splat(magic)) << 23;
  VecF result = (VecF)((VecI)series + exponent);
  return x < -87.0f ? splat(0.0f) : result;
}

// 2^x to about 2 ulp; exactly 1 at 0, exactly 0 below -126 or so and at minus infinity.
PAGODA_INLINE VecF power_of_two(VecF x) {
  VecF bounded = larger(x, splat(-160.0f));
#if defined(__AVX512F__)
  VecF whole = (VecF)_mm512_roundscale_ps((__m512)bounded, _MM_FROUND_TO_NEAREST_INT);
#else
  const float magic = 12582912.0f;
  VecF whole = (bounded + magic) - magic;
#endif
  VecF rest = bounded - whole;
  VecF series = splat(1.3393414e-3f);
  series = series * rest + 9.6185423e-3f;
  series = series * rest + 5.5503324e-2f;
  series = series * rest + 2.4022647e-1f;
  series = series * rest + 6.9314718e-1f;
  series = series * rest + 1.0f;
#if defined(__AVX512F__)
  return (VecF)_mm512_scalef_ps((__m512)series, (__m512)whole);
#else
  VecI exponent = ((VecI)(whole + magic) - (VecI)splat(magic)) << 23;
  VecF result = (VecF)((VecI)series + exponent);
  return bounded < -126.0f ? splat(0.0f) : result;
#endif
}

PAGODA_INLINE float power_of_two(float x) { return power_of_two(splat(x))[0]; }

// 2^x to about 1e-4, below what bf16 can tell; exactly 1 at 0 and 0 at minus infinity.
PAGODA_INLINE VecF rough_power_of_two(VecF x) {
#if defined(__AVX512DQ__)
  VecF rest = (VecF)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
  VecF series = splat(0.0782679638f);
  series = series * rest + 0.2263076762f;
  series = series * rest + 0.6954243600f;
  series = series * rest + 1.0f;
  return (VecF)_mm512_scalef_ps((__m512)series, (__m512)x);
#else
  return power_of_two(x);
#endif
}

// The two elements of a word of bf16, each in a lane of its own.
struct Halves {
  VecF low, high;
};

PAGODA_INLINE Halves halves_of(VecU words) {
  return {(VecF)(words << 16), (VecF)(words & 0xffff0000u)};
}

// An element type says how a product takes it: kRowWords words of a row for a word of the weight, which
// becomes a Weight once for all rows of a tile.
//
// bf16: a word holds two elements.
struct Bf16 {
  using T = uint16_t;
  static constexpr long kPerWord = 2;
  static constexpr long kRowWords = 1;

  static PAGODA_INLINE VecF load_floats(const T* from) {
#if defined(__AVX512F__)
    return (VecF)((VecU)_mm512_cvtepu16_epi32((__m256i)load<VecH>(from)) << 16);
#elif defined(__AVX2__)
    return (VecF)((VecU)_mm256_cvtepu16_epi32((__m128i)load<VecH>(from)) << 16);
#else
    return (VecF)(__builtin_convertvector(load<VecH>(from), VecU) << 16);
#endif
  }

  static PAGODA_INLINE VecH rounded(VecF value) {
#if defined(__AVX512BF16__)
    return (VecH)_mm512_cvtneps_pbh((__m512)value);
#else
    VecU bits = (VecU)value;
    VecU nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    VecI is_nan = value != value;
    VecU chosen = is_nan ? splat_word(0x7fc0) : nearest;
    return __builtin_convertvector(chosen, VecH);
#endif
  }

  static PAGODA_INLINE void store_floats(T* to, VecF value) { store(to, rounded(value)); }
  static PAGODA_INLINE VecF power_of_two(VecF x) { return rough_power_of_two(x); }

  // total + both products of the pairs in each lane's word and in the word at x.
#if defined(__AVX512BF16__)
  using Weight = VecU;
  static PAGODA_INLINE Weight widen(VecU words) { return words; }
  static PAGODA_INLINE VecF multiply_add(VecF total, Weight weight, const uint32_t* x) {
    return (VecF)_mm512_dpbf16_ps((__m512)total, (__m512bh)weight, (__m512bh)splat_word(*x));
  }
#else
  using Weight = Halves;
  static PAGODA_INLINE Weight widen(VecU words) { return halves_of(words); }
  static PAGODA_INLINE VecF multiply_add(VecF total, const Weight& weight, const uint32_t* x) {
    total = total + weight.low * (VecF)splat_word(*x << 16);
    return total + weight.high * (VecF)splat_word(*x & 0xffff0000u);
  }
#endif
};

// The same with a row that was widened to f32 before, since without an instruction for pairs it would
// take as long to split its words, for every panel again, as to multiply.
struct WideBf16 {
  static constexpr long kRowWords = 2;
  using Weight = Halves;
  static PAGODA_INLINE Weight widen(VecU words) { return halves_of(words); }
  static PAGODA_INLINE VecF multiply_add(VecF total, const Weight& weight, const uint32_t* x) {
    total = total + weight.low * (VecF)splat_word(x[0]);
    return total + weight.high * (VecF)splat_word(x[1]);
  }
};

// f32: a word is one element.
struct F32 {
  using T = float;
  static constexpr long kPerWord = 1;
  static constexpr long kRowWords = 1;
  using Weight = VecF;

  static PAGODA_INLINE VecF load_floats(const T* from) { return load<VecF>(from); }
  static PAGODA_INLINE void store_floats(T* to, VecF value) { store(to, value); }
  static PAGODA_INLINE VecF power_of_two(VecF x) { return PAGODA_ISA::power_of_two(x); }
  static PAGODA_INLINE Weight widen(VecU words) { return (VecF)words; }
  static PAGODA_INLINE VecF multiply_add(VecF total, Weight weight, const uint32_t* x) {
    return total + weight * (VecF)splat_word(*x);
  }
};

// What rows of E become for a product with a weight.
template <class E>
struct RowsOf {
  using Kind = E;
};
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
template <>
struct RowsOf<Bf16> {
  using Kind = WideBf16;
};
#endif
template <class E>
constexpr bool kWidensRows = RowsOf<E>::Kind::kRowWords != E::kRowWords;

// The same for the last elements of a row, fewer than a vector has lanes.
template <class E>
PAGODA_INLINE VecF load_few(const typename E::T* from, long count) {
  if (count >= kLanes) return E::load_floats(from);
  typename E::T few[kLanes] = {};
  __builtin_memcpy(few, from, count * sizeof(few[0]));
  return E::load_floats(few);
}

template <class E>
PAGODA_INLINE void store_few(typename E::T* to, VecF value, long count) {
  if (count >= kLanes) return E::store_floats(to, value);
  typename E::T few[kLanes];
  E::store_floats(few, value);
  __builtin_memcpy(to, few, count * sizeof(few[0]));
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
