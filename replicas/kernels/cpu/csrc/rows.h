// What works row by row: norms, rotation with the write to the cache, activation.
#pragma once

#include "kernel_api.h"
#include "cache_codes.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

PAGODA_INLINE float root(float value) { return __builtin_sqrtf(value); }

// out = x / rms(x) * weight; x of type S, out of type E.
template <class S, class E>
PAGODA_INLINE void norm_row(const typename S::T* x, const float* weight, float eps,
                            typename E::T* out, long width) {
  VecF squares = {};
  for (long i = 0; i < width; i += kLanes) {
    VecF value = load_few<S>(x + i, width - i);
    squares += value * value;
  }
  float inverse = 1.0f / root(sum_lanes(squares) / width + eps);
  for (long i = 0; i < width; i += kLanes) {
    VecF value = load_few<S>(x + i, width - i) * inverse;
    store_few<E>(out + i, value * load_few<F32>(weight + i, width - i), width - i);
  }
}

template <class E>
PAGODA_INLINE void add_row(const typename E::T* x, float* residual, long width) {
  for (long i = 0; i < width; i += kLanes) {
    VecF sum = load_few<F32>(residual + i, width - i) + load_few<E>(x + i, width - i);
    store_few<F32>(residual + i, sum, width - i);
  }
}

template <class E>
PAGODA_INLINE void silu_row(const typename E::T* gate_up, typename E::T* out, long inner) {
  for (long i = 0; i < inner; i += kLanes) {
    VecF gate = load_few<E>(gate_up + i, inner - i), up = load_few<E>(gate_up + inner + i, inner - i);
    store_few<E>(out + i, gate / (1.0f + exponential(-gate)) * up, inner - i);
  }
}

// One head turned by its position, from and to memory that may be the same.
template <class E>
PAGODA_INLINE void rotate_head(const typename E::T* from, const typename E::T* cos,
                               const typename E::T* sin, typename E::T* to, long dim) {
  long half = dim / 2;
  for (long i = 0; i < half; i += kLanes) {
    long count = half - i;
    VecF low = load_few<E>(from + i, count), high = load_few<E>(from + half + i, count);
    VecF turned_low = low * load_few<E>(cos + i, count) + high * load_few<E>(sin + i, count);
    VecF turned_high =
        high * load_few<E>(cos + half + i, count) + low * load_few<E>(sin + half + i, count);
    store_few<E>(to + i, turned_low, count);
    store_few<E>(to + half + i, turned_high, count);
  }
}

// All heads of one token: normed if the model does so, rotated; keys and values to the cache.
template <class E>
void rotate_token(const RotateCall& call, const Heads& heads, const Cache& cache, long token,
                  long slot) {
  using T = typename E::T;
  long dim = heads.dim;
  T* own = static_cast<T*>(call.qkv) + token * call.stride;
  const T* cos = static_cast<const T*>(call.cos) + token * dim;
  const T* sin = static_cast<const T*>(call.sin) + token * dim;
  bool as_it_is = !widens(cache.held, call.element);
  T* keys = as_it_is ? static_cast<T*>(cache.keys) + slot * heads.kv * dim : own + heads.query * dim;
  for (long head = 0; head < heads.query + heads.kv; ++head) {
    T* at = own + head * dim;
    if (call.qk_norm) norm_row<E, E>(at, call.qk_norm + head * dim, call.eps, at, dim);
    bool is_key = head >= heads.query;
    rotate_head<E>(at, cos, sin, is_key ? keys + (head - heads.query) * dim : at, dim);
  }
  const T* v = static_cast<const T*>(call.v) + token * call.v_stride;
  if (as_it_is) {
    T* values = static_cast<T*>(cache.values) + slot * heads.kv * dim;
    __builtin_memcpy(values, v, heads.kv * dim * sizeof(T));
    return;
  }
  narrow_token<E>(cache.held, keys, heads, slot, cache.keys, cache.key_scales);
  narrow_token<E>(cache.held, v, heads, slot, cache.values, cache.value_scales);
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
