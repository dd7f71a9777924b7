// One split of keys and values, gathered through the block table into the shape of packed weights,
// so that attention is two of the same small products.
#pragma once

#include "cache_codes.h"
#include "product.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

constexpr long kKeyPanels = kSplit / kPanel;

// Into the second cache: blocks lie anywhere, which no hardware prefetcher foresees, and the first
// cache waits for fewer lines at a time (10 GB/s against 18 on one Zen 4 core).
PAGODA_INLINE void fetch_line(const void* at) { __builtin_prefetch(at, 0, 2); }

constexpr long kTokensAhead = 16;  // when codes are widened

// Where the keys and values of a split lie: one address per position, of KV head `head`.
template <class E>
struct Gathered {
  const typename E::T* keys[kSplit];
  const typename E::T* values[kSplit];

  // Positions start + first to start + last of a row, each by its slot in the cache.
  template <class Take>
  static PAGODA_INLINE void for_slots(const Cache& cache, const int32_t* table, long start,
                                      long first, long last, Take take) {
    long position = start + first;
    while (position < start + last) {
      long block = position / cache.block_size, inside = position % cache.block_size;
      long slot = table[block] * cache.block_size + inside;
      long end = (block + 1) * cache.block_size;
      if (end > start + last) end = start + last;
      for (; position < end; ++position, ++slot) take(position - start, slot);
    }
  }

  void find(const Cache& cache, const Heads& heads, const int32_t* table, long head, long start,
            long first, long last) {
    long token_size = heads.kv * heads.dim;
    for_slots(cache, table, start, first, last, [&](long i, long slot) {
      long at = slot * token_size + head * heads.dim;
      keys[i] = static_cast<const typename E::T*>(cache.keys) + at;
      values[i] = static_cast<const typename E::T*>(cache.values) + at;
    });
  }

  // The same from a cache of another type: what was found is written to `wide`
  // [2][kSplit][num_heads * dim] as E first.
  void widen(const Cache& cache, const Heads& heads, const int32_t* table, long head,
             long num_heads, long start, long first, long last, typename E::T* wide) {
    long size = num_heads * heads.dim, slots[kSplit];
    for_slots(cache, table, start, first, last, [&](long i, long slot) { slots[i] = slot; });
    with_held(cache.held, [&](auto holding) {
      constexpr Held kHeld = decltype(holding)::value;
      for (long i = first; i < last; ++i) {
        long ahead = slots[i + kTokensAhead < last ? i + kTokensAhead : last - 1];
        long bytes = heads.dim * bytes_of(kHeld), at = (ahead * heads.kv + head) * bytes;
        for (long line = 0; line < num_heads * bytes; line += 64) {
          fetch_line(static_cast<const char*>(cache.keys) + at + line);
          fetch_line(static_cast<const char*>(cache.values) + at + line);
        }
        typename E::T *own_keys = wide + i * size, *own_values = wide + (kSplit + i) * size;
        long scale = slots[i] * heads.kv + head;
        widen_heads<E, kHeld>(cache.keys, cache.key_scales, scale, num_heads, heads.dim, own_keys);
        widen_heads<E, kHeld>(cache.values, cache.value_scales, scale, num_heads, heads.dim,
                              own_values);
        keys[i] = own_keys;
        values[i] = own_values;
      }
    });
  }

  // Positions behind the last one, to a whole panel, are zero: a weight of zero times chance bytes
  // need not be zero.
  void end_with(const typename E::T* zeros, long last) {
    for (long i = last; i % kPanel; ++i) keys[i] = values[i] = zeros;
  }
};

template <class T>
PAGODA_INLINE void fetch(const T* const* rows, long count, long bytes) {
  for (long i = 0; i < count; ++i)
    for (long line = 0; line < bytes; line += 64)
      fetch_line(reinterpret_cast<const char*>(rows[i]) + line);
}

