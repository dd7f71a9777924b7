// What Python sees: torch.ops.pagoda_cpu and torch.classes.pagoda_cpu.
#include <torch/library.h>

#include <ATen/ops/empty.h>

#include "decoder_layers.h"

namespace pagoda {
namespace {

// Names of the instruction sets that this processor has, best first, each with its number.
std::vector<std::tuple<std::string, int64_t>> instruction_sets() {
  std::vector<std::tuple<std::string, int64_t>> present;
  int64_t number = 0;
  for (const InstructionSet& set : kInstructionSets) {
    if (set.is_present()) present.emplace_back(set.name, number);
    ++number;
  }
  return present;
}

void set_core_trading(int64_t isa, bool on) { kernels_of(isa).set_trading(on); }

int64_t num_core_trades(int64_t isa) { return kernels_of(isa).num_trades(); }

void assign_cores(int64_t isa, const std::vector<int64_t>& cores) {
  constexpr int64_t kMost = 1024;  // of a cpu_set_t
  for (int64_t core : cores)
    TORCH_CHECK(0 <= core && core < kMost, "cpu kernels: core ", core, ": expected 0 to ", kMost - 1);
  std::vector<int> numbers(cores.begin(), cores.end());
  kernels_of(isa).assign_cores(numbers.data(), static_cast<int>(numbers.size()));
}

void pack(int64_t isa, const Tensor& weight, Tensor panels) {
  Element element = element_of(weight);
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous(), "cpu kernels: weight must be [out, in]");
  check(panels, at::kInt, "panels");
  auto* words = reinterpret_cast<uint32_t*>(panels.data_ptr<int32_t>());
  kernels_of(isa).pack(element, weight.const_data_ptr(), weight.size(0), weight.size(1), words,
                       at::get_num_threads());
}

void pack_codes(int64_t isa, const Tensor& codes, Tensor panels) {
  TORCH_CHECK(codes.dim() == 2, "cpu kernels: codes must be [out, in]");
  check(codes, at::kChar, "codes");
  check(panels, at::kInt, "panels");
  auto* words = reinterpret_cast<uint32_t*>(panels.data_ptr<int32_t>());
  kernels_of(isa).pack_codes(codes.const_data_ptr<int8_t>(), codes.size(0), codes.size(1), words,
                             at::get_num_threads());
}

// packed: panels, scales or an empty tensor, bias or an empty tensor.
Tensor linear(int64_t isa, const Tensor& x, const std::vector<Tensor>& packed, int64_t out,
              bool to_float) {
  Element element = element_of(x);
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && packed.size() == 3,
              "cpu kernels: x must be contiguous [T, in]");
  LinearCall call{};
  call.element = element;
  call.x = x.const_data_ptr();
  call.rows = x.size(0);
  call.packed = packed_of(packed, element, out, x.size(1));
  bool is_coded = call.packed.scales != nullptr;
  TORCH_CHECK(is_coded || element == Element::kF32 || x.size(1) % 2 == 0,
              "cpu kernels: x must be [T, whole words]");
  Tensor operand = at::empty({operand_bytes(element, is_coded, call.rows, x.size(1))}, at::kByte);
  auto options = to_float ? x.options().dtype(at::kFloat) : x.options();
  Tensor result = at::empty({x.size(0), out}, options);
  call.out = result.data_ptr();
  call.to_float = to_float;
  call.operand = static_cast<char*>(operand.data_ptr());
  call.num_threads = at::get_num_threads();
  kernels_of(isa).linear(call);
  return result;
}

// residual: float, added to in place, or empty for the norm of x alone.
Tensor rms_norm(int64_t isa, const Tensor& x, Tensor residual, const Tensor& weight, double eps) {
  Element element = element_of(x);
  TORCH_CHECK(x.is_contiguous(), "cpu kernels: x must be contiguous");
  int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  TORCH_CHECK(weight.numel() == width, "cpu kernels: the norm's weight has another width");
  float* sum = nullptr;
  if (residual.numel()) {
    check(residual, at::kFloat, "residual");
    TORCH_CHECK(residual.numel() == x.numel(), "cpu kernels: residual has another shape");
    sum = residual.data_ptr<float>();
  }
  Tensor out = at::empty(x.sizes(), x.options());
  kernels_of(isa).rms_norm(element, x.const_data_ptr(), sum, read<float>(weight, "norm"), eps,
                           out.data_ptr(), rows, width, at::get_num_threads());
  return out;
}

Tensor silu_mul(int64_t isa, const Tensor& gate_up) {
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.is_contiguous(), "cpu kernels: [T, 2F] expected");
  int64_t rows = gate_up.size(0), inner = gate_up.size(1) / 2;
  Tensor out = at::empty({rows, inner}, gate_up.options());
  kernels_of(isa).silu_mul(element_of(gate_up), gate_up.const_data_ptr(), out.data_ptr(), rows,
                           inner, at::get_num_threads());
  return out;
}

