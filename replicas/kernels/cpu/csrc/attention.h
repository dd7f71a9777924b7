// Attention over block tables, for decode rows and prefill rows alike (PagedAttention).
//
// A row's keys are cut into splits of 256 at fixed positions. Within a split every query has its
// largest score, its weights and its sum of values; splits are merged in order. Which queries share
// a work item, and whether splits are computed by one thread or several, changes no bit.
#pragma once

#include "decode_tiles.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

PAGODA_INLINE long rounded_up(long number, long step) { return (number + step - 1) / step * step; }
PAGODA_INLINE long more(long a, long b) { return a > b ? a : b; }
PAGODA_INLINE long fewer(long a, long b) { return a < b ? a : b; }

struct AttentionSizes {
  long per_kv, words, padded, result, queries, tile_rows, zeros, wide;

  AttentionSizes(const Heads& heads, long per_word, bool widens)
      : per_kv(heads.query / heads.kv),
        words(rounded_up(heads.dim, per_word) / per_word),
        padded(rounded_up(heads.dim, kPanel)),
        result(kHeader + padded),
        queries(more(item_tokens(heads) * per_kv, heads.query)),
        tile_rows(more(kTileRows, heads.query)),
        zeros(heads.kv * words),
        wide(widens ? 2 * kSplit * zeros : 0) {}

  // In words of 4 bytes, every part in whole cache lines.
  long thread_words() const {
    return rounded_up(queries * words, 16) + queries * result + 2 * kSplit * padded +
           tile_rows * (2 * kSplit + padded) + rounded_up(zeros, 16) +
           rounded_up(2 * tile_rows, 16) + wide;
  }
};

// What one thread works with.
template <class E>
struct Workspace {
  uint32_t *queries, *keys, *values, *weights, *zeros, *wide;
  float *results, *scores, *sums, *headers;

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
    weights = take(sizes.tile_rows * kSplit);
    zeros = take(sizes.zeros);
    results = reinterpret_cast<float*>(take(sizes.queries * sizes.result));
    scores = reinterpret_cast<float*>(take(sizes.tile_rows * kSplit));
    sums = reinterpret_cast<float*>(take(sizes.tile_rows * sizes.padded));
    headers = reinterpret_cast<float*>(take(2 * sizes.tile_rows));
    wide = take(sizes.wide);
    __builtin_memset(zeros, 0, sizes.zeros * 4);
  }
};

template <class E>
class ItemAttention {
 public:
  using T = typename E::T;

  ItemAttention(const AttentionCall& call, const AttentionItem& item, const AttentionSizes& sizes,
                Workspace<E>& space)
      : call_(call), item_(item), sizes_(sizes), space_(space) {
    const Rows& rows = call.rows;
    first_position_ = rows.context_lens[item.row] - rows.query_start[item.row + 1] + item.first;
    per_head_ = (item.last - item.first) * sizes.per_kv;
    num_queries_ = (item.last_head - item.first_head) * per_head_;
    table_ = rows.tables + item.row * rows.table_stride;
    factor_ = call.heads.scale * kLog2E;
  }

  void run(float* parts) {
    gather_queries();
    for (long i = 0; i < num_queries_; ++i)
      clear_result(space_.results + i * sizes_.result, sizes_.result);
    bool is_direct = item_.last - item_.first == 1 && can_go_direct(call_.heads, sizes_.words);
    for (long split = item_.first_split; split < item_.last_split; ++split)
      is_direct ? attend_directly(split) : attend_packed(split);
    for (long i = 0; i < num_queries_; ++i) finish(i, parts);
  }

 private:
  // Queries of an item lie in the order KV head, token, query head.
  long token_of(long query) const { return item_.first + query % per_head_ / sizes_.per_kv; }
  long head_of(long query) const {
    long kv_head = item_.first_head + query / per_head_;
    return kv_head * sizes_.per_kv + query % sizes_.per_kv;
  }
  long position_of(long query) const {
    return first_position_ + query % per_head_ / sizes_.per_kv;
  }
  long first_seen(long position) const {
    long window = call_.heads.window;
    return window && position >= window ? position - window + 1 : 0;
  }

