// Attention over block tables, for decode rows and prefill rows alike (PagedAttention,
// FlashAttention, FlashDecoding).
//
// A row's keys are cut into splits of 256 at fixed positions. Within a split every query has its
// largest score, its weights and its sum of values; splits are merged in order. Which queries share
// a work item, and whether splits are computed by one thread or several, changes no bit.
#pragma once

#include "key_value_tiles.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

PAGODA_INLINE long rounded_up(long number, long step) { return (number + step - 1) / step * step; }

// One query's unfinished result: largest score, sum of weights, and values [padded dim].
constexpr long kHeader = 16;

struct AttentionSizes {
  long per_kv, words, padded, result, queries;

  AttentionSizes(const Heads& heads, long per_word)
      : per_kv(heads.query / heads.kv),
        words(rounded_up(heads.dim, per_word) / per_word),
        padded(rounded_up(heads.dim, kPanel)),
        result(kHeader + padded),
        queries(item_tokens(heads) * per_kv) {}

  // In words of 4 bytes; all parts of it are whole cache lines.
  long thread_words() const {
    return rounded_up(queries * words, 16) + queries * result + 2 * kSplit * padded +
           kTileRows * (2 * kSplit + padded) + rounded_up(words, 16) + 64;
  }
};

// What one thread works with.
template <class E>
struct Workspace {
  uint32_t *queries, *keys, *values, *weights, *zeros;
  float *results, *scores, *sums;

  Workspace(const AttentionSizes& sizes, char* scratch, int thread) {
    uint32_t* at = reinterpret_cast<uint32_t*>(scratch) + thread * sizes.thread_words();
    auto take = [&](long words) {
      uint32_t* taken = at;
      at += rounded_up(words, 16);
      return taken;
    };
    queries = take(sizes.queries * sizes.words);
    keys = take(kSplit * sizes.padded);
    values = take(kSplit * sizes.padded);
    weights = take(kTileRows * kSplit);
    zeros = take(sizes.words);
    results = reinterpret_cast<float*>(take(sizes.queries * sizes.result));
    scores = reinterpret_cast<float*>(take(kTileRows * kSplit));
    sums = reinterpret_cast<float*>(take(kTileRows * sizes.padded));
    __builtin_memset(zeros, 0, sizes.words * 4);
  }
};

PAGODA_INLINE void clear_result(float* result, long size) {
  __builtin_memset(result, 0, size * sizeof(float));
  result[0] = -__builtin_inff();
}

// into = both parts of one softmax; a part that saw nothing changes no bit.
PAGODA_INLINE void merge_results(float* into, const float* part, long size) {
  if (part[0] == -__builtin_inff()) return;
  float largest = into[0] > part[0] ? into[0] : part[0];
  float old_share = exponential(into[0] - largest), new_share = exponential(part[0] - largest);
  into[0] = largest;
  into[1] = into[1] * old_share + part[1] * new_share;
  for (long i = kHeader; i < size; i += kLanes)
    store(into + i, load<VecF>(into + i) * old_share + load<VecF>(part + i) * new_share);
}

template <class E>
PAGODA_INLINE void finish_result(const float* result, typename E::T* out, long dim) {
  float inverse = 1.0f / result[1];
  for (long i = 0; i < dim; i += kLanes)
    store_few<E>(out + i, load<VecF>(result + kHeader + i) * inverse, dim - i);
}

// Scores of keys from to last (multiples of 32) become weights e^(scale * (score - largest)); only
// seen_from to seen_to count. Returns {largest * scale, sum of weights}.
template <class E>
PAGODA_INLINE void weigh(float* scores, typename E::T* weights, long from, long last,
                         long seen_from, long seen_to, float scale, float* header) {
  const float nothing = -__builtin_inff();
  for (long i = from; i < seen_from; ++i) scores[i] = nothing;
  for (long i = seen_to < from ? from : seen_to; i < last; ++i) scores[i] = nothing;
  VecF most = splat(nothing);
  for (long i = from; i < last; i += kLanes) {
    VecF scaled = load<VecF>(scores + i) * scale;
    store(scores + i, scaled);
    most = larger(most, scaled);
  }
  float largest = largest_lane(most);
  header[0] = largest;
  if (largest == nothing) largest = 0.0f;
  VecF sum = {};
  for (long i = from; i < last; i += kLanes) {
    VecF weight = exponential(load<VecF>(scores + i) - largest);
    sum += weight;
    E::store_floats(weights + i, weight);
  }
  header[1] = sum_lanes(sum);
}

template <class E>
class ItemAttention {
 public:
  using T = typename E::T;

  ItemAttention(const AttentionCall& call, const AttentionItem& item, const AttentionSizes& sizes,
                Workspace<E>& space)
      : call_(call), item_(item), sizes_(sizes), space_(space) {
    const Rows& rows = call.rows;
    first_position_ = rows.context_lens[item.row] - rows.query_start[item.row + 1] + item.first;
    num_queries_ = (item.last - item.first) * sizes.per_kv;
    table_ = rows.tables + item.row * rows.table_stride;
  }

  void run(float* parts) {
    gather_queries();
    for (long i = 0; i < num_queries_; ++i)
      clear_result(space_.results + i * sizes_.result, sizes_.result);
    for (long split = item_.first_split; split < item_.last_split; ++split) attend_split(split);
    for (long i = 0; i < num_queries_; ++i) finish(i, parts);
  }

 private:
  long position_of(long query) const { return first_position_ + query / sizes_.per_kv; }
  long first_seen(long position) const {
    long window = call_.heads.window;
    return window && position >= window ? position - window + 1 : 0;
  }

