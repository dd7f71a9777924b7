// The instruction sets that were compiled, best first, and which of them this processor has.
#pragma once

#include "kernel_api.h"

namespace pagoda {

#if defined(__x86_64__)
namespace avx512_bf16 {
extern const Kernels kKernels;
}
namespace avx512_vnni {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
#endif
namespace portable {
extern const Kernels kKernels;
}

#if defined(__x86_64__)
// Intel's processors multiply pairs of bf16 at half their speed in f32 (73 against 118 GFLOP/s of one
// core of an Emerald Rapids), so these are widened there instead.
inline bool halves_bf16() { return __builtin_cpu_is("intel"); }

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

inline bool has_avx512_bf16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
         has_avx512();
}
#endif

struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  bool (*is_present)();
};

inline const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512_bf16", &avx512_bf16::kKernels, [] { return has_avx512_bf16() && !halves_bf16(); }},
    {"avx512_vnni", &avx512_vnni::kKernels,
     [] { return __builtin_cpu_supports("avx512vnni") && has_avx512(); }},
    {"avx512_bf16", &avx512_bf16::kKernels, [] { return has_avx512_bf16() && halves_bf16(); }},
    {"avx512", &avx512::kKernels, has_avx512},
    {"avx2", &avx2::kKernels,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    {"portable", &portable::kKernels, [] { return true; }},
};

}  // namespace pagoda