  // Keys of a split that positions from first to last see, as panels.
  struct Reach {
    long start, end, first_panel, last_panel;
    bool is_empty;
  };

  Reach reach(long split, long first_position, long last_position) const {
    long start = split * kSplit, from = more(first_seen(first_position) - start, 0);
    long end = fewer(last_position + 1 - start, kSplit);
    return {start, end, from / kPanel, (end + kPanel - 1) / kPanel, from >= end};
  }

  void gather_queries() {
    const Heads& heads = call_.heads;
    for (long i = 0; i < num_queries_; ++i) {
      const T* from =
          static_cast<const T*>(call_.q) + token_of(i) * call_.q_stride + head_of(i) * heads.dim;
      __builtin_memcpy(space_.queries + i * sizes_.words, from, heads.dim * sizeof(T));
    }
  }

  void find(const Reach& keys, long head) {
    long first = keys.first_panel * kPanel;
    if (sizes_.wide)
      gathered_.widen(call_.cache, call_.heads, table_, head, item_.last_head - item_.first_head,
                      keys.start, first, keys.end, reinterpret_cast<T*>(space_.wide));
    else
      gathered_.find(call_.cache, call_.heads, table_, head, keys.start, first, keys.end);
    gathered_.end_with(reinterpret_cast<const T*>(space_.zeros), keys.end);
  }

  void weigh_query(const Reach& keys, long query, long row) {
    long position = position_of(query);
    weigh<E>(space_.scores + row * kSplit, reinterpret_cast<T*>(space_.weights + row * kSplit),
             keys.first_panel * kPanel, keys.last_panel * kPanel,
             fewer(first_seen(position) - keys.start, kSplit), position + 1 - keys.start, factor_,
             space_.headers + row * 2);
  }

  void merge(long query, long row) {
    merge_results(space_.results + query * sizes_.result, space_.headers + row * 2,
                  space_.sums + row * sizes_.padded, sizes_.padded);
  }

  // The keys some panels ahead of `panel`, and after the last ones the first values.
  const T* const* ahead(const Reach& keys, long panel) const {
    long next = panel + kPanelsAhead, last = keys.last_panel;
    if (next < last) return gathered_.keys + next * kPanel;
    return gathered_.values + fewer(keys.first_panel + next - last, last - 1) * kPanel;
  }

  // All KV heads panel by panel, so that the cache is read in the order in which it lies.
  void attend_directly(long split) {
    Reach keys = reach(split, first_position_, first_position_);
    if (keys.is_empty) return;
    find(keys, item_.first_head);
    long row_bytes = (item_.last_head - item_.first_head) * call_.heads.dim * sizeof(T);
    if (!sizes_.wide)
      fetch(gathered_.keys + keys.first_panel * kPanel,
            fewer(kPanelsAhead, keys.last_panel - keys.first_panel) * kPanel, row_bytes);
    with_number<kMostDirect>(sizes_.per_kv, [&](auto number) {
      constexpr int kNumber = decltype(number)::value;
      long heads = item_.last_head - item_.first_head, dim = call_.heads.dim;
      for (long panel = keys.first_panel; panel < keys.last_panel; ++panel)
        for (long head = 0; head < heads; ++head) {
          long row = head * kNumber;
          direct_scores<E, kNumber>(gathered_.keys + panel * kPanel, ahead(keys, panel), head * dim,
                                    sizes_.words, space_.queries + row * sizes_.words,
                                    space_.scores + row * kSplit + panel * kPanel);
        }
      __builtin_memset(space_.sums, 0, num_queries_ * sizes_.padded * sizeof(float));
      for (long query = 0; query < num_queries_; ++query) weigh_query(keys, query, query);
      for (long panel = keys.first_panel; panel < keys.last_panel; ++panel)
        for (long head = 0; head < heads; ++head) {
          long next = fewer(panel + kPanelsAhead, keys.last_panel - 1), row = head * kNumber;
          direct_values<E, kNumber>(gathered_.values + panel * kPanel,
                                    gathered_.values + next * kPanel, head * dim, dim,
                                    space_.weights + row * kSplit + panel * kPanel / E::kPerWord,
                                    space_.sums + row * sizes_.padded);
        }
    });
    for (long query = 0; query < num_queries_; ++query) merge(query, query);
  }

