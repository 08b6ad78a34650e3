// Trireme 0.1.0: trireme/interop/torch_data_parallel_options.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d671bbb44cad0c78d0d8f5d93fff4cd08078f770d4b11a5eabec0345590bb649
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_data_parallel_options.hpp
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::interop {

/// Which buffers (running statistics of a batch normalisation, say) ranks have after a step: those of the first rank,
/// their mean over the ranks (integers: those of the first rank), or each rank its own.
enum class step_buffers { first_rank, mean, own };

/// How many backward() a step may have. one: gradients are exchanged while it runs. any: any number, also those of
/// other losses that go through this module; finish() exchanges what .grad() then has.
enum class step_backwards { one, any };

/// What join() does while other ranks still have batches: take part in their steps, or raise an error on all ranks.
enum class early_end { follow, raise };

struct data_parallel_options {
  /// A step need not use every parameter. The .grad() of one that no rank has used stays as it was. This takes one more
  /// message a step, of one byte a parameter. If it is false, a parameter without a gradient is an error.
  bool unused_parameters = false;
  /// Every step of a rank uses the same parameters, equally often, as the first one has. So a parameter may get its
  /// gradient in several parts of a step (several backward(), or a checkpointed part that runs backward within
  /// backward), and its exchange starts after the last of them; which parameters are used is told once, not in every
  /// step; and a step that differs is an error. In the first step, which counts, nothing overlaps. Not with join().
  bool static_graph = false;
  step_buffers buffers = step_buffers::first_rank;
  /// .grad() of each parameter lies in the exchange's memory, so nothing is copied back, and where the loop clears
  /// gradients without releasing their memory, nothing is copied at all. While data_parallel lives, .grad() is then to
  /// be read through the parameter: another tensor that shares its memory is invalid afterwards. With parallel::data,
  /// without a compressor. On one rank, where nothing is copied anyway, .grad() stays where torch has put it.
  bool gradients_in_buckets = false;
  /// If set: backward is begun by backward(loss), with the loss times a scale that follows the steps (for autocast with
  /// float16; bfloat16 needs none). finish() divides by it, and the caller skips the update where it is not finite.
  /// Gradients are cleared in every step.
  std::optional<precision::fp16> loss_scale{};
  /// Steps between comparisons of the ranks' parameters, the first step's included: one all_reduce of two numbers, and
  /// a hash of this rank's copy. 0: never. So an optimizer.step() before finish() is an error in the first step. Not
  /// where ranks take steps alone (parallel::diloco).
  std::int64_t check_every = 100;
  /// any: several backward() before finish() add up, without no_sync(), and a loss may go through this module to
  /// others, as that of a generator through the discriminator, whose optimizer's zero_grad() comes before its own step.
  /// Nothing overlaps.
  step_backwards backwards = step_backwards::one;
  /// Parameters and buffers that each rank has for itself, by patterns of their names, separated by spaces (* stands
  /// for any letters): "queue head.*". They are neither compared nor sent, and may have other shapes on other ranks.
  std::string left_alone{};
};

}  // namespace trireme::interop
