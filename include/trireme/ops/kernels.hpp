#pragma once

#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/sets/exchange.hpp"
#include "trireme/ops/types.hpp"

// Kernels of a memory space are a struct ops::on<Space> of static functions, in sets. A set is what one kind of policy
// or layer calls; each has a header in ops/sets with its functions, their shapes and numerics, and one concept.
//
//   set         concept (of Space, Env)              who needs it
//   exchange    exchange_kernels                     every trainer, make_exchange, communicators
//   update      adamw_kernels, sgd_kernels           the optimizer of that name
//   codec       selection_, low_rank_kernels         compression::top_k, power_sgd
//               codes_, drawing_kernels              compression::quantise and sign, random_k
//               sampled_selection_kernels            compression::top_k_sampled
//   dense       dense_kernels                        every model made of layers
//   heads       heads_kernels                        nn::attend
//   parts       parts_kernels                        parallel::tensor
//   blocks      blocks_kernels                       parallel::context
//   experts     experts_kernels                      nn::experts
//   images      images_kernels (images_on)           nn::conv2d, pooling, nn::patches
//   batch_norm  batch_norm_kernels (batch_norm_on)   nn::batch_norm
//   latent      latent_kernels (latent_heads_on)     nn::latent_attention
//   pages       paged_kernels (paged_attention_on)   serve::engine, generate()
//   pruning     pruning_kernels (pruning_on)         optim::pruned; the set is ops/pruning.hpp
//   values      values_kernels                       functions of users on elements: nn::elementwise, nn::loss::each
//
// Sets with a struct of their own are parsed only by programs that use them. A trainer of a plain model needs the first
// one, and that of its optimizer. The shortest complete example is ops/phantom.hpp, the shortest of an exchange
// tests/policies/space_test.cpp. What a space lacks is one sentence that names the set, and the layer, policy or rule.