// qk [T, H + G, D] is rotated in place; v [T, G, D] may have strides between tokens only.
void rotate_and_store(int64_t isa, Tensor qk, const Tensor& v, const Tensor& cos,
                      const Tensor& sin, const std::vector<Tensor>& cache, const Tensor& slots) {
  Element element = element_of(qk);
  int64_t dim = qk.size(2), kv = v.size(1);
  TORCH_CHECK(qk.stride(2) == 1 && qk.stride(1) == dim && v.stride(2) == 1 && v.stride(1) == dim,
              "cpu kernels: the heads of a token must lie together");
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && element_of(cos) == element &&
                  element_of(sin) == element && element_of(v) == element,
              "cpu kernels: q, k, v, cos and sin must have one type");
  Heads heads{qk.size(1) - kv, kv, dim, 0.0f, 0};
  Rows rows{};
  rows.slots = read<int64_t>(slots, "slot_mapping");
  rows.num_tokens = slots.numel();
  RotateCall call{element,       qk.data_ptr(),        v.const_data_ptr(),
                  qk.stride(0),  v.stride(0),          cos.const_data_ptr(),
                  sin.const_data_ptr(), nullptr, 0.0f};
  kernels_of(isa).rotate(call, heads, cache_of(cache, heads), rows, at::get_num_threads());
}

// q [T, H, D], D together and heads together; to [T, H * D].
Tensor attention(int64_t isa, const Tensor& q, const std::vector<Tensor>& cache,
                 const std::vector<Tensor>& batch, double scale, int64_t window, Tensor scratch) {
  int64_t num_heads = q.size(1), dim = q.size(2);
  TORCH_CHECK(q.stride(2) == 1 && q.stride(1) == dim, "cpu kernels: heads must lie together");
  Heads heads{num_heads, cache.at(0).size(2), dim, float(scale), window};
  Cache held = cache_of(cache, heads);
  Element element = element_of(q);
  Rows rows = rows_of(batch.at(0), batch.at(1), batch.at(2), batch.at(3));
  int threads = at::get_num_threads();
  PlannedAttention plan = plan_attention(rows, heads, threads);
  const Kernels& kernels = kernels_of(isa);
  char* memory = at_least(
      scratch, 64 + kernels.attention_scratch_bytes(heads, widens(held.held, element),
                                                    plan.num_parts, threads));
  memory += (64 - reinterpret_cast<uintptr_t>(memory) % 64) % 64;
  Tensor out = at::empty({q.size(0), num_heads * dim}, q.options());
  kernels.attention({element, q.const_data_ptr(), q.stride(0), out.data_ptr(), held, heads, rows,
                     plan.view(), memory, threads});
  return out;
}

}  // namespace

TORCH_LIBRARY(pagoda_cpu, library) {
  library.def("instruction_sets", instruction_sets);
  library.def("set_core_trading(int isa, bool on) -> ()", set_core_trading);
  library.def("num_core_trades(int isa) -> int", num_core_trades);
  library.def("assign_cores(int isa, int[] cores) -> ()", assign_cores);
  library.def("pack(int isa, Tensor weight, Tensor(a!) panels) -> ()", pack);
  library.def("pack_codes(int isa, Tensor codes, Tensor(a!) panels) -> ()", pack_codes);
  library.def("linear(int isa, Tensor x, Tensor[] packed, int out, bool to_float) -> Tensor",
              linear);
  library.def(
      "rms_norm(int isa, Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> Tensor",
      rms_norm);
  library.def("silu_mul(int isa, Tensor gate_up) -> Tensor", silu_mul);
  library.def(
      "rotate_and_store(int isa, Tensor(a!) qk, Tensor v, Tensor cos, Tensor sin, "
      "Tensor(b!)[] cache, Tensor slots) -> ()",
      rotate_and_store);
  library.def(
      "attention(int isa, Tensor q, Tensor[] cache, Tensor[] batch, float scale, "
      "int window, Tensor(a!) scratch) -> Tensor",
      attention);
  library.class_<DecoderLayers>("DecoderLayers")
      .def(torch::init<std::vector<int64_t>, std::vector<double>, std::vector<Tensor>,
                       std::vector<Tensor>>())
      .def("use_caches", &DecoderLayers::use_caches)
      .def("start", &DecoderLayers::start)
      .def("run", &DecoderLayers::run)
      .def("run_until", &DecoderLayers::run_until)
      .def("take_seconds", &DecoderLayers::take_seconds);
}

}  // namespace pagoda
