// The threads of one call: they share out work items and meet between phases.
#pragma once

#include <omp.h>
#include <sched.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "places.h"
#include "simd.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

PAGODA_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Sleep while *round is `seen`; wake all who do. Elsewhere than on Linux the core is given away.
PAGODA_INLINE void sleep_while(unsigned* round, unsigned seen) {
#if defined(__linux__)
  syscall(SYS_futex, round, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
  if (__atomic_load_n(round, __ATOMIC_ACQUIRE) == seen) sched_yield();
#endif
}

PAGODA_INLINE void wake_all(unsigned* round) {
#if defined(__linux__)
  syscall(SYS_futex, round, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
#else
  (void)round;
#endif
}

class Team {
 public:
  explicit Team(int size) : size_(size) {}

  // For the threads there really are, before any of them works.
  void resize(int size) { size_ = size; }

  // By every one of `size` threads, before it works.
  void join(int thread, int size) { places_.take(thread, size); }

  // All of a phase's work is done when this returns. Waiting spins for a moment: the thread that is
  // waited for may have lost its core to another process. It gets this one then. Waiting spins once
  // more and sleeps, for that thread may have lost its core to this very one.
  PAGODA_INLINE void meet() {
    if (size_ == 1) {
      next_ = 0;
      return;
    }
    unsigned round = __atomic_load_n(&round_, __ATOMIC_RELAXED);
    places_.arrive(round + 1);
    if (__atomic_add_fetch(&arrived_, 1, __ATOMIC_ACQ_REL) == size_) {
      arrived_ = 0;
      next_ = 0;
      __atomic_store_n(&round_, round + 1, __ATOMIC_SEQ_CST);
      if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST)) wake_all(&round_);
      return;
    }
    if (spin_while(round)) return;
    if (__atomic_load_n(&arrived_, __ATOMIC_RELAXED) == size_ - 1) {
      places_.trade(size_, round + 1);
      if (spin_while(round)) return;
    }
    __atomic_add_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&round_, __ATOMIC_SEQ_CST) == round) sleep_while(&round_, round);
    __atomic_sub_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
  }

  // Take items first to last of the `total` of this phase, at most `most`; false if none are left.
  // Large portions first, so that memory is read in order; small ones last, so that all threads end
  // together.
  PAGODA_INLINE bool claim(long total, long most, long& first, long& last) {
    long taken = __atomic_load_n(&next_, __ATOMIC_RELAXED);
    for (;;) {
      long left = total - taken;
      if (left <= 0) return false;
      long portion = left / (2 * size_) < most ? left / (2 * size_) : most;
      if (portion < 1) portion = 1;
      if (__atomic_compare_exchange_n(&next_, &taken, taken + portion, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
        first = taken;
        last = taken + portion;
        return true;
      }
    }
  }

  template <class Work>
  PAGODA_INLINE void share(long total, Work work, long most = 1L << 62) {
    long first, last;
    while (claim(total, most, first, last))
      for (long item = first; item < last; ++item) work(item);
    meet();
  }

 private:
  static constexpr int kSpins = 3000;  // some 50 microseconds

  // Whether the round ended while we looked.
  PAGODA_INLINE bool spin_while(unsigned round) const {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (__atomic_load_n(&round_, __ATOMIC_ACQUIRE) != round) return true;
      relax();
    }
    return false;
  }

  int size_;
  Places places_;
  alignas(64) long next_ = 0;
  alignas(64) int arrived_ = 0;
  alignas(64) unsigned round_ = 0;
  int sleepers_ = 0;
};

// Runs work(team, thread) on num_threads threads of torch's own pool.
template <class Work>
void with_team(int num_threads, Work work) {
  if (num_threads <= 1 || omp_in_parallel()) {
    Team team(1);
    work(team, 0);
    return;
  }
  Team team(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    // A limit on threads may leave fewer than were asked for.
#pragma omp master
    team.resize(omp_get_num_threads());
    team.join(omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
    work(team, omp_get_thread_num());
  }
}

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
