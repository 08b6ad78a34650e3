// Trireme 0.1.0: trireme/interop/torch_tensor_parallel.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f3895a899be654be64625186cd2b9fb94d35c13d63d3021511c02d199d0b0053
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_rank_group.hpp"

// ---- trireme/interop/torch_tensor_parallel.hpp
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::interop {

namespace detail {

/// Forward: the identity; x is equal on all ranks, and each rank's part of the layer reads it. Backward: sums the
/// parts' gradients over the ranks.
struct copy_to_parts : torch::autograd::Function<copy_to_parts> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor const& x, rank_group const& ranks) {
    ctx->saved_data["ranks"] = ranks.packed();
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list const& gradients) {
    auto const sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    rank_group::unpacked(ctx->saved_data["ranks"]).add_up(sum);
    return {sum, torch::Tensor()};
  }
};
/// Forward: sums the parts' results over the ranks. Backward: the identity; each part gets the gradient of the sum.
struct sum_of_parts : torch::autograd::Function<sum_of_parts> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor const& part, rank_group const& ranks) {
    auto sum = part.clone(at::MemoryFormat::Contiguous);
    ranks.add_up(sum);
    return sum;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list const& gradients) {
    return {gradients[0], torch::Tensor()};
  }
};

/// The size and the begin of this rank's part of `all` rows or columns.
struct part_of_ranks {
  part_of_ranks(char const* layer, char const* what, std::int64_t all, rank_group const& ranks)
      : count(all / ranks.size()), first(count * ranks.rank()) {
    if (all > 0 && count * ranks.size() == all) return;
    throw config_error(text("trireme::interop::", layer, ": ", all, " ", what, " cannot be split evenly over ",
                            ranks.size(), " ranks; make them a multiple of ", ranks.size()));
  }
  [[nodiscard]] torch::Tensor of(torch::Tensor const& whole, std::int64_t dimension) const {
    return whole.detach().slice(dimension, first, first + count);
  }
  std::int64_t count, first;
};

/// The start values of torch::nn::Linear: uniform in +-1 / sqrt(inputs of the whole layer).
inline void initialise_linear(torch::Tensor const& tensor, std::int64_t inputs) {
  torch::NoGradGuard const guard;
  auto const bound = 1 / std::sqrt(static_cast<double>(inputs));
  tensor.uniform_(-bound, bound);
}

}  // namespace detail

/// This rank's part of a tensor that is cut into equal parts along one dimension: rank r has the r-th.
struct split_tensor {
  torch::Tensor part;
  std::int64_t dimension;
};

/// A second base class for modules whose tensors are split over ranks, so that files can contain whole tensors
/// (torch_whole_safetensors.hpp).
class split_layer {
 public:
  virtual ~split_layer() = default;
  [[nodiscard]] virtual std::vector<split_tensor> split_tensors() const = 0;
};

/// A linear layer whose outputs are split over ranks: each rank computes outputs / size() of them from all inputs.
///
/// Method: [Shoeybi et al., 2019], Megatron-LM. A column_linear, an elementwise function and a row_linear make a
/// block with one sum over the ranks in forward and one in backward.
///
/// Shapes   x (..., inputs), the same on all ranks -> (..., outputs / size()).
/// Bytes    backward sums the gradient of x over the ranks.
/// Ranks    collective: all ranks run forward and backward, in the same order.
/// Numerics gradients of weight and bias equal this rank's part of those of the whole layer.
/// Errors   config_error if the outputs cannot be split evenly; comm_error.
class column_linear_impl : public torch::nn::Module, public split_layer {
 public:
  column_linear_impl(rank_group ranks, std::int64_t inputs, std::int64_t outputs, bool with_bias = true)
      : ranks_(std::move(ranks)), part_("column_linear", "outputs", outputs, ranks_) {
    weight = register_parameter("weight", torch::empty({part_.count, inputs}));
    detail::initialise_linear(weight, inputs);
    if (!with_bias) return;
    bias = register_parameter("bias", torch::empty({part_.count}));
    detail::initialise_linear(bias, inputs);
  }
  torch::Tensor forward(torch::Tensor const& x) {
    return torch::linear(detail::copy_to_parts::apply(x, ranks_), weight, bias);
  }
  /// Takes this rank's part of a layer that is whole.
  void take(torch::nn::Linear const& whole) {
    torch::NoGradGuard const guard;
    weight.copy_(part_.of(whole->weight, 0));
    if (bias.defined()) bias.copy_(part_.of(whole->bias, 0));
  }
  [[nodiscard]] std::vector<split_tensor> split_tensors() const override { return {{weight, 0}, {bias, 0}}; }

