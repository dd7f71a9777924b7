// Several layers of a decoder in one go: threads start once and meet between phases.
#pragma once

#include <time.h>

#include "attention.h"
#include "rows.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

// Of one thread alone the time that it had the core, so that others on the machine do not count.
inline double seconds_now(int num_threads) {
  if (num_threads > 1) return omp_get_wtime();
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

template <class E>
class LayerRun {
 public:
  using T = typename E::T;

  LayerRun(const StepCall& call, Team& team, int thread)
      : call_(call), team_(team), thread_(thread), rows_(call.rows.num_tokens) {}

  void run() {
    started_ = seconds_now(call_.num_threads);
    x_ = static_cast<T*>(call_.x) + (rows_ <= kOwnRows ? thread_ * kOwnRows * call_.hidden : 0);
    if (call_.first_layer == 0) embed();
    for (long index = call_.first_layer; index < call_.last_layer; ++index) {
      if (thread_ == 0) look(index);
      run_layer(index);
      if (__atomic_load_n(call_.reached, __ATOMIC_RELAXED) == index + 1) return;
    }
  }

 private:
  void embed() {
    const T* table = static_cast<const T*>(call_.embedding);
    team_.share(rows_, [&](long row) {
      const T* own = table + call_.token_ids[row] * call_.hidden;
      float* residual = call_.residual + row * call_.hidden;
      for (long i = 0; i < call_.hidden; i += kLanes)
        store_few<F32>(residual + i, load_few<E>(own + i, call_.hidden - i), call_.hidden - i);
    });
    norm(call_.layers[0].input_norm);
  }

  // Every layer has a meeting, so all threads know at its end what was seen before it.
  void look(long index) {
    if (call_.wanted && __atomic_load_n(call_.wanted, __ATOMIC_RELAXED))
      __atomic_store_n(call_.reached, index + 1, __ATOMIC_RELAXED);
  }

  void run_layer(long index) {
    const Layer& layer = call_.layers[index];
    bool is_final = index + 1 == call_.num_layers;
    long width = (call_.heads.query + 2 * call_.heads.kv) * call_.heads.dim;
    product_to<E>(team_, operand(x_, layer.qkv), layer.qkv, static_cast<T*>(call_.qkv));
    done(kQkv);
    rotate(layer, width);
    done(kRotate);
    attend_rows(layer, call_.plans[index], width);
    done(kAttend);
    const T* attended = static_cast<const T*>(call_.attended);
    if (is_final) attended = keep_last(attended);
    product_onto<E>(team_, operand(attended, layer.output), layer.output, call_.residual);
    done(kOutput);
    norm(layer.post_norm);
    activate(layer);
    const T* activated = static_cast<const T*>(call_.activated);
    product_onto<E>(team_, operand(activated, layer.down), layer.down, call_.residual);
    done(kDown);
    norm(is_final ? call_.final_norm : call_.layers[index + 1].input_norm);
  }

  // Rows as the product with w takes them.
  Matrix operand(const T* rows, const Packed& w) {
    if (w.scales) return converted<Coded>(rows, w);
    if constexpr (kWidensRows<E>) return converted<Wide>(rows, w);
    return plain_matrix(rows, rows_, w);
  }

  // Few rows are converted by every thread for itself.
  template <class Form>
  Matrix converted(const T* rows, const Packed& w) {
    if (rows_ <= kOwnRows) {
      Form own(call_.operand + thread_ * call_.own_operand_bytes, rows_, w.in);
      for (long row = 0; row < rows_; ++row) own.template put<E>(row, rows + row * w.in);
      return own.matrix();
    }
    Form all(call_.operand, rows_, w.in);
    team_.share(rows_, [&](long row) { all.template put<E>(row, rows + row * w.in); });
    return all.matrix();
  }

  void rotate(const Layer& layer, long width) {
    const Heads& heads = call_.heads;
    T* qkv = static_cast<T*>(call_.qkv);
    RotateCall call{call_.element, qkv,       qkv + (heads.query + heads.kv) * heads.dim,
                    width,         width,     call_.cos,
                    call_.sin,     layer.qk_norm, call_.eps};
    team_.share(rows_, [&](long token) {
      rotate_token<E>(call, heads, layer.cache, token, call_.rows.slots[token]);
    });
  }

  void attend_rows(const Layer& layer, const AttentionPlan& plan, long width) {
    AttentionCall call{call_.element, call_.qkv,  width, call_.attended, layer.cache,
                       call_.heads,   call_.rows, plan,  call_.scratch,  call_.num_threads};
    call.heads.window = layer.window;
    attend<E>(team_, call, thread_);
  }

  // From the last attention on only the rows that sample matter to anyone.
  const T* keep_last(const T* attended) {
    long width = call_.heads.query * call_.heads.dim;
    T* kept = static_cast<T*>(call_.gathered);
    if (thread_ == 0)
      for (long i = 0; i < call_.num_last; ++i) {
        long row = call_.last_tokens[i];
        __builtin_memcpy(kept + i * width, attended + row * width, width * sizeof(T));
        // Rows are in order, so none is overwritten before it has moved.
        __builtin_memmove(call_.residual + i * call_.hidden, call_.residual + row * call_.hidden,
                          call_.hidden * sizeof(float));
      }
    team_.meet();
    rows_ = call_.num_last;
    return kept;
  }

  void activate(const Layer& layer) {
    T* activated = static_cast<T*>(call_.activated);
    if (call_.inner % kPanel == 0) {
      gated_product<E>(team_, operand(x_, layer.gate_up), layer.gate_up, activated);
    } else {
      T* gate_up = static_cast<T*>(call_.gate_up);
      product_to<E>(team_, operand(x_, layer.gate_up), layer.gate_up, gate_up);
      team_.share(rows_, [&](long row) {
        silu_row<E>(gate_up + row * 2 * call_.inner, activated + row * call_.inner, call_.inner);
      });
    }
    done(kGateUp);
  }

  // Few rows are normed by every thread for itself, which takes less time than meeting.
  void norm(const float* weight) {
    T* all = static_cast<T*>(call_.x);
    if (rows_ <= kOwnRows) {
      x_ = all + thread_ * kOwnRows * call_.hidden;
      for (long row = 0; row < rows_; ++row) norm_one(row, weight);
    } else {
      x_ = all;
      team_.share(rows_, [&](long row) { norm_one(row, weight); });
    }
    done(kNorm);
  }

  PAGODA_INLINE void norm_one(long row, const float* weight) {
    norm_row<F32, E>(call_.residual + row * call_.hidden, weight, call_.eps,
                     x_ + row * call_.hidden, call_.hidden);
  }

  void done(Phase phase) {
    if (thread_ != 0) return;
    double now = seconds_now(call_.num_threads);
    call_.seconds[phase] += now - started_;
    started_ = now;
  }

  const StepCall& call_;
  Team& team_;
  int thread_;
  long rows_;
  T* x_;
  double started_;
};

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
