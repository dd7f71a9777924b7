// A KV cache of another type than the activations: numbers to codes and back.
//
// Codes and scales are those of replicas/kernels/reference/cache_access.py, bit for bit, so that
// blocks may go from one back end to another.
#pragma once

#include "kernel_api.h"
#include "simd.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

typedef int8_t VecC __attribute__((vector_size(kLanes)));

// The compiler's own conversion takes a detour over two or three sizes.
PAGODA_INLINE VecI whole_words(VecC codes) {
#if defined(__AVX512F__)
  return (VecI)_mm512_cvtepi8_epi32((__m128i)codes);
#elif defined(__AVX2__)
  return (VecI)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)codes));
#else
  return __builtin_convertvector(codes, VecI);
#endif
}

template <class V, class T>
PAGODA_INLINE V some(const T* from, long count) {
  if (count >= kLanes) return load<V>(from);
  T few[kLanes] = {};
  __builtin_memcpy(few, from, count * sizeof(T));
  return load<V>(few);
}

// What up to kLanes held numbers stand for, without their scale.
template <Held H>
PAGODA_INLINE VecF held_floats(const char* from, long count) {
  if constexpr (H == Held::kBf16)
    return load_few<Bf16>(reinterpret_cast<const uint16_t*>(from), count);
  if constexpr (H == Held::kF32)
    return load_few<F32>(reinterpret_cast<const float*>(from), count);
  VecC codes = some<VecC>(reinterpret_cast<const int8_t*>(from), count);
  VecI wide = whole_words(codes);
  if constexpr (H == Held::kInt8) return __builtin_convertvector(wide, VecF);
  // e4m3 has the sign, then 4 bits of exponent with a bias of 7: moved to where a float has them,
  // it is too small by 2^120, also below the normal numbers.
  VecU bits = (VecU)wide;
  return (VecF)((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 0x1p120f;
}

// Heads of one token, from number `scale` of the scales on, as E.
template <class E, Held H>
PAGODA_INLINE void widen_heads(const void* codes, const float* scales, long scale, long num_heads,
                               long dim, typename E::T* to) {
  constexpr long kBytes = bytes_of(H);
  const char* from = static_cast<const char*>(codes) + scale * dim * kBytes;
  for (long head = 0; head < num_heads; ++head, from += dim * kBytes, to += dim) {
    VecF factor = splat(kBytes == 1 ? scales[scale + head] : 1.0f);
    long i = 0;
    for (; i + kLanes <= dim; i += kLanes)
      E::store_floats(to + i, held_floats<H>(from + i * kBytes, kLanes) * factor);
    if (i < dim) store_few<E>(to + i, held_floats<H>(from + i * kBytes, dim - i) * factor, dim - i);
  }
}

template <Held H>
struct Holding {
  static constexpr Held value = H;
};

// Calls work with the type that stands for what is held.
template <class Work>
PAGODA_INLINE void with_held(Held held, Work work) {
  switch (held) {
    case Held::kBf16: return work(Holding<Held::kBf16>{});
    case Held::kF32: return work(Holding<Held::kF32>{});
    case Held::kInt8: return work(Holding<Held::kInt8>{});
    case Held::kFp8: return work(Holding<Held::kFp8>{});
  }
}

// Finite numbers for numbers that are not: a model that overflows must not spoil a block.
PAGODA_INLINE VecF made_finite(VecF value) {
  VecF known = value == value ? value : splat(0.0f);
  VecF bounded = known < 1e30f ? known : splat(1e30f);
  return bounded > -1e30f ? bounded : splat(-1e30f);
}

PAGODA_INLINE VecF absolute(VecF value) { return (VecF)((VecU)value & 0x7fffffffu); }

PAGODA_INLINE VecF nearest_whole(VecF value) {
  const float magic = 12582912.0f;
  return (value + magic) - magic;
}

// The byte of each scaled number, in the low bits of its lane; ties go to even.
PAGODA_INLINE VecI code_of(Held held, VecF scaled) {
  if (held == Held::kInt8) return __builtin_convertvector(nearest_whole(scaled), VecI);
  VecF size = absolute(scaled);
  // Below 2^-6 steps are 2^-9. Above, 3 bits of fraction are kept and the bias goes from 127 to 7.
  VecI small = __builtin_convertvector(nearest_whole(size * 512.0f), VecI);
  VecU bits = (VecU)size;
  VecI normal = (VecI)((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120 << 3);
  VecI code = size < 0x1p-6f ? small : normal;
  return code | (VecI)(((VecU)scaled >> 24) & 0x80u);
}

// One head of a token: its scale, and its codes to `to`.
template <class E>
PAGODA_INLINE float narrow_head(Held held, const typename E::T* from, long dim, int8_t* to) {
  float top = held == Held::kInt8 ? 127.0f : 448.0f;
  VecF most = {};
  for (long i = 0; i < dim; i += kLanes)
    most = larger(most, absolute(made_finite(load_few<E>(from + i, dim - i))));
  float scale = largest_lane(most) / top;
  if (scale < 0x1p-126f) scale = 0x1p-126f;
  for (long i = 0; i < dim; i += kLanes) {
    VecF scaled = made_finite(load_few<E>(from + i, dim - i)) / scale;
    scaled = scaled < top ? scaled : splat(top);
    scaled = scaled > -top ? scaled : splat(-top);
    int32_t codes[kLanes];
    store(codes, code_of(held, scaled));
    for (long lane = 0; lane < kLanes && i + lane < dim; ++lane)
      to[i + lane] = static_cast<int8_t>(codes[lane]);
  }
  return scale;
}

// All KV heads of one token into its slot.
template <class E>
void narrow_token(Held held, const typename E::T* from, const Heads& heads, long slot, void* to,
                  float* scales) {
  long size = heads.kv * heads.dim;
  if (held == Held::kBf16 || held == Held::kF32) {
    for (long i = 0; i < size; i += kLanes) {
      VecF value = load_few<E>(from + i, size - i);
      if (held == Held::kBf16)
        store_few<Bf16>(static_cast<uint16_t*>(to) + slot * size + i, value, size - i);
      else
        store_few<F32>(static_cast<float*>(to) + slot * size + i, value, size - i);
    }
    return;
  }
  for (long head = 0; head < heads.kv; ++head)
    scales[slot * heads.kv + head] =
        narrow_head<E>(held, from + head * heads.dim, heads.dim,
                       static_cast<int8_t*>(to) + slot * size + head * heads.dim);
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