  torch::Tensor weight, bias;

 private:
  rank_group ranks_;
  detail::part_of_ranks part_;
};
TORCH_MODULE_IMPL(column_linear, column_linear_impl);

/// A linear layer whose inputs are split over ranks: each rank multiplies its inputs / size() of them, and all ranks
/// get the sum.
///
/// Shapes   x (..., inputs / size()), this rank's part -> (..., outputs), the same on all ranks.
/// Bytes    forward sums the outputs over the ranks.
/// Ranks    construction and use are collective. All ranks have the same bias, and the same gradient of it.
/// Errors   config_error if the inputs cannot be split evenly; comm_error.
class row_linear_impl : public torch::nn::Module, public split_layer {
 public:
  row_linear_impl(rank_group ranks, std::int64_t inputs, std::int64_t outputs, bool with_bias = true)
      : ranks_(std::move(ranks)), part_("row_linear", "inputs", inputs, ranks_) {
    weight = register_parameter("weight", torch::empty({outputs, part_.count}));
    detail::initialise_linear(weight, inputs);
    if (!with_bias) return;
    bias = register_parameter("bias", torch::zeros({outputs}));
    if (ranks_.rank() == 0) detail::initialise_linear(bias, inputs);
    ranks_.add_up(bias.detach());  // the others add 0: all get rank 0's
  }
  torch::Tensor forward(torch::Tensor const& x) {
    auto const sum = detail::sum_of_parts::apply(torch::linear(x, weight), ranks_);
    return bias.defined() ? sum + bias : sum;
  }
  /// Takes this rank's part of a layer that is whole.
  void take(torch::nn::Linear const& whole) {
    torch::NoGradGuard const guard;
    weight.copy_(part_.of(whole->weight, 1));
    if (bias.defined()) bias.copy_(whole->bias);
  }
  [[nodiscard]] std::vector<split_tensor> split_tensors() const override { return {{weight, 1}}; }

  torch::Tensor weight, bias;

 private:
  rank_group ranks_;
  detail::part_of_ranks part_;
};
TORCH_MODULE_IMPL(row_linear, row_linear_impl);

/// An embedding whose rows are split over ranks: each rank looks up the tokens whose rows it has, and all ranks get the
/// sum.
///
/// Shapes   tokens (...) of Long, the same on all ranks -> (..., channels), the same on all ranks.
/// Bytes    forward sums the outputs over the ranks.
/// Errors   config_error if the vocabulary cannot be split evenly, or for a token outside it; comm_error.
class vocabulary_embedding_impl : public torch::nn::Module, public split_layer {
 public:
  vocabulary_embedding_impl(rank_group ranks, std::int64_t vocabulary, std::int64_t channels)
      : ranks_(std::move(ranks)), vocabulary_(vocabulary), part_("vocabulary_embedding", "tokens", vocabulary, ranks_) {
    weight = register_parameter("weight", torch::randn({part_.count, channels}));
  }
  torch::Tensor forward(torch::Tensor const& tokens) {
    if (tokens.numel() > 0 &&
        (tokens.min().item<std::int64_t>() < 0 || tokens.max().item<std::int64_t>() >= vocabulary_)) {
      throw config_error(
          text("trireme::interop::vocabulary_embedding: there is a token outside [0, ", vocabulary_, ")"));
    }
    auto const row = tokens - part_.first;
    auto const elsewhere = row.lt(0).logical_or(row.ge(part_.count)).unsqueeze(-1);
    auto const found = torch::embedding(weight, row.clamp(0, part_.count - 1));
    return detail::sum_of_parts::apply(found.masked_fill(elsewhere, 0), ranks_);
  }
  /// Takes this rank's rows of a table that is whole.
  void take(torch::nn::Embedding const& whole) {
    torch::NoGradGuard const guard;
    weight.copy_(part_.of(whole->weight, 0));
  }
  [[nodiscard]] std::vector<split_tensor> split_tensors() const override { return {{weight, 0}}; }

  torch::Tensor weight;

 private:
  rank_group ranks_;
  std::int64_t vocabulary_;
  detail::part_of_ranks part_;
};
TORCH_MODULE_IMPL(vocabulary_embedding, vocabulary_embedding_impl);

}  // namespace trireme::interop
