// Which core each thread of a team is bound to, where the process has a core for every thread.
//
// The kernel moves a thread that stands in line at a core only after some milliseconds, and often to
// where another of the same team computes. Threads that are bound stay apart. What they lose, a way
// around another process on their core, trades give back (places.h): two threads swap their seats.
#pragma once

#include <sched.h>

namespace pagoda {
namespace PAGODA_ISA {
namespace {

// Teams with more threads than this are neither bound nor trade cores.
constexpr int kMostPlaces = 128;

#if defined(__linux__)

class Seats {
 public:
  // By a thread that is not bound.
  Seats() {
    if (sched_getaffinity(0, sizeof free_, &free_)) CPU_ZERO(&free_);
  }

  // The cores of this process, for teams of as many threads; a count of 0: nobody is bound. Not while
  // a team works. Threads that were bound are set free as they begin their next call.
  void assign(const int* cores, int count) {
    count_ = count <= kMostPlaces ? count : 0;
    for (int thread = 0; thread < count_; ++thread) put(thread, cores[thread]);
  }

  // Binds the calling thread, member number `thread` of `size`, to its seat. False where it has
  // none: it may run wherever it could before.
  bool take(int thread, int size) {
    int core = size == count_ ? at(thread) : kFree;
    if (core == bound_to()) return core != kFree;
    // A core that the system has withdrawn leaves the thread free.
    bool is_bound = core != kFree && bind(0, core);
    if (!is_bound && bound_to() != kFree) sched_setaffinity(0, sizeof free_, &free_);
    bound_to() = is_bound ? core : kFree;
    return is_bound;
  }

  int at(int thread) const { return __atomic_load_n(&cores_[thread], __ATOMIC_RELAXED); }

  // Two members trade places, the calling one and another, which is thread `id`. False where that
  // could not be, or where another team does so at this moment.
  bool swap(int own, int other, pid_t id) {
    if (__atomic_exchange_n(&is_swapping_, true, __ATOMIC_ACQUIRE)) return false;
    int here = at(own), there = at(other);
    bool moved = bind(id, here);
    if (moved) {
      bound_to() = bind(0, there) ? there : here;
      put(own, there);
      put(other, here);
    }
    __atomic_store_n(&is_swapping_, false, __ATOMIC_RELEASE);
    return moved;
  }

 private:
  static constexpr int kFree = -1;

  static int& bound_to() {
    static thread_local int core = kFree;
    return core;
  }

  static bool bind(pid_t id, int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return !sched_setaffinity(id, sizeof one, &one);
  }

  void put(int thread, int core) { __atomic_store_n(&cores_[thread], core, __ATOMIC_RELAXED); }

  int cores_[kMostPlaces] = {};
  int count_ = 0;
  bool is_swapping_ = false;
  cpu_set_t free_;  // where threads may run that are not bound
};

inline Seats& seats() {
  static Seats of_process;
  return of_process;
}

#else

class Seats {
 public:
  void assign(const int*, int) {}
};

inline Seats& seats() {
  static Seats of_process;
  return of_process;
}

#endif

}  // namespace
}  // namespace PAGODA_ISA
}  // namespace pagoda
