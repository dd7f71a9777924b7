// All kernels for one instruction set; compiled once for each, PAGODA_ISA names it.
#include "layers.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

// Calls work with the type that stands for the element.
template <class Work>
void with_element(Element element, Work work) {
  element == Element::kBf16 ? work(Bf16{}) : work(F32{});
}

void pack(Element element, const void* weight, long out, long in, uint32_t* panels, int threads) {
  with_element(element, [&](auto e) {
    using E = decltype(e);
    with_team(threads, [&](Team& team, int) {
      pack_panels<E>(team, static_cast<const typename E::T*>(weight), out, in, panels);
    });
  });
}

void pack_codes(const int8_t* codes, long out, long in, uint32_t* panels, int threads) {
  with_team(threads,
            [&](Team& team, int) { pack_code_panels(team, codes, out, in, panels); });
}

void linear(const LinearCall& call) {
  with_element(call.element, [&](auto e) {
    using E = decltype(e);
    using T = typename E::T;
    const Packed& w = call.packed;
    with_team(call.num_threads, [&](Team& team, int) {
      const T* x = static_cast<const T*>(call.x);
      Matrix rows = plain_matrix(x, call.rows, w);
      auto convert = [&](auto form) {
        team.share(call.rows, [&](long row) { form.template put<E>(row, x + row * w.in); });
        rows = form.matrix();
      };
      if (w.scales)
        convert(Coded(call.operand, call.rows, w.in));
      else if constexpr (kWidensRows<E>)
        convert(Wide(call.operand, call.rows, w.in));
      if (!call.to_float) return product_to<E>(team, rows, w, static_cast<T*>(call.out));
      float* floats = static_cast<float*>(call.out);
      share_panels(team, call.rows, panels_of(w), [&](long panel, long first, long last) {
        panel_product<E>(rows, w, panel, first, last,
                         [&](long row, long column, float* own, long count) {
                           __builtin_memcpy(floats + row * w.out + column, own, count * 4);
                         });
      });
    });
  });
}

void rms_norm(Element element, const void* x, float* residual, const float* weight, float eps,
              void* out, long rows, long width, int threads) {
  with_element(element, [&](auto e) {
    using E = decltype(e);
    using T = typename E::T;
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(out);
    with_team(threads, [&](Team& team, int) {
      team.share(rows, [&](long row) {
        const T* own = from + row * width;
        if (!residual) return norm_row<E, E>(own, weight, eps, to + row * width, width);
        add_row<E>(own, residual + row * width, width);
        norm_row<F32, E>(residual + row * width, weight, eps, to + row * width, width);
      });
    });
  });
}

void silu_mul(Element element, const void* gate_up, void* out, long rows, long inner,
              int threads) {
  with_element(element, [&](auto e) {
    using E = decltype(e);
    using T = typename E::T;
    with_team(threads, [&](Team& team, int) {
      team.share(rows, [&](long row) {
        silu_row<E>(static_cast<const T*>(gate_up) + row * 2 * inner,
                    static_cast<T*>(out) + row * inner, inner);
      });
    });
  });
}

void rotate(const RotateCall& call, const Heads& heads, const Cache& cache, const Rows& rows,
            int threads) {
  with_element(call.element, [&](auto e) {
    with_team(threads, [&](Team& team, int) {
      team.share(rows.num_tokens, [&](long token) {
        rotate_token<decltype(e)>(call, heads, cache, token, rows.slots[token]);
      });
    });
  });
}

void attention(const AttentionCall& call) {
  with_element(call.element, [&](auto e) {
    with_team(call.num_threads,
              [&](Team& team, int thread) { attend<decltype(e)>(team, call, thread); });
  });
}

void run_layers(const StepCall& call) {
  with_element(call.element, [&](auto e) {
    with_team(call.num_threads, [&](Team& team, int thread) {
      LayerRun<decltype(e)>(call, team, thread).run();
    });
  });
}

long attention_scratch_bytes(const Heads& heads, bool widens, long parts, int threads) {
  // f32 has more words in a head than bf16, so its sizes do for both.
  AttentionSizes sizes(heads, 1, widens);
  return 4 * (threads * sizes.thread_words() + parts * sizes.per_kv * sizes.result);
}

void set_trading(bool on) { Places::may_trade() = on; }

long num_trades() { return __atomic_load_n(&Places::num_trades(), __ATOMIC_RELAXED); }

void assign_cores(const int* cores, int count) { seats().assign(cores, count); }

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {
    pack,       pack_codes,
    linear,     rms_norm,
    silu_mul,   rotate,
    attention,  run_layers,
    attention_scratch_bytes,
    set_trading, num_trades, assign_cores,
};

}  // namespace PAGODA_ISA
}  // namespace pagoda