  void gather_queries() {
    const Heads& heads = call_.heads;
    long bytes = heads.dim * sizeof(T);
    for (long i = 0; i < num_queries_; ++i) {
      long token = item_.first + i / sizes_.per_kv;
      long head = item_.kv_head * sizes_.per_kv + i % sizes_.per_kv;
      const T* from = static_cast<const T*>(call_.q) + token * call_.q_stride + head * heads.dim;
      __builtin_memcpy(space_.queries + i * sizes_.words, from, bytes);
    }
  }

  void attend_split(long split) {
    long start = split * kSplit;
    long first = first_seen(first_position_) - start, end = position_of(num_queries_ - 1) + 1 - start;
    if (end > kSplit) end = kSplit;
    if (first < 0) first = 0;
    if (first >= end) return;
    long first_panel = first / kPanel, last_panel = (end + kPanel - 1) / kPanel;
    gathered_.find(call_.cache, call_.heads, table_, item_.kv_head, start, first_panel * kPanel, end);
    pack_split<E>(gathered_, reinterpret_cast<const T*>(space_.zeros), first_panel, last_panel, end,
                  call_.heads.dim, space_.keys, space_.values);
    in_tiles(num_queries_, [&](long query, long count) { attend_tile(start, query, count); });
  }

  void attend_tile(long start, long query, long count) {
    long from = first_seen(position_of(query)) - start;
    long end = position_of(query + count - 1) + 1 - start;
    if (end > kSplit) end = kSplit;
    if (from < 0) from = 0;
    if (from >= end) return;
    long first_panel = from / kPanel, last_panel = (end + kPanel - 1) / kPanel;
    const uint32_t* queries = space_.queries + query * sizes_.words;
    for (long panel = first_panel; panel < last_panel; ++panel)
      few_rows<E>(count, queries, sizes_.words, space_.keys + panel * sizes_.words * kPanel,
                  sizes_.words, space_.scores + panel * kPanel, kSplit);
    float headers[kTileRows][2];
    for (long m = 0; m < count; ++m) {
      long position = position_of(query + m);
      long seen_from = first_seen(position) - start, seen_to = position + 1 - start;
      weigh<E>(space_.scores + m * kSplit, reinterpret_cast<T*>(space_.weights + m * kSplit),
               first_panel * kPanel, last_panel * kPanel, seen_from < kSplit ? seen_from : kSplit,
               seen_to, call_.heads.scale, headers[m]);
    }
    add_values(query, count, first_panel, last_panel, headers);
  }

  void add_values(long query, long count, long first_panel, long last_panel,
                  float (*headers)[2]) {
    constexpr long kSteps = kSplit / E::kPerWord, kEach = kPanel / E::kPerWord;
    for (long column = 0; column < sizes_.padded / kPanel; ++column)
      few_rows<E>(count, space_.weights + first_panel * kEach, kSplit,
                  space_.values + (column * kSteps + first_panel * kEach) * kPanel,
                  (last_panel - first_panel) * kEach, space_.sums + column * kPanel, sizes_.padded);
    for (long m = 0; m < count; ++m) merge(query + m, headers[m], space_.sums + m * sizes_.padded);
  }

  void merge(long query, const float* header, const float* sums) {
    alignas(64) float part[kHeader + kMostDim];
    part[0] = header[0];
    part[1] = header[1];
    __builtin_memcpy(part + kHeader, sums, sizes_.padded * sizeof(float));
    merge_results(space_.results + query * sizes_.result, part, sizes_.result);
  }

  void finish(long query, float* parts) {
    const float* result = space_.results + query * sizes_.result;
    long token = item_.first + query / sizes_.per_kv, head = query % sizes_.per_kv;
    if (item_.part >= 0) {
      float* to = parts + (item_.part * sizes_.per_kv + head) * sizes_.result;
      __builtin_memcpy(to, result, sizes_.result * sizeof(float));
      return;
    }
    long at = token * call_.heads.query + item_.kv_head * sizes_.per_kv + head;
    finish_result<E>(result, static_cast<T*>(call_.out) + at * call_.heads.dim, call_.heads.dim);
  }

  static constexpr long kMostDim = 512;

  const AttentionCall& call_;
  const AttentionItem& item_;
  const AttentionSizes& sizes_;
  Workspace<E>& space_;
  long first_position_, num_queries_;
  const int32_t* table_;
  Gathered<E> gathered_;
};

template <class E>
void attend(Team& team, const AttentionCall& call, int thread) {
  AttentionSizes sizes(call.heads, E::kPerWord);
  Workspace<E> space(sizes, call.scratch, thread);
  float* parts = reinterpret_cast<float*>(call.scratch) + call.num_threads * sizes.thread_words();
  const AttentionPlan& plan = call.plan;
  team.share(plan.num_items, [&](long index) {
    ItemAttention<E>(call, plan.items[index], sizes, space).run(parts);
  });
  if (!plan.num_merges) return;
  team.share(plan.num_merges, [&](long index) {
    const MergeItem& item = plan.merges[index];
    for (long head = 0; head < sizes.per_kv; ++head) {
      float* total = space.results;
      clear_result(total, sizes.result);
      for (long part = item.first; part < item.last; ++part)
        merge_results(total, parts + (part * sizes.per_kv + head) * sizes.result, sizes.result);
      long at = item.token * call.heads.query + item.kv_head * sizes.per_kv + head;
      finish_result<E>(total, static_cast<typename E::T*>(call.out) + at * call.heads.dim,
                       call.heads.dim);
    }
  });
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
