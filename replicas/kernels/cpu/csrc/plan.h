// Cuts the attention of a batch into work items.
#pragma once

#include <algorithm>
#include <vector>

#include "kernel_api.h"

namespace pagoda {

// Holds the items that an AttentionPlan points to.
struct PlannedAttention {
  std::vector<AttentionItem> items;
  std::vector<MergeItem> merges;
  int32_t num_parts = 0;

  AttentionPlan view() const {
    return {items.data(), merges.data(), long(items.size()), long(merges.size()), num_parts};
  }
};

// Few rows with long contexts are cut between their splits too, so that every thread has work.
inline PlannedAttention plan_attention(const Rows& rows, const Heads& heads, int threads) {
  PlannedAttention plan;
  int32_t tokens = item_tokens(heads);
  long whole_items = 0;
  for (long row = 0; row < rows.num_rows; ++row) {
    long own = rows.query_start[row + 1] - rows.query_start[row];
    whole_items += (own + tokens - 1) / tokens * heads.kv;
  }
  bool cut = threads > 1 && whole_items < 8 * threads;
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    int32_t start = rows.query_start[row], end = rows.query_start[row + 1];
    int32_t first_position = rows.context_lens[row] - (end - start);
    for (int32_t first = start; first < end; first += tokens) {
      int32_t last = std::min(first + tokens, end);
      long position = first_position + first - start;
      long seen = heads.window ? std::max(0L, position - heads.window + 1) : 0;
      int32_t first_split = seen / kSplit;
      int32_t last_split = (first_position + last - start - 1) / kSplit + 1;
      bool in_parts = cut && last - first == 1 && last_split - first_split > 1;
      for (int32_t head = 0; head < heads.kv; ++head) {
        if (!in_parts) {
          plan.items.push_back({row, head, first, last, first_split, last_split, -1});
          continue;
        }
        int32_t part = plan.num_parts;
        for (int32_t split = first_split; split < last_split; ++split)
          plan.items.push_back({row, head, first, last, split, split + 1, plan.num_parts++});
        plan.merges.push_back({first, head, part, plan.num_parts});
      }
    }
  }
  // The longest first, so that all threads end together.
  auto work = [](const AttentionItem& item) {
    return long(item.last - item.first) * (item.last_split - item.first_split);
  };
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [&](const auto& a, const auto& b) { return work(a) > work(b); });
  return plan;
}

}  // namespace pagoda
