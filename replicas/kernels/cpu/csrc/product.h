// Products of a few rows with a packed weight.
//
// Every output is one chain of additions over the inputs in their order, whatever the number of
// rows beside it: so a row has the same bits in every batch, at no cost.
#pragma once

#include "coded_rows.h"
#include "wide_rows.h"
#include "team.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

constexpr long kItemRows = 192;  // rows of one work item, so that they stay in the second cache

// out[M][32] = x[M][steps] * panel[steps][32]; ldx in words, ldo in floats. Fetches: meanwhile the
// panel at `next` comes from memory, which nobody need wait for then.
template <class E, int M, bool Fetches>
PAGODA_INLINE void compute_tile(const uint32_t* x, long ldx, const uint32_t* panel, long steps,
                                float* out, long ldo, const uint32_t* next) {
  VecF total[M][kVectors] = {};
  for (long step = 0; step < steps; ++step) {
    const uint32_t* words = panel + step * kPanel;
    if constexpr (Fetches) fetch_step(next + step * kPanel);
    typename E::Weight weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = E::widen(load<VecU>(words + v * kLanes));
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const uint32_t* own = x + m * ldx + step * E::kRowWords;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) total[m][v] = E::multiply_add(total[m][v], weight[v], own);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kVectors; ++v) store(out + m * ldo + v * kLanes, total[m][v]);
}

// Functions of their own, since registers are given out for each: one more address among them is
// one too many for the tiles of most rows.
template <class E, int M>
void tile(const uint32_t* x, long ldx, const uint32_t* panel, long steps, float* out, long ldo) {
  compute_tile<E, M, false>(x, ldx, panel, steps, out, ldo, nullptr);
}

template <class E, int M>
void fetching_tile(const uint32_t* x, long ldx, const uint32_t* panel, long steps, float* out,
                   long ldo, const uint32_t* next) {
  compute_tile<E, M, true>(x, ldx, panel, steps, out, ldo, next);
}

template <class E>
PAGODA_INLINE void few_rows(long rows, const uint32_t* x, long ldx, const uint32_t* panel,
                            long steps, float* out, long ldo, const uint32_t* next = nullptr) {
  with_number<kTileRows>(rows, [&](auto number) {
    constexpr int kRows = decltype(number)::value;
    if constexpr (kRows >= kFetchRows)
      if (next) return fetching_tile<E, kRows>(x, ldx, panel, steps, out, ldo, next);
    tile<E, kRows>(x, ldx, panel, steps, out, ldo);
  });
}

// Cuts rows into tiles of nearly equal size, at most `most`, and calls work(first row, number of
// rows).
template <class Work>
PAGODA_INLINE void in_tiles(long rows, long most, Work work) {
  long tiles = (rows + most - 1) / most, first = 0;
  for (long left = tiles; left; --left) {
    long count = (rows - first + left - 1) / left;
    work(first, count);
    first += count;
  }
}

PAGODA_INLINE long tile_rows(const Packed& w) { return w.scales ? kCodeTileRows : kTileRows; }

PAGODA_INLINE const uint32_t* panel_words(const Packed& w, long panel) {
  return w.panels + panel * w.steps * kPanel;
}

// The panel after this one, if the tile that begins at row `start` of an item of so many rows is the
// one to fetch it: its second, while whose rows are computed the item's own panel is in the cache,
// or its only one. It may be another thread's, which finds it in the third cache then; past the last
// panel lies the next weight, or nothing that a fetch could harm.
PAGODA_INLINE const uint32_t* panel_to_fetch(const Packed& w, long panel, long start, long number,
                                             long rows) {
  bool is_only = number == rows, is_second = start > 0 && start <= tile_rows(w);
  return is_only || is_second ? panel_words(w, panel + 1) : nullptr;
}

// One tile of a product: panel p over `number` rows; finish(row, column, floats, count) takes up to
// 32 finished outputs, bias included. next: a panel to fetch meanwhile, or null.
template <class E, class Finish>
PAGODA_INLINE void panel_tile(const Matrix& x, const Packed& w, long panel, long first, long number,
                              const uint32_t* next, Finish finish) {
  long column = panel * kPanel;
  long count = w.out - column < kPanel ? w.out - column : kPanel;
  const uint32_t* words = panel_words(w, panel);
  alignas(64) float out[kMostTileRows * kPanel];
  Matrix part = rows_from(x, first);
  if (w.scales)
    few_coded_rows(number, part, words, w.steps, out, next);
  else
    few_rows<typename RowsOf<E>::Kind>(number, part.words, x.stride, words, w.steps, out, kPanel,
                                       next);
  for (long m = 0; m < number; ++m) {
    float* own = out + m * kPanel;
    if (w.scales)
      for (long i = 0; i < count; ++i) own[i] *= w.scales[column + i];
    if (w.bias)
      for (long i = 0; i < count; ++i) own[i] += w.bias[column + i];
    finish(first + m, column, own, count);
  }
}