#if defined(__AVX512F__)
// 16 rows of 16 words as 16 columns.
PAGODA_INLINE void transpose_words(const uint32_t* const* rows, long word, __m512i* to) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i] + word);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    to[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
    to[i + 4] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88);
    to[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    to[i + 12] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
  }
}
#endif

// A panel of keys [dim words][32 keys]; rows holds 32 addresses, null beyond the last key.
PAGODA_INLINE void pack_keys(const uint32_t* const* rows, long words, uint32_t* to) {
  long word = 0;
#if defined(__AVX512F__)
  for (; word + 16 <= words; word += 16)
    for (int half = 0; half < kPanel; half += 16) {
      __m512i columns[16];
      transpose_words(rows + half, word, columns);
      for (int i = 0; i < 16; ++i)
        _mm512_storeu_si512(to + (word + i) * kPanel + half, columns[i]);
    }
#endif
  for (; word < words; ++word)
    for (long i = 0; i < kPanel; ++i) to[word * kPanel + i] = rows[i][word];
}

#if defined(__AVX512BW__)
// Values of the keys of one word (two neighbours in bf16, one in f32), 32 columns from `column` on:
// one step of a panel.
PAGODA_INLINE void value_words(Bf16, const uint16_t* const* rows, long column, VecU* words) {
  alignas(64) static const uint16_t low[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                               37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                               11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  __m512i a = _mm512_loadu_si512(rows[0] + column), b = _mm512_loadu_si512(rows[1] + column);
  __m512i first = _mm512_load_si512(low);
  __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  words[0] = (VecU)_mm512_permutex2var_epi16(a, first, b);
  words[1] = (VecU)_mm512_permutex2var_epi16(a, second, b);
}

PAGODA_INLINE void value_words(F32, const float* const* rows, long column, VecU* words) {
  words[0] = load<VecU>(rows[0] + column);
  words[1] = load<VecU>(rows[0] + column + 16);
}
#endif

PAGODA_INLINE uint32_t value_word(Bf16, const uint16_t* const* rows, long column) {
  return rows[0][column] | static_cast<uint32_t>(rows[1][column]) << 16;
}

PAGODA_INLINE uint32_t value_word(F32, const float* const* rows, long column) {
  return load<uint32_t>(rows[0] + column);
}

// The same to memory, for any number of columns; those beyond the last are zero.
template <class E>
PAGODA_INLINE void pack_value_step(const typename E::T* const* rows, long column, long count,
                                   uint32_t* to) {
#if defined(__AVX512BW__)
  if (count >= kPanel) {
    VecU words[2];
    value_words(E{}, rows, column, words);
    store(to, words[0]);
    store(to + 16, words[1]);
    return;
  }
#endif
  for (long i = 0; i < kPanel; ++i) to[i] = i < count ? value_word(E{}, rows, column + i) : 0;
}

// Key panels first to last of a split, keys and values.
template <class E>
void pack_split(const Gathered<E>& at, long first, long last, long dim, uint32_t* keys,
                uint32_t* values) {
  long words = dim / E::kPerWord, steps = kSplit / E::kPerWord, bytes = words * 4;
  long columns = (dim + kPanel - 1) / kPanel;
  for (long panel = first; panel < last; ++panel) {
    if (panel + 1 < last) {
      fetch(at.keys + (panel + 1) * kPanel, kPanel, bytes);
      fetch(at.values + (panel + 1) * kPanel, kPanel, bytes);
    }
    const typename E::T* const* own = at.keys + panel * kPanel;
    pack_keys(reinterpret_cast<const uint32_t* const*>(own), words, keys + panel * words * kPanel);
    for (long key = panel * kPanel; key < (panel + 1) * kPanel; key += E::kPerWord)
      for (long column = 0; column < columns; ++column)
        pack_value_step<E>(at.values + key, column * kPanel, dim - column * kPanel,
                           values + (column * steps + key / E::kPerWord) * kPanel);
  }
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