  void attend_packed(long split) {
    long last_position = first_position_ + item_.last - item_.first - 1;
    Reach keys = reach(split, first_position_, last_position);
    if (keys.is_empty) return;
    for (int32_t head = item_.first_head; head < item_.last_head; ++head) {
      find(keys, head);
      pack_split<E>(gathered_, keys.first_panel, keys.last_panel, call_.heads.dim, space_.keys,
                    space_.values);
      long first = (head - item_.first_head) * per_head_;
      in_tiles(per_head_, kTileRows, [&](long start, long count) {
        attend_tile(split, first + start, count);
      });
    }
  }

  // Queries first to first + count over the packed split.
  void attend_tile(long split, long first, long count) {
    Reach keys = reach(split, position_of(first), position_of(first + count - 1));
    if (keys.is_empty) return;
    const uint32_t* queries = space_.queries + first * sizes_.words;
    for (long panel = keys.first_panel; panel < keys.last_panel; ++panel)
      few_rows<E>(count, queries, sizes_.words, space_.keys + panel * sizes_.words * kPanel,
                  sizes_.words, space_.scores + panel * kPanel, kSplit);
    for (long row = 0; row < count; ++row) weigh_query(keys, first + row, row);
    constexpr long kSteps = kSplit / E::kPerWord, kEach = kPanel / E::kPerWord;
    for (long column = 0; column < sizes_.padded / kPanel; ++column)
      few_rows<E>(count, space_.weights + keys.first_panel * kEach, kSplit,
                  space_.values + (column * kSteps + keys.first_panel * kEach) * kPanel,
                  (keys.last_panel - keys.first_panel) * kEach, space_.sums + column * kPanel,
                  sizes_.padded);
    for (long row = 0; row < count; ++row) merge(first + row, row);
  }

  void finish(long query, float* parts) {
    const float* result = space_.results + query * sizes_.result;
    if (item_.part >= 0) {
      float* to = parts + (item_.part * sizes_.per_kv + query) * sizes_.result;
      __builtin_memcpy(to, result, sizes_.result * sizeof(float));
      return;
    }
    long at = token_of(query) * call_.heads.query + head_of(query);
    finish_result<E>(result, static_cast<T*>(call_.out) + at * call_.heads.dim, call_.heads.dim);
  }

  static constexpr long kPanelsAhead = 2;

  const AttentionCall& call_;
  const AttentionItem& item_;
  const AttentionSizes& sizes_;
  Workspace<E>& space_;
  long first_position_, per_head_, num_queries_;
  float factor_;
  const int32_t* table_;
  Gathered<E> gathered_;
};

template <class E>
void attend(Team& team, const AttentionCall& call, int thread) {
  AttentionSizes sizes(call.heads, E::kPerWord, widens(call.cache.held, call.element));
  Workspace<E> space(sizes, call.scratch, thread);
  float* parts = reinterpret_cast<float*>(call.scratch) + call.num_threads * sizes.thread_words();
  const AttentionPlan& plan = call.plan;
  team.share(plan.num_items, [&](long index) {
    ItemAttention<E>(call, plan.items[index], sizes, space).run(parts);
  }, 1);
  if (!plan.num_merges) return;
  team.share(plan.num_merges, [&](long index) {
    const MergeItem& item = plan.merges[index];
    for (long head = 0; head < sizes.per_kv; ++head) {
      float* total = space.results;
      clear_result(total, sizes.result);
      for (long part = item.first; part < item.last; ++part) {
        const float* own = parts + (part * sizes.per_kv + head) * sizes.result;
        merge_results(total, own, own + kHeader, sizes.padded);
      }
      long at = item.token * call.heads.query + item.kv_head * sizes.per_kv + head;
      finish_result<E>(total, static_cast<typename E::T*>(call.out) + at * call.heads.dim,
                       call.heads.dim);
    }
  });
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
