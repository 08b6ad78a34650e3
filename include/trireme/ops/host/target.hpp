#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

// Intrinsics (simd.hpp) and standard headers are included before a region begins: everything declared inside a region
// is compiled for its CPU.
#include "trireme/core/dialect.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TRIREME_X86 1
#else
#define TRIREME_X86 0
#endif
#if TRIREME_X86 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Regions of code for one CPU level, so that a program built with plain -O2 also has the fast kernels and selects them
// at run time. Inside a region: only free functions and function templates (g++ compiles a lambda, or a template
// declared elsewhere, for the baseline), in a namespace named for the level, so that baseline code never calls them by
// overload resolution.
//
//     TRIREME_TARGET_AVX2_BEGIN
//     namespace trireme::ops::detail::avx2 { inline __m256 half(__m256 x) { ... } }
//     TRIREME_TARGET_END
#if defined(__clang__)
#define TRIREME_TARGET_BEGIN_(features) \
  TRIREME_PRAGMA_(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TRIREME_TARGET_END TRIREME_PRAGMA_(clang attribute pop)
#else
// g++ 12 warns that the deliberately undefined operands inside its own intrinsics are uninitialised; this disables the
// warning.
#define TRIREME_TARGET_BEGIN_(features)                           \
  TRIREME_PRAGMA_(GCC diagnostic push)                            \
  TRIREME_PRAGMA_(GCC diagnostic ignored "-Wuninitialized")       \
  TRIREME_PRAGMA_(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  TRIREME_PRAGMA_(GCC push_options) TRIREME_PRAGMA_(GCC target(features))
#define TRIREME_TARGET_END TRIREME_PRAGMA_(GCC pop_options) TRIREME_PRAGMA_(GCC diagnostic pop)
#endif
#define TRIREME_PRAGMA_(text) _Pragma(#text)

// In clang 18 to 21 registers of 512 bits are a separate feature, which the command line may have disabled.
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ >= 18 && __clang_major__ <= 21
#define TRIREME_WIDE_ "evex512,"
#else
#define TRIREME_WIDE_ ""
#endif
#define TRIREME_TARGET_AVX2_BEGIN TRIREME_TARGET_BEGIN_("avx2,fma,f16c,bmi,bmi2")
#define TRIREME_TARGET_AVX512_BEGIN \
  TRIREME_TARGET_BEGIN_(TRIREME_WIDE_ "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512cd")
#define TRIREME_TARGET_AVX512_BF16_BEGIN \
  TRIREME_TARGET_BEGIN_(TRIREME_WIDE_ "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512bf16")

namespace trireme::ops {

/// The instruction sets of kernels; each level contains those before it.
enum class cpu_level {
  baseline,     ///< the program's compiler flags
  avx2,         ///< AVX2 and FMA
  avx512,       ///< AVX-512 F, BW, VL, DQ, CD
  avx512_bf16,  ///< and the bfloat16 dot product
  amx,          ///< and products of bfloat16 tiles, if the system permits the use of their registers
};

/// The name of a level, as in TRIREME_CPU.
[[nodiscard]] constexpr std::string_view name_of(cpu_level level) noexcept {
  switch (level) {
    case cpu_level::avx2:
      return "avx2";
    case cpu_level::avx512:
      return "avx512";
    case cpu_level::avx512_bf16:
      return "avx512_bf16";
    case cpu_level::amx:
      return "amx";
    case cpu_level::baseline:
      break;
  }
  return "baseline";
}

namespace detail {

/// The highest level without tiles.
inline cpu_level vector_level() noexcept {
#if TRIREME_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return cpu_level::baseline;
  bool const avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return cpu_level::avx2;
  return __builtin_cpu_supports("avx512bf16") ? cpu_level::avx512_bf16 : cpu_level::avx512;
#else
  return cpu_level::baseline;
#endif
}

/// Whether the CPU has tiles of bfloat16 and Linux lets this process use them. Requested once: Linux saves their 8 KiB
/// of registers for each thread that has used them, so it requires a request, and denies it if a thread's signal stack
/// is too small for them.
inline bool tiles_granted() noexcept {
#if TRIREME_X86 && defined(__linux__)
  static bool const granted = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned tile_and_bf16 = (1U << 24) | (1U << 22);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tile_and_bf16) != tile_and_bf16) return false;
    constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace detail

/// The highest level that this CPU and its operating system support.
[[nodiscard]] inline cpu_level available() noexcept {
  auto const vectors = detail::vector_level();
  return vectors == cpu_level::avx512_bf16 && detail::tiles_granted() ? cpu_level::amx : vectors;
}

/// The default level: the highest one, except that bfloat16 dot products of Intel's vector units are not used, because
/// they are not faster than multiplying floats. The CPU's vendor decides and not a measurement, so that a machine gives
/// the same bits in every run.
[[nodiscard]] inline cpu_level quickest() noexcept {
  auto const level = available();
#if TRIREME_X86
  if (level == cpu_level::avx512_bf16 && __builtin_cpu_is("intel")) return cpu_level::avx512;
#endif
  return level;
}

namespace detail {

inline cpu_level level_from_environment() noexcept {
  char const* value = std::getenv("TRIREME_CPU");
  std::string_view const name = value == nullptr ? "" : value;
  for (auto const level : {cpu_level::baseline, cpu_level::avx2, cpu_level::avx512, cpu_level::avx512_bf16}) {
    if (name == name_of(level)) return std::min(level, vector_level());
  }
  return name == name_of(cpu_level::amx) ? available() : quickest();
}

inline std::atomic<cpu_level>& active_level() noexcept {
  static std::atomic<cpu_level> level{level_from_environment()};
  return level;
}

}  // namespace detail

/// The level that kernels use: the default level, unless the environment variable TRIREME_CPU (baseline, avx2, avx512,
/// avx512_bf16, amx) or the setter below selects another.
[[nodiscard]] inline cpu_level detected() noexcept { return detail::active_level().load(std::memory_order_relaxed); }

/// Selects `level`, or the CPU's highest if that is lower. For tests and benchmarks, between steps.
inline void detected(cpu_level level) noexcept {
  detail::active_level().store(std::min(level, available()), std::memory_order_relaxed);
}

}  // namespace trireme::ops
