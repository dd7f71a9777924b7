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

class AttentionPlanner {
 public:
  AttentionPlanner(const Rows& rows, const Heads& heads, int threads)
      : rows_(rows), heads_(heads), tokens_(item_tokens(heads)) {
    long decode_rows = 0, items = 0;
    for (long row = 0; row < rows.num_rows; ++row) {
      long own = rows.query_start[row + 1] - rows.query_start[row];
      decode_rows += own == 1;
      items += own == 1 ? 1 : (own + tokens_ - 1) / tokens_ * heads.kv;
    }
    // With few rows every head, and every split of a long context, is an item of its own.
    has_many_ = threads == 1 || items >= 4 * threads;
  }

  PlannedAttention plan() {
    for (int32_t row = 0; row < rows_.num_rows; ++row) add_row(row);
    // The longest first, so that all threads end together.
    auto work = [](const AttentionItem& item) {
      return long(item.last - item.first) * (item.last_head - item.first_head) *
             (item.last_split - item.first_split);
    };
    std::stable_sort(plan_.items.begin(), plan_.items.end(),
                     [&](const auto& a, const auto& b) { return work(a) > work(b); });
    return std::move(plan_);
  }

 private:
  void add_row(int32_t row) {
    int32_t start = rows_.query_start[row], end = rows_.query_start[row + 1];
    int32_t first_position = rows_.context_lens[row] - (end - start);
    for (int32_t first = start; first < end; first += tokens_) {
      int32_t last = std::min(first + tokens_, end);
      long position = first_position + first - start;
      long seen = heads_.window ? std::max(0L, position - heads_.window + 1) : 0;
      int32_t first_split = seen / kSplit;
      int32_t last_split = (first_position + last - start - 1) / kSplit + 1;
      AttentionItem item{row, 0, int32_t(heads_.kv), first, last, first_split, last_split, -1};
      if (end - start == 1 && has_many_)
        plan_.items.push_back(item);
      else
        add_heads(item, end - start == 1 && last_split - first_split > 1);
    }
  }

  void add_heads(AttentionItem item, bool in_parts) {
    int32_t first_split = item.first_split, last_split = item.last_split;
    for (int32_t head = 0; head < heads_.kv; ++head) {
      item.first_head = head;
      item.last_head = head + 1;
      if (!in_parts) {
        plan_.items.push_back(item);
        continue;
      }
      int32_t part = plan_.num_parts;
      for (int32_t split = first_split; split < last_split; ++split) {
        item.first_split = split;
        item.last_split = split + 1;
        item.part = plan_.num_parts++;
        plan_.items.push_back(item);
      }
      plan_.merges.push_back({item.first, head, part, plan_.num_parts});
    }
  }

  const Rows& rows_;
  const Heads& heads_;
  int32_t tokens_;
  bool has_many_;
  PlannedAttention plan_;
};

inline PlannedAttention plan_attention(const Rows& rows, const Heads& heads, int threads) {
  return AttentionPlanner(rows, heads, threads).plan();
}

}  // namespace pagoda