// One work item of a product: panel p over rows first to last.
template <class E, class Finish>
PAGODA_INLINE void panel_product(const Matrix& x, const Packed& w, long panel, long first,
                                 long last, Finish finish) {
  in_tiles(last - first, tile_rows(w), [&](long start, long number) {
    const uint32_t* next = panel_to_fetch(w, panel, start, number, last - first);
    panel_tile<E>(x, w, panel, first + start, number, next, finish);
  });
}

// The product x * w, shared out by panels and blocks of rows; work(panel, first row, last row).
template <class Work>
PAGODA_INLINE void share_panels(Team& team, long rows, long panels, Work work) {
  long chunks = (rows + kItemRows - 1) / kItemRows;
  team.share(panels * chunks, [&](long item) {
    long chunk = item / panels, first = chunk * kItemRows;
    work(item % panels, first, first + kItemRows < rows ? first + kItemRows : rows);
  });
}

PAGODA_INLINE long panels_of(const Packed& w) { return (w.out + kPanel - 1) / kPanel; }

template <class E>
void product_to(Team& team, const Matrix& x, const Packed& w, typename E::T* out) {
  share_panels(team, x.rows, panels_of(w), [&](long panel, long first, long last) {
    panel_product<E>(x, w, panel, first, last, [&](long row, long column, float* own, long count) {
      for (long i = 0; i < count; i += kLanes)
        store_few<E>(out + row * w.out + column + i, load<VecF>(own + i), count - i);
    });
  });
}

// residual [rows, w.out] += x * w.
template <class E>
void product_onto(Team& team, const Matrix& x, const Packed& w, float* residual) {
  share_panels(team, x.rows, panels_of(w), [&](long panel, long first, long last) {
    panel_product<E>(x, w, panel, first, last, [&](long row, long column, float* own, long count) {
      float* sum = residual + row * w.out + column;
      for (long i = 0; i < count; ++i) sum[i] += own[i];
    });
  });
}

PAGODA_INLINE VecF silu(VecF gate) { return gate / (1.0f + exponential(-gate)); }

// out [rows, inner] = silu(x * gate) * (x * up), where w packs gate and up one after another and
// inner is a multiple of a panel: each item computes a panel of both.
template <class E>
void gated_product(Team& team, const Matrix& x, const Packed& w, typename E::T* out) {
  long inner = w.out / 2, panels = inner / kPanel;
  share_panels(team, x.rows, panels, [&](long panel, long first, long last) {
    in_tiles(last - first, tile_rows(w), [&](long start, long number) {
      alignas(64) float gates[kMostTileRows * kPanel];
      long top = first + start;
      const uint32_t* next = panel_to_fetch(w, panel, start, number, last - first);
      panel_tile<E>(x, w, panel, top, number, next, [&](long row, long, float* own, long) {
        __builtin_memcpy(gates + (row - top) * kPanel, own, kPanel * sizeof(float));
      });
      next = panel_to_fetch(w, panels + panel, start, number, last - first);
      panel_tile<E>(x, w, panels + panel, top, number, next,
                    [&](long row, long, float* own, long) {
        const float* gate = gates + (row - top) * kPanel;
        typename E::T* to = out + row * inner + panel * kPanel;
        for (long i = 0; i < kPanel; i += kLanes)
          E::store_floats(to + i, silu(load<VecF>(gate + i)) * load<VecF>(own + i));
      });
    });
  });
}

// Weight [out, in] into panels; outputs beyond the last are zero.
template <class E>
void pack_panels(Team& team, const typename E::T* weight, long out, long in, uint32_t* panels) {
  constexpr long kEach = E::kPerWord;
  long steps = (in + kEach - 1) / kEach;
  team.share((out + kPanel - 1) / kPanel, [&](long panel) {
    uint32_t* to = panels + panel * steps * kPanel;
    for (long step = 0; step < steps; ++step)
      for (long i = 0; i < kPanel; ++i) {
        typename E::T word[kEach] = {};
        long row = panel * kPanel + i;
        for (long part = 0; part < kEach; ++part)
          if (row < out && step * kEach + part < in)
            word[part] = weight[row * in + step * kEach + part];
        __builtin_memcpy(to + step * kPanel + i, word, 4);
      }
  });
}

// The same of codes, which lie in their words plus 128, so that a product may take them as unsigned.
PAGODA_INLINE void pack_code_panels(Team& team, const int8_t* codes, long out, long in,
                                    uint32_t* panels) {
  pack_panels<Code>(team, codes, out, in, panels);
  long words = (in + 3) / 4 * kPanel;
  team.share((out + kPanel - 1) / kPanel, [&](long panel) {
    for (long i = 0; i < words; ++i) panels[panel * words + i] ^= 0x80808080u;
  });
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
