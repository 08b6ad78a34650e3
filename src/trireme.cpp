// All sources of the library in one, for a code base whose build is not CMake (docs/quick_builds.md): this file is
// compiled beside its own, and all of them with TRIREME_COMPILED defined. The other files then compile as quickly as
// with the library trireme::compiled.
//
//   TRIREME_COMPILED     is defined for every file that includes a header of trireme, and for this one
//   TRIREME_ONLY_FP32    likewise for every file, or for none: this one compiles in half of the time, and has the
//                        kernels and trainers of precision::fp32 alone; a program with other numbers does not link
//   TRIREME_QUARTER=N    compiles a quarter of it, N from 1 to 4, so that four cores can share the work: all four
//                        object files are linked
//
// It does not have the bodies of comm/mpi.hpp: those are in mpi/communicator.cpp (TRIREME_COMPILED_MPI), or are
// compiled in each file that includes that header.
#ifndef TRIREME_COMPILED
#error "trireme: src/trireme.cpp needs TRIREME_COMPILED, as do all files that include trireme; add -DTRIREME_COMPILED"
#endif

#ifndef TRIREME_QUARTER
#define TRIREME_QUARTER 0
#endif

#if TRIREME_QUARTER == 0 || TRIREME_QUARTER == 1
#include "trainers_fp32.cpp"
#endif

#if TRIREME_QUARTER == 0 || TRIREME_QUARTER == 2
#include "communicators.cpp"
#ifdef TRIREME_ONLY_FP32
#include "formats.cpp"
#include "pretrained.cpp"
#else
#include "trainers_bf16.cpp"
#endif
#endif

#if TRIREME_QUARTER == 0 || TRIREME_QUARTER == 3
#include "trainers_any_fp32.cpp"
#ifndef TRIREME_ONLY_FP32
#include "formats.cpp"
#include "pretrained.cpp"
#endif
#endif

#if TRIREME_QUARTER == 0 || TRIREME_QUARTER == 4
#include "codecs.cpp"
#include "layers.cpp"
#include "products.cpp"
#include "reductions.cpp"
#include "serving.cpp"
#include "updates.cpp"
#ifndef TRIREME_ONLY_FP32
#include "trainers_any_bf16.cpp"
#endif
#endif
