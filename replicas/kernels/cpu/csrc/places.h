// Where the threads of a team run, and how one that waits gives its core to the one it waits for.
//
// On a machine with a core for each thread and none to spare, any other process that runs takes the
// core of one thread, and all others wait for it at the end of the phase: a core computes nothing
// while a thread that could use it stands in line at another. The kernel moves such a thread only
// after some milliseconds. Here the two trade places: the one with work goes on at once, the one
// that waits stands in line.
#pragma once

#include <sched.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "seats.h"
#include "simd.h"

namespace pagoda {
namespace PAGODA_ISA {
namespace {

#if defined(__linux__)

class Places {
 public:
  // The calling thread is member number `thread` of `size`; before any of them works.
  void take(int thread, int size) {
    own() = thread;
    if (size > kMostPlaces) return;
    static thread_local const pid_t id = static_cast<pid_t>(syscall(SYS_gettid));
    Place& place = places_[thread];
    place.id = id;
    place.is_bound = seats().take(thread, size);
    if (place.is_bound) return;
    place.core = sched_getcpu();
    // Now, since in a trade another thread narrows it for a moment.
    if (sched_getaffinity(0, sizeof place.allowed, &place.allowed)) CPU_ZERO(&place.allowed);
  }

  // It has reached the end of round number `round`.
  PAGODA_INLINE void arrive(unsigned round) {
    if (own() >= kMostPlaces) return;
    Place& place = places_[own()];
    if (!place.is_bound) __atomic_store_n(&place.core, sched_getcpu(), __ATOMIC_RELAXED);
    __atomic_store_n(&place.met, round, __ATOMIC_RELAXED);
  }

  // Give the calling thread's core to the one of `size` that has not reached the end of `round`.
  // Nothing happens where cores are to spare, or where either may not run in the other's place. The
  // cores that a thread may use are the same afterwards; threads that are bound swap their seats.
  void trade(int size, unsigned round) {
    if (own() >= kMostPlaces || size > kMostPlaces || !may_trade()) return;
    for (int thread = 0; thread < size; ++thread)
      if (__atomic_load_n(&places_[thread].met, __ATOMIC_RELAXED) != round) {
        // Of several that wait one alone trades.
        if (__atomic_exchange_n(&places_[thread].traded, round, __ATOMIC_RELAXED) != round &&
            trade_with(thread, size))
          __atomic_add_fetch(&num_trades(), 1, __ATOMIC_RELAXED);
        return;
      }
  }

  // Whether it is done at all, and how often it was; both of this process.
  static bool& may_trade() {
    static bool may = true;
    return may;
  }

  static long& num_trades() {
    static long count = 0;
    return count;
  }

 private:
  struct alignas(64) Place {
    pid_t id = 0;
    bool is_bound = false;
    int core = -1;
    unsigned met = 0, traded = 0;
    cpu_set_t allowed;
  };

  static int& own() {
    static thread_local int thread = 0;
    return thread;
  }

  bool trade_with(int thread, int size) {
    const Place &late = places_[thread], &mine = places_[own()];
    if (late.is_bound != mine.is_bound) return false;
    if (late.is_bound) return seats().swap(own(), thread, late.id);
    int here = sched_getcpu(), there = __atomic_load_n(&late.core, __ATOMIC_RELAXED);
    const cpu_set_t &ours = mine.allowed, &theirs = late.allowed;
    if (here < 0 || there < 0 || here == there || CPU_COUNT(&ours) > size ||
        !CPU_ISSET(there, &ours) || !CPU_ISSET(here, &theirs))
      return false;
    if (!move(late.id, here, theirs)) return false;
    move(0, there, ours);
    return true;
  }

  // Brings a thread to a core at once, and leaves it free to run on all that it is allowed.
  static bool move(pid_t id, int core, const cpu_set_t& allowed) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(id, sizeof one, &one)) return false;
    sched_setaffinity(id, sizeof allowed, &allowed);
    return true;
  }

  Place places_[kMostPlaces];
};

#else

class Places {
 public:
  void take(int, int) {}
  void arrive(unsigned) {}
  void trade(int, unsigned) {}
  static bool& may_trade() {
    static bool may = false;
    return may;
  }
  static long& num_trades() {
    static long count = 0;
    return count;
  }
};

#endif

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
