// Checked views of torch's tensors as the plain structs of the kernels.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <string>

#include "instruction_sets.h"

namespace pagoda {

using at::Tensor;

inline Element element_of(const Tensor& tensor) {
  if (tensor.scalar_type() == at::kBFloat16) return Element::kBf16;
  TORCH_CHECK(tensor.scalar_type() == at::kFloat, "cpu kernels: ", tensor.scalar_type(),
              " is not supported; expected bfloat16 or float32");
  return Element::kF32;
}

inline void check(const Tensor& tensor, at::ScalarType type, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.is_contiguous(), "cpu kernels: ", name,
              " must be contiguous ", type);
}

template <class T>
const T* read(const Tensor& tensor, const char* name) {
  check(tensor, c10::CppTypeToScalarType<T>::value, name);
  return tensor.const_data_ptr<T>();
}

// Null for an empty tensor.
inline const float* read_or_null(const Tensor& tensor, const char* name) {
  return tensor.numel() ? read<float>(tensor, name) : nullptr;
}

inline const Kernels& kernels_of(int64_t isa) { return *kInstructionSets[isa].kernels; }

// scales: empty for a weight that is not of codes.
inline Packed packed_of(at::ArrayRef<Tensor> parts, Element element, int64_t out, int64_t in) {
  const Tensor &panels = parts[0], &scales = parts[1], &bias = parts[2];
  long per_word = scales.numel() ? 4 : element == Element::kBf16 ? 2 : 1;
  long num_panels = (out + kPanel - 1) / kPanel, steps = (in + per_word - 1) / per_word;
  TORCH_CHECK(panels.numel() == num_panels * steps * kPanel, "cpu kernels: packed weight has ",
              panels.numel(), " words, expected ", num_panels * steps * kPanel);
  TORCH_CHECK(scales.numel() == 0 || scales.numel() == out, "cpu kernels: ", scales.numel(),
              " scales for ", out, " outputs");
  return {reinterpret_cast<const uint32_t*>(read<int32_t>(panels, "panels")),
          read_or_null(scales, "scales"),
          read_or_null(bias, "bias"),
          out,
          in,
          steps};
}

inline Held held_by(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16: return Held::kBf16;
    case at::kFloat: return Held::kF32;
    case at::kChar: return Held::kInt8;
    case at::kFloat8_e4m3fn: return Held::kFp8;
    default: TORCH_CHECK(false, "cpu kernels: a KV cache of ", tensor.scalar_type());
  }
}

// parts: keys, values, and in a quantised cache the scales of both.
inline Cache cache_of(at::ArrayRef<Tensor> parts, const Heads& heads) {
  for (const Tensor& tensor : parts.slice(0, 2))
    TORCH_CHECK(tensor.dim() == 4 && tensor.is_contiguous() && tensor.size(2) == heads.kv &&
                    tensor.size(3) == heads.dim && held_by(tensor) == held_by(parts[0]),
                "cpu kernels: a cache of shape ", tensor.sizes(), " was not expected");
  Held held = held_by(parts[0]);
  Cache cache{held, parts[0].data_ptr(), parts[1].data_ptr(), nullptr, nullptr, parts[0].size(1)};
  if (bytes_of(held) > 1) return cache;
  for (const Tensor& scales : parts.slice(2, 2)) {
    check(scales, at::kFloat, "scales");
    TORCH_CHECK(scales.numel() * heads.dim == parts[0].numel(), "cpu kernels: scales of shape ",
                scales.sizes(), " beside codes of shape ", parts[0].sizes());
  }
  cache.key_scales = parts[2].data_ptr<float>();
  cache.value_scales = parts[3].data_ptr<float>();
  return cache;
}

inline Rows rows_of(const Tensor& query_start, const Tensor& context_lens, const Tensor& tables,
                    const Tensor& slots) {
  return {read<int32_t>(query_start, "query_start"),
          read<int32_t>(context_lens, "context_lens"),
          read<int32_t>(tables, "block_tables"),
          read<int64_t>(slots, "slot_mapping"),
          context_lens.numel(),
          slots.numel(),
          tables.size(1)};
}

// Grows, never shrinks; what it held is lost when it grows.
inline char* at_least(Tensor& buffer, int64_t bytes) {
  if (buffer.numel() < bytes) buffer.resize_({bytes + bytes / 4});
  return static_cast<char*>(buffer.data_ptr());
}

}  // namespace pagoda
