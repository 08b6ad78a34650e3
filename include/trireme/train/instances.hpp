#pragma once

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/nn/nn.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/exchange_instances.hpp"
#include "trireme/train/trainer.hpp"

// The templates between descriptions and kernels that are instantiated in the library trireme::compiled: the layers of
// `nn`, the engine, and, for ranks that are threads or processes (comm::any_world), the trainer of the models of `nn`
// with AdamW; their exchange is in exchange_instances.hpp. Everything else, and these with other element types, is
// compiled in the program that uses it, from the same headers.

#define TRIREME_LAYERS(WHAT, Env)                                            \
  WHAT class nn::detail::chain_node<Env>;                                    \
  WHAT class nn::expression<Env>;                                            \
  WHAT class boxed_unit<Env, nn::mlp_layer<true>>;                           \
  WHAT class boxed_unit<Env, nn::mlp_layer<>>;                               \
  WHAT class boxed_unit<Env, nn::mlp_layer<false, nn::loss::squared_error>>; \
  WHAT class boxed_unit<Env, nn::gpt_embedding>;                             \
  WHAT class boxed_unit<Env, nn::gpt_block>;                                 \
  WHAT class boxed_unit<Env, nn::gpt_head>;                                  \
  WHAT class staged_engine<Env>;

#define TRIREME_TRAINER(WHAT, Precision, World, Model)                                              \
  WHAT class placed_model<environment<Precision>, Model, World, parallel::data, compression::none>; \
  WHAT class basic_trainer<Model, optim::adamw, World, parallel::data, Precision, compression::none>;

#define TRIREME_TRAINERS(WHAT, Precision, World)   \
  TRIREME_TRAINER(WHAT, Precision, World, nn::mlp) \
  TRIREME_TRAINER(WHAT, Precision, World, nn::gpt)

#ifdef TRIREME_COMPILED
namespace trireme {
TRIREME_LAYERS(extern template, environment<precision::fp32>)
TRIREME_TRAINERS(extern template, precision::fp32, comm::threads_world)
TRIREME_TRAINERS(extern template, precision::fp32, comm::any_world)
#ifndef TRIREME_ONLY_FP32
TRIREME_LAYERS(extern template, environment<precision::bf16>)
TRIREME_TRAINERS(extern template, precision::bf16, comm::threads_world)
TRIREME_TRAINERS(extern template, precision::bf16, comm::any_world)
#endif
}  // namespace trireme
#endif
