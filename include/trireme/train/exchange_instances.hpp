#pragma once

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/precision/precision.hpp"

// The exchanges that are instantiated in the library trireme::compiled: those of ranks that are threads or processes
// (comm::any_world), without a compressor. All others are compiled in the program that uses them.

#define TRIREME_GRADIENTS(WHAT, Env, World, Strategy)                                     \
  WHAT class parallel::detail::bucket_gradients<Env, World, Strategy, compression::none>; \
  WHAT class parallel::detail::gradient_store<Env, World, Strategy, compression::none>;

// Not for precisions with separate master values: parameters in the caller's memory have none.
#define TRIREME_EXCHANGE(WHAT, Env, World, Strategy)                                        \
  WHAT class distributed_parameters<Env, World, Strategy, parallel::own_memory>;            \
  WHAT class distributed_parameters<Env, World, Strategy, parallel::callers_memory>;        \
  WHAT class basic_exchange<Env, World, Strategy, compression::none, parallel::own_memory>; \
  WHAT class basic_exchange<Env, World, Strategy, compression::none, parallel::callers_memory>;

// What a trainer and a loop of one's own share.
#define TRIREME_ALL_GRADIENTS(WHAT, Precision, World)                       \
  TRIREME_GRADIENTS(WHAT, environment<Precision>, World, parallel::data)    \
  TRIREME_GRADIENTS(WHAT, environment<Precision>, World, parallel::zero<1>) \
  TRIREME_GRADIENTS(WHAT, environment<Precision>, World, parallel::zero<2>)

#define TRIREME_EXCHANGES(WHAT, Precision, World)                          \
  TRIREME_EXCHANGE(WHAT, environment<Precision>, World, parallel::data)    \
  TRIREME_EXCHANGE(WHAT, environment<Precision>, World, parallel::zero<1>) \
  TRIREME_EXCHANGE(WHAT, environment<Precision>, World, parallel::zero<2>)

#ifdef TRIREME_COMPILED
namespace trireme {
TRIREME_ALL_GRADIENTS(extern template, precision::fp32, comm::threads_world)
TRIREME_ALL_GRADIENTS(extern template, precision::fp32, comm::any_world)
TRIREME_EXCHANGES(extern template, precision::fp32, comm::threads_world)
TRIREME_EXCHANGES(extern template, precision::fp32, comm::any_world)
#ifndef TRIREME_ONLY_FP32
TRIREME_ALL_GRADIENTS(extern template, precision::bf16, comm::threads_world)
TRIREME_ALL_GRADIENTS(extern template, precision::bf16, comm::any_world)
#endif
}  // namespace trireme
#endif
