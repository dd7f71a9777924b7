// The layers of a decoder as an object that holds their weights and computes whole steps.
#pragma once

#include <torch/custom_class.h>

#include <map>
#include <vector>

#include "plan.h"
#include "tensors.h"

namespace pagoda {

// Sizes in the order of the constructor's list.
struct DecoderSizes {
  int64_t isa, hidden, inner, query_heads, kv_heads, head_dim;
};

class DecoderLayers : public torch::CustomClassHolder {
 public:
  // sizes: isa, hidden, inner, query heads, KV heads, head size, then one window per layer.
  // numbers: eps, scale. ends: embedding, final norm. weights: kPerLayer tensors per layer.
  DecoderLayers(std::vector<int64_t> sizes, std::vector<double> numbers, std::vector<Tensor> ends,
                std::vector<Tensor> weights);

  // caches: keys, values and, if quantised, both scales of every layer. They stay those of all later steps.
  void use_caches(std::vector<Tensor> caches);

  // What stays the same from layer to layer. batch: token_ids, cos, sin, query_start,
  // context_lens, block_tables, slot_mapping, and the tokens that sample.
  void start(std::vector<Tensor> batch);

  // Layers first to last of the step. After the last one: [S, hidden], normed.
  Tensor run(int64_t first, int64_t last);

  // As `run`, not to the last layer of all. wanted: [1] int32; once it is not 0, it stops after one
  // more layer. Returns the layer to go on with, `last` if it came there.
  int64_t run_until(int64_t first, int64_t last, Tensor wanted);

  // Seconds spent in each phase since the last call.
  std::vector<double> take_seconds();

 private:
  static constexpr size_t kPerLayer = 15;

  Layer layer_of(const Tensor* own, int64_t window) const;
  int64_t widest() const;
  void lay_out(StepCall& call);
  long compute(int64_t first, int64_t last, const int32_t* wanted);
  char* take(int64_t elements, int64_t size);

  DecoderSizes sizes_;
  float eps_;
  Element element_;
  Heads heads_;
  std::vector<Tensor> ends_, weights_, caches_, batch_;
  std::vector<Layer> layers_;
  std::map<long, PlannedAttention> planned_;
  std::vector<AttentionPlan> plans_;
  Tensor memory_;
  int64_t used_ = 0;
  StepCall call_{};
  double seconds_[kNumPhases] = {};
};

}  // namespace pagoda
