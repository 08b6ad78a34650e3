#pragma once

// The compiler options that these headers need, checked before anything else is read. Including a file that does not
// exist ends the compilation, so that no errors follow the relevant one.
#if defined(_MSVC_LANG) ? _MSVC_LANG < 202002L : __cplusplus < 202002L
#error "trireme needs C++20: compile with -std=c++20 (CMake: target_compile_features(yours PRIVATE cxx_std_20))"
#include <trireme_stopped_because_this_is_not_cxx20>
#endif
#if !defined(__cpp_exceptions) && !defined(__CUDACC__)
#error "trireme reports errors by exceptions: compile the files that include it without -fno-exceptions"
#include <trireme_stopped_because_exceptions_are_off>
#endif
// The first removes checks for NaN and infinity; with the others the bits of results differ between compilers, CPUs and
// positions in a loop. (clang defines macros only for the first two; core/arithmetic.hpp detects the other flags when a
// trainer is made.)
#if (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ != 0) || defined(__FAST_MATH__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error \
    "trireme needs NaN, infinity, signed zeros and the order of operations, which -ffast-math, -Ofast, \
-ffinite-math-only, -funsafe-math-optimizations and parts of it give up: compile the files that include it with \
-fno-fast-math after these"
#include <trireme_stopped_because_of_fast_math>
#endif
// Excess precision (x87's) rounds twice, where the compiler chooses to.
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error \
    "trireme needs float to be computed in float, but here it is computed in wider numbers, as with -mfpmath=387: \
compile the files that include it with -mfpmath=sse -msse2"
#include <trireme_stopped_because_float_is_computed_in_wider_numbers>
#endif
// The preprocessor cannot detect this one.
static_assert(
    sizeof(0.1) == sizeof(double),
    "trireme needs constants of type double, which -fsingle-precision-constant makes float: compile the files "
    "that include it without that");

// Names of functions and members here that other libraries define as macros. The library's headers undefine the first
// two if they are read after them.
#include <version>
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 200000
#error \
    "trireme reads numbers with std::from_chars of double, which libc++ has from version 20 on: compile with \
-stdlib=libstdc++, or with a later libc++"
#include <trireme_stopped_because_this_libcxx_cannot_read_numbers>
#endif
#if defined(min) || defined(max) || defined(check) || defined(expect) || defined(fail) || defined(error) || \
    defined(text) || defined(near) || defined(far) || defined(small)
#error \
    "trireme needs min, max, check, expect, fail, error, text, near, far and small as names, and one of them is a \
macro here: #undef it before the include, or include trireme before what defines it"
#include <trireme_stopped_because_of_a_macro>
#endif
