// Trireme 0.1.0: trireme/interop/torch_data_parallel_options.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f4c18f6e78857b28410b057ba316590fb5d9376eb355839ec786fa4465eebdbe
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_data_parallel_options.hpp
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::interop {

/// Which buffers (running statistics of a batch normalisation, say) the ranks have after a step: those of the first
/// rank, the mean over the ranks (integer buffers: those of the first rank), or each rank its own.
enum class step_buffers { first_rank, mean, own };

/// How many calls of backward() a step may have. one: gradients are exchanged while it runs. any: any number, also of
/// losses of other modules that are computed through this one; finish() exchanges the values that .grad() has then.
enum class step_backwards { one, any };

/// What join() does while other ranks still have batches: take part in their steps, or raise an error on all ranks.
enum class early_end { follow, raise };

struct data_parallel_options {
  /// true: a step need not use every parameter. If no rank has used a parameter, its .grad() stays as it was. This
  /// takes one more message a step, of one byte a parameter. false: a parameter without a gradient is an error.
  bool unused_parameters = false;
  /// true: every step of a rank uses the same parameters as its first step, each as often. A parameter may then get its
  /// gradient in several parts of a step (several calls of backward(), or a checkpointed part, which runs backward
  /// within backward); its exchange starts after the last of them. The ranks tell each other which parameters they use
  /// once, not in every step. A step that differs from the first is an error. The first step counts the parts, so its
  /// exchange does not overlap backward. Not with join().
  bool static_graph = false;
  step_buffers buffers = step_buffers::first_rank;
  /// true: .grad() of each parameter lies in the exchange's memory, so nothing is copied back, and if the loop clears
  /// gradients without releasing their memory, nothing is copied at all. Read .grad() through the parameter: when
  /// data_parallel's object ends, another tensor that shares the memory of a gradient becomes invalid. Needs
  /// parallel::data without a compressor. On one rank, where nothing is copied anyway, .grad() stays where torch has
  /// put it.
  bool gradients_in_buckets = false;
  /// If set: ddp.backward(loss) begins backward, with the loss times a scale that is adjusted after every step (for
  /// autocast with float16; bfloat16 needs none). finish() divides gradients by the scale, and the caller skips the
  /// update if they are not finite. Gradients must be cleared in every step.
  std::optional<precision::fp16> loss_scale{};
  /// Ranks compare their parameters in the first step and then in every check_every-th one: one all_reduce of two
  /// numbers, and a hash of this rank's copy. 0: never. So an optimizer.step() before finish() is an error in the first
  /// step. Ignored if ranks update their parameters independently (parallel::diloco).
  std::int64_t check_every = 100;
  /// any: several calls of backward() before finish() add up, without no_sync(), and the loss of another module may be
  /// computed through this one, as a generator's loss through the discriminator; zero_grad() of this module's
  /// optimizer then clears these gradients before its own step. The exchange does not overlap backward.
  step_backwards backwards = step_backwards::one;
  /// Parameters and buffers that are neither compared nor sent, and may have other shapes on other ranks: patterns of
  /// their names, separated by spaces (* matches any characters): "queue head.*".
  std::string left_alone{};
};

}  // namespace trireme::interop
