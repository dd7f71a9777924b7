// What the object files of the instruction sets offer to the one file that knows torch.
// Plain structs and pointers only: a template or inline function of a library that two
// instruction sets both instantiate could be linked in from the wrong one.
#pragma once

#include <cstdint>

namespace pagoda {

enum class Element : int { kBf16 = 0, kF32 = 1 };

constexpr long kPanel = 32;  // outputs of one panel of a packed weight
constexpr long kSplit = 256;  // keys of one split of attention, at fixed positions of a request

constexpr long kOwnRows = 16;  // up to as many rows are normed by every thread for itself

constexpr long kGroup = 32;  // inputs that share a scale where a product is one of codes

// A weight [out, in] as ceil(out / 32) panels of [steps][32] words of 4 bytes. A word holds the
// neighbouring inputs of one output: four codes of int8, each plus 128, two numbers in bf16, or one
// in f32. scales: [out] of a weight of codes, or null. bias: [out] or null.
struct Packed {
  const uint32_t* panels;
  const float* scales;
  const float* bias;
  long out;
  long in;
  long steps;
};

// Bytes of `rows` rows of activations as codes, whatever the instruction set keeps them in.
inline long code_bytes(long rows, long width) {
  long words = 2 * ((width + 15) / 16 * 4), groups = (width + kGroup - 1) / kGroup;
  return (rows * (4 * words + 8 * groups) + 63) / 64 * 64;
}

// Bytes of `rows` rows of activations as a product with a weight takes them: as codes, widened to f32,
// or as they are. What an instruction set does not need of it stays unused.
inline long operand_bytes(Element element, bool is_coded, long rows, long width) {
  if (is_coded) return code_bytes(rows, width);
  return element == Element::kBf16 ? (4 * rows * width + 63) / 64 * 64 : 0;
}

// Rows of a step: R rows, T tokens; Batch of replicas/batch.py has the meanings.
struct Rows {
  const int32_t* query_start;
  const int32_t* context_lens;
  const int32_t* tables;
  const int64_t* slots;
  long num_rows;
  long num_tokens;
  long table_stride;
};

// What a cache keeps: numbers, or codes of a byte each beside a scale for each token and head.
enum class Held : int { kBf16 = 0, kF32 = 1, kInt8 = 2, kFp8 = 3 };

constexpr long bytes_of(Held held) { return held == Held::kF32 ? 4 : held == Held::kBf16 ? 2 : 1; }

// K and V of one layer, [num_blocks, block_size, kv_heads, head_dim]; scales without head_dim.
struct Cache {
  Held held;
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
  long block_size;
};

struct Heads {
  long query;
  long kv;
  long dim;
  float scale;
  long window;  // 0: full attention
};

// Query tokens first to last of a row, for KV heads first_head to last_head, over splits first_split
// to last_split. part: where its unfinished result goes, or -1 if it sees all splits and can finish.
struct AttentionItem {
  int32_t row, first_head, last_head, first, last, first_split, last_split, part;
};

// Parts first to last of one token and KV head, to be merged in order.
struct MergeItem {
  int32_t token, kv_head, first, last;
};

struct AttentionPlan {
  const AttentionItem* items;
  const MergeItem* merges;
  long num_items, num_merges, num_parts;
};

struct AttentionCall {
  Element element;
  const void* q;  // [T, ...], q_stride elements from token to token
  long q_stride;
  void* out;  // [T, query * dim]
  Cache cache;
  Heads heads;
  Rows rows;
  AttentionPlan plan;
  char* scratch;
  int num_threads;
};

struct RotateCall {
  Element element;
  void* qkv;  // [T, stride]: query heads, then key heads; rotated in place
  const void* v;  // [T, ...], v_stride elements from token to token
  long stride, v_stride;
  const void* cos;  // [T, dim]
  const void* sin;  // first half negated
  const float* qk_norm;  // [query + kv, dim] or null
  float eps;
};

struct Layer {
  const float* input_norm;
  const float* post_norm;
  const float* qk_norm;
  Packed qkv, output, gate_up, down;
  Cache cache;
  long window;
};

// The phases of a layer, as they are timed.
enum Phase { kQkv, kRotate, kAttend, kOutput, kNorm, kGateUp, kDown, kNumPhases };

struct StepCall {
  Element element;
  const Layer* layers;  // of the whole model
  long first_layer, last_layer, num_layers;
  long hidden, inner;
  float eps;
  const float* final_norm;
  const void* embedding;
  const int64_t* token_ids;
  const void* cos;
  const void* sin;
  Rows rows;
  Heads heads;  // window comes from the layer
  const AttentionPlan* plans;  // one per layer
  const int64_t* last_tokens;  // rows of the flat batch that sample
  long num_last;
  float* residual;  // [T, hidden]
  void* x;  // [T or threads * kOwnRows, hidden]; the last layer's result begins it
  void* qkv;  // [T, (query + 2 kv) * dim]
  void* attended;  // [T, query * dim]
  void* gate_up;  // [T, 2 * inner], used where inner is no multiple of a panel
  void* activated;  // [T, inner]
  void* gathered;  // [T, hidden or query * dim]: rows of the last layer that sample
  char* operand;  // operand_bytes of all rows, or own_operand_bytes for every thread if that is more
  long own_operand_bytes;  // of kOwnRows rows of the widest activations
  char* scratch;  // attention_scratch_bytes(...)
  int num_threads;
  double* seconds;  // [kNumPhases], added to
  const int32_t* wanted;  // not 0: stop before the next layer; looked at once in a layer; may be null
  long* reached;  // last_layer; where it stopped if that is before
};

// x [rows, packed.in], to out [rows, packed.out] of the element type, or of float if to_float.
struct LinearCall {
  Element element;
  const void* x;
  long rows;
  Packed packed;
  void* out;
  bool to_float;
  char* operand;  // operand_bytes of the rows
  int num_threads;
};

struct Kernels {
  void (*pack)(Element, const void* weight, long out, long in, uint32_t* panels, int threads);
  void (*pack_codes)(const int8_t* codes, long out, long in, uint32_t* panels, int threads);
  void (*linear)(const LinearCall&);
  // residual null: norm of x alone. Otherwise residual (float, in place) += x, and the norm of it.
  void (*rms_norm)(Element, const void* x, float* residual, const float* weight, float eps,
                   void* out, long rows, long width, int threads);
  void (*silu_mul)(Element, const void* gate_up, void* out, long rows, long inner, int threads);
  void (*rotate)(const RotateCall&, const Heads&, const Cache&, const Rows&, int threads);
  void (*attention)(const AttentionCall&);
  void (*run_layers)(const StepCall&);
  // Bytes of scratch of attention: for every thread, and for `parts` unfinished results. widens:
  // the cache holds another type than the queries.
  long (*attention_scratch_bytes)(const Heads&, bool widens, long parts, int threads);
  // Whether threads trade cores (places.h), and how often they did; both of this process.
  void (*set_trading)(bool);
  long (*num_trades)();
  // The cores that the threads of a team are bound to, one each (seats.h); none: they are not bound.
  void (*assign_cores)(const int* cores, int count);
};

inline bool widens(Held held, Element element) {
  return static_cast<int>(held) != static_cast<int>(element);
}

// Query tokens of one attention item: as many as make about 192 rows of queries.
inline long item_tokens(const Heads& heads) {
  long per_kv = heads.query / heads.kv;
  return per_kv >= 192 ? 1 : 192 / per_kv;
}

}  // namespace pagoda
