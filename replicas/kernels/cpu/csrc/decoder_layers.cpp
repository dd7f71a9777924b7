// Keeps the tensors of a decoder alive and hands the kernels plain pointers into them.
#include "decoder_layers.h"

#include <ATen/ops/empty.h>

namespace pagoda {

namespace {

constexpr int64_t kLine = 64;

int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

DecoderLayers::DecoderLayers(std::vector<int64_t> sizes, std::vector<double> numbers,
                             std::vector<Tensor> ends, std::vector<Tensor> weights)
    : sizes_{sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4), sizes.at(5)},
      eps_(numbers.at(0)),
      element_(element_of(ends.at(0))),
      heads_{sizes_.query_heads, sizes_.kv_heads, sizes_.head_dim, float(numbers.at(1)), 0},
      ends_(std::move(ends)),
      weights_(std::move(weights)),
      memory_(at::empty({0}, at::kByte)) {
  size_t num_layers = sizes.size() - 6;
  TORCH_CHECK(weights_.size() == num_layers * kPerLayer, "cpu kernels: ", weights_.size(),
              " weights for ", num_layers, " layers");
  for (size_t index = 0; index < num_layers; ++index)
    layers_.push_back(layer_of(&weights_[index * kPerLayer], sizes[6 + index]));
}

Layer DecoderLayers::layer_of(const Tensor* own, int64_t window) const {
  int64_t query = sizes_.query_heads * sizes_.head_dim;
  int64_t qkv = query + 2 * sizes_.kv_heads * sizes_.head_dim;
  Layer layer{};
  layer.input_norm = read<float>(own[0], "input_norm");
  layer.post_norm = read<float>(own[1], "post_norm");
  layer.qk_norm = read_or_null(own[2], "qk_norm");
  auto packed = [&](int64_t first, int64_t out, int64_t in) {
    return packed_of(at::ArrayRef<Tensor>(own + first, 3), element_, out, in);
  };
  layer.qkv = packed(3, qkv, sizes_.hidden);
  layer.output = packed(6, sizes_.hidden, query);
  layer.gate_up = packed(9, 2 * sizes_.inner, sizes_.hidden);
  layer.down = packed(12, sizes_.hidden, sizes_.inner);
  layer.window = window;
  return layer;
}

int64_t DecoderLayers::widest() const {
  return std::max({sizes_.hidden, sizes_.inner, heads_.query * heads_.dim});
}

void DecoderLayers::use_caches(std::vector<Tensor> caches) {
  size_t each = layers_.empty() ? 0 : caches.size() / layers_.size();
  TORCH_CHECK(caches.size() == each * layers_.size() && (each == 2 || each == 4),
              "cpu kernels: ", caches.size(), " parts of caches for ", layers_.size(), " layers");
  for (size_t index = 0; index < layers_.size(); ++index)
    layers_[index].cache = cache_of(at::ArrayRef<Tensor>(&caches[each * index], each), heads_);
  caches_ = std::move(caches);
}

void DecoderLayers::start(std::vector<Tensor> batch) {
  TORCH_CHECK(!caches_.empty(), "cpu kernels: a step without caches");
  TORCH_CHECK(batch.size() == 8, "cpu kernels: ", batch.size(), " tensors describe a step");
  batch_ = std::move(batch);
  StepCall& call = call_;
  call = StepCall{};
  call.element = element_;
  call.layers = layers_.data();
  call.num_layers = layers_.size();
  call.hidden = sizes_.hidden;
  call.inner = sizes_.inner;
  call.eps = eps_;
  call.embedding = ends_[0].const_data_ptr();
  call.final_norm = read<float>(ends_[1], "final norm");
  call.token_ids = read<int64_t>(batch_[0], "token_ids");
  call.cos = batch_[1].const_data_ptr();
  call.sin = batch_[2].const_data_ptr();
  call.rows = rows_of(batch_[3], batch_[4], batch_[5], batch_[6]);
  call.heads = heads_;
  call.last_tokens = read<int64_t>(batch_[7], "last_tokens");
  call.num_last = batch_[7].numel();
  call.num_threads = at::get_num_threads();
  call.seconds = seconds_;
  for (int part : {1, 2})
    TORCH_CHECK(element_of(batch_[part]) == element_ && batch_[part].is_contiguous() &&
                    batch_[part].numel() == call.rows.num_tokens * heads_.dim,
                "cpu kernels: cos and sin must be [T, head size] of the model's type");
  planned_.clear();
  plans_.clear();
  for (const Layer& layer : layers_) {
    Heads heads = heads_;
    heads.window = layer.window;
    auto [at, is_new] = planned_.try_emplace(layer.window);
    if (is_new) at->second = plan_attention(call.rows, heads, call.num_threads);
    plans_.push_back(at->second.view());
  }
  call.plans = plans_.data();
  lay_out(call);
}

char* DecoderLayers::take(int64_t elements, int64_t size) {
  char* taken = static_cast<char*>(memory_.data_ptr()) + used_;
  used_ += whole_lines(elements * size);
  return taken;
}

void DecoderLayers::lay_out(StepCall& call) {
  int64_t tokens = call.rows.num_tokens, size = element_ == Element::kBf16 ? 2 : 4;
  int64_t query = heads_.query * heads_.dim, qkv = query + 2 * heads_.kv * heads_.dim;
  long parts = 0;
  for (const auto& [window, plan] : planned_) parts = std::max<long>(parts, plan.num_parts);
  int64_t scratch = kernels_of(sizes_.isa).attention_scratch_bytes(
      heads_, widens(layers_[0].cache.held, element_), parts, call.num_threads);
  int64_t normed = std::max<int64_t>(tokens, call.num_threads * kOwnRows) * sizes_.hidden;
  auto operand_of = [&](int64_t rows) {
    return operand_bytes(element_, layers_[0].qkv.scales != nullptr, rows, widest());
  };
  call.own_operand_bytes = operand_of(kOwnRows);
  int64_t operand =
      std::max<int64_t>(operand_of(tokens), call.num_threads * call.own_operand_bytes);
  int64_t elements = qkv + 2 * query + 3 * sizes_.inner;
  at_least(memory_, tokens * (elements * size + 4 * sizes_.hidden) + normed * size + operand +
                        scratch + 16 * kLine);
  used_ = (kLine - reinterpret_cast<uintptr_t>(memory_.data_ptr()) % kLine) % kLine;
  call.scratch = take(scratch, 1);
  call.operand = take(operand, 1);
  call.residual = reinterpret_cast<float*>(take(tokens * sizes_.hidden, 4));
  call.x = take(normed, size);
  call.qkv = take(tokens * qkv, size);
  call.attended = take(tokens * query, size);
  call.gathered = take(tokens * query, size);
  call.activated = take(tokens * sizes_.inner, size);
  call.gate_up = take(tokens * 2 * sizes_.inner, size);
}

long DecoderLayers::compute(int64_t first, int64_t last, const int32_t* wanted) {
  TORCH_CHECK(call_.layers != nullptr, "cpu kernels: run before start");
  long reached = last;
  call_.first_layer = first;
  call_.last_layer = last;
  call_.wanted = wanted;
  call_.reached = &reached;
  kernels_of(sizes_.isa).run_layers(call_);
  return reached;
}

int64_t DecoderLayers::run_until(int64_t first, int64_t last, Tensor wanted) {
  TORCH_CHECK(last < call_.num_layers, "cpu kernels: what follows the last layer is not in steps");
  return compute(first, last, read<int32_t>(wanted, "wanted"));
}

Tensor DecoderLayers::run(int64_t first, int64_t last) {
  compute(first, last, nullptr);
  if (last < call_.num_layers) return at::empty({0, sizes_.hidden}, ends_[0].options());
  Tensor out = at::empty({call_.num_last, sizes_.hidden}, ends_[0].options());
  __builtin_memcpy(out.data_ptr(), call_.x, out.nbytes());
  return out;
}

std::vector<double> DecoderLayers::take_seconds() {
  std::vector<double> taken(seconds_, seconds_ + kNumPhases);
  std::fill(seconds_, seconds_ + kNumPhases, 0.0);
  return taken;
}

}  // namespace pagoda
