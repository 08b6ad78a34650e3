#pragma once

// Header-only or compiled once: both use the same headers (docs/adr/0015).
//
// A header NAME.hpp whose bodies need not be seen by every program ends with
//
//     #ifndef TRIREME_COMPILED
//     #include "trireme/ROOM/NAME.ipp"
//     #endif
//
// and NAME.ipp contains them. A non-template function is marked TRIREME_BODY there. If TRIREME_COMPILED is defined
// (by the target trireme::compiled, or by a build that compiles src/trireme.cpp itself) the header has declarations
// only, and what is made of src/ has the bodies. It instantiates the templates for all supported element types, so that
// every precision links.
#ifdef TRIREME_COMPILED
#define TRIREME_BODY

// One compiler makes the bodies and the program that links them. In a lambda, g++ captures what any branch of an
// `if constexpr` names, clang++ what the chosen one does; where both have compiled a template that takes such a lambda,
// the linker keeps either, and it would read what is not there. So each file refers to a name that only a library of
// its own compiler has, and the linker's message says what is wrong.
#ifdef __clang__
#define TRIREME_SAME_COMPILER compile_the_library_by_clang_as_this_program
#else
#define TRIREME_SAME_COMPILER compile_the_library_by_gcc_as_this_program
#endif
namespace trireme {
extern char const TRIREME_SAME_COMPILER;
namespace detail {
[[gnu::used]] static char const* const same_compiler = &TRIREME_SAME_COMPILER;
}  // namespace detail
}  // namespace trireme
#else
#define TRIREME_BODY inline
#endif
