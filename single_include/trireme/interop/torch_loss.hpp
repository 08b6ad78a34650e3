// Trireme 0.1.0: trireme/interop/torch_loss.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 9c65d999dd2129bab7f9e10066958029e80c85dc55ce3a774a1d5ebc30cb9d57
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_loss.hpp
#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace trireme::interop {

/// A loss for torch_model and torch_sequential may return this in place of a mean over the batch. Like counted_loss,
/// but with a sum that is part of autograd's graph.
struct loss_and_count {
  torch::Tensor sum;  ///< of the losses of the counted targets: one number
  double count = 0;   ///< the number of these targets, or the sum of their weights
};

namespace detail {

// torch's losses that ignore some targets (ignore_index) or weight them.
template <class L>
inline constexpr bool leaves_targets_out =
    std::is_same_v<L, torch::nn::CrossEntropyLossImpl> || std::is_same_v<L, torch::nn::NLLLossImpl>;
template <class L>
inline constexpr bool leaves_targets_out<std::shared_ptr<L>> = leaves_targets_out<L>;
template <class L>
requires std::derived_from<L, torch::nn::ModuleHolder<torch::nn::CrossEntropyLossImpl>> ||
    std::derived_from<L, torch::nn::ModuleHolder<torch::nn::NLLLossImpl>>
inline constexpr bool leaves_targets_out<L> = true;

/// Whether a loss returns how many targets it has counted.
template <class Loss>
inline constexpr bool loss_counts = leaves_targets_out<Loss> || [] {
  if constexpr (std::invocable<Loss&, torch::Tensor const&, torch::Tensor const&>) {
    return std::is_same_v<std::invoke_result_t<Loss&, torch::Tensor const&, torch::Tensor const&>, loss_and_count>;
  } else {
    return false;
  }
}();

/// The sum of a cross-entropy's or negative log-likelihood's terms, in place of its mean.
[[nodiscard]] inline torch::Tensor sum_of_terms(torch::nn::CrossEntropyLossImpl const& loss,
                                                torch::Tensor const& outputs, torch::Tensor const& targets) {
  return torch::nn::functional::cross_entropy(outputs, targets,
                                              torch::nn::functional::CrossEntropyFuncOptions()
                                                  .weight(loss.weight)
                                                  .ignore_index(loss.options.ignore_index())
                                                  .label_smoothing(loss.options.label_smoothing())
                                                  .reduction(torch::kSum));
}
[[nodiscard]] inline torch::Tensor sum_of_terms(torch::nn::NLLLossImpl const& loss, torch::Tensor const& outputs,
                                                torch::Tensor const& targets) {
  return torch::nn::functional::nll_loss(outputs, targets,
                                         torch::nn::functional::NLLLossFuncOptions()
                                             .weight(loss.weight)
                                             .ignore_index(loss.options.ignore_index())
                                             .reduction(torch::kSum));
}

/// Accepts class numbers of any integer type, also as a column (n, 1), as datasets of vectors have them. Targets that
/// are probabilities of classes are all counted, as in torch.
template <class Loss>
[[nodiscard]] loss_and_count counted(Loss& loss, torch::Tensor const& outputs, torch::Tensor targets) {
  if (torch::enumtype::reduction_get_enum(loss.options.reduction()) != at::Reduction::Mean) {
    auto const samples = targets.dim() == 0 ? 1.0 : static_cast<double>(targets.size(0));
    return {loss.forward(outputs, targets) * samples, samples};  // treated as the mean over the batch
  }
  if (targets.is_floating_point()) {
    auto const classes = outputs.size(outputs.dim() > 1 ? 1 : 0);
    return {sum_of_terms(loss, outputs, targets), static_cast<double>(outputs.numel() / classes)};
  }
  targets = targets.to(torch::kLong);
  if (targets.dim() == outputs.dim() && targets.size(-1) == 1) targets = targets.squeeze(-1);
  auto const sum = sum_of_terms(loss, outputs, targets);
  auto const kept = targets.masked_select(targets != loss.options.ignore_index());
  if (!loss.weight.defined()) return {sum, static_cast<double>(kept.numel())};
  torch::NoGradGuard const guard;
  return {sum, loss.weight.index_select(0, kept).to(torch::kDouble).sum().template item<double>()};
}

/// The value of a loss for torch_model and torch_sequential. If the count is negative, `sum` is the mean over the
/// batch.
template <class Loss>
[[nodiscard]] loss_and_count loss_of(Loss& loss, torch::Tensor const& outputs, torch::Tensor const& targets,
                                     char const* who) {
  auto found = [&]() -> loss_and_count {
    if constexpr (leaves_targets_out<Loss>) {
      if constexpr (requires { loss->options; }) {
        return counted(*loss, outputs, targets);
      } else {
        return counted(loss, outputs, targets);
      }
    } else if constexpr (loss_counts<Loss>) {
      return loss(outputs, targets);
    } else {
      return {loss(outputs, targets), -1};
    }
  }();
  if (found.sum.numel() == 1) return found;
  throw config_error(text("trireme::interop::", who, ": the loss has ", found.sum.numel(),
                          " numbers; return one, the mean over the batch"));
}

}  // namespace detail

}  // namespace trireme::interop
