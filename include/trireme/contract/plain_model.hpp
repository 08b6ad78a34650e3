#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <utility>

#include "trireme/contract/dataset.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/pass.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

namespace detail {

struct visits_nothing {
  template <class Value, class Gradient>
  void operator()(char const*, Value, Gradient) const {}
};

struct ready_nothing {
  void operator()(char const*) const {}
};

struct visits_no_buffers {
  template <class Values>
  void operator()(char const*, Values) const {}
};

}  // namespace detail

template <class M>
concept has_visit_parameters = requires(M& model, detail::visits_nothing visit) {
  model.visit_parameters(visit);
};

/// The return value of a plain model's forward(): the mean over the given samples, or a sum and a count.
template <class L>
concept model_loss = std::convertible_to<L, double> || std::same_as<L, counted_loss>;

template <class M>
concept has_purposeful_forward = requires(M& model, samples const& batch) {
  { model.forward(batch, purpose::train) } -> model_loss;
};

template <class M>
concept has_model_forward = has_purposeful_forward<M> || requires(M& model, samples const& batch) {
  { model.forward(batch) } -> model_loss;
};

/// A plain model whose loss counts its own targets (counted_loss).
template <class M>
concept counts_targets = requires(M& model, samples const& batch) {
  { model.forward(batch, purpose::train) } -> std::same_as<counted_loss>;
}
|| (!has_purposeful_forward<M> && requires(M & model, samples const& batch) {
  { model.forward(batch) } -> std::same_as<counted_loss>;
});

/// The loss of this many samples in the form that ranks sum: counts are whole numbers, so their sums are exact. Counted
/// and left-out targets together are the number of samples, because backward gives each sample the weight one.
///
/// Numerics counts are rounded to 2^-30; those of a step may be up to 2^32 together.
/// Errors   config_error for a count that is below 0, not finite, or above 2^31.
[[nodiscard]] inline loss_sum sum_of(counted_loss const& given, std::int64_t all_samples) {
  if (!(given.count >= 0 && given.count <= 0x1p31)) {
    throw config_error(text("trireme::model: forward() has counted ", how_many(given.count, "target"), " of ",
                            all_samples, " samples; a count must be from 0 to 2^31"));
  }
  auto const count = std::llround(given.count * 0x1p30);
  return {count == 0 ? 0 : given.sum * 0x1p30, count, (all_samples << 30) - count};
}

/// With a loss scale it is also a model for mixed precision; see contract/casting_model.hpp.
template <class M>
concept has_scaled_backward = requires(M& model, detail::ready_nothing ready) {
  model.backward(ready, double{});
};

template <class M>
concept has_model_backward = has_scaled_backward<M> || requires(M& model, detail::ready_nothing ready) {
  model.backward(ready);
};

namespace detail {

template <class X>
concept tensor_of_numbers = std::same_as<X, tensor<float>> || std::same_as<X, tensor<double>>;

}  // namespace detail

/// A model that computes outputs: predict(samples) -> tensor<float> (n, outputs), or tensor<double>, without targets.
template <class M>
concept has_model_predict = requires(M& model, samples const& batch) {
  { model.predict(batch) } -> detail::tensor_of_numbers;
};

/// A model that differentiates with respect to its inputs: input_gradient(samples) -> tensor<float>, or tensor<double>,
/// of the inputs' shape: the gradient of forward(samples, purpose::evaluate) (of a counted_loss sum / count). It leaves
/// the gradients of parameters unchanged.
template <class M>
concept has_model_input_gradient = requires(M& model, samples const& batch) {
  { model.input_gradient(batch) } -> detail::tensor_of_numbers;
};

/// The return type of a trainer's predict(): that of a plain model, else a tensor of double in precision::fp64,
/// otherwise of float.
template <class Model, class Env>
struct outputs_of {
  using type = tensor<sample_number<Env>>;
};

template <class Model, class Env>
requires has_model_predict<Model>
struct outputs_of<Model, Env> {
  using type = decltype(std::declval<Model&>().predict(std::declval<samples const&>()));
};

/// The return type of a trainer's input_gradient(), by the same rules.
template <class Model, class Env>
struct input_gradients_of {
  using type = tensor<sample_number<Env>>;
};

template <class Model, class Env>
requires has_model_input_gradient<Model>
struct input_gradients_of<Model, Env> {
  using type = decltype(std::declval<Model&>().input_gradient(std::declval<samples const&>()));
};

/// A plain model with parameters that are several tensors side by side: fused(name) -> shape, see
/// parameter_info::fused.
template <class M>
concept declares_fused = requires(M const& model) {
  { model.fused(std::string_view{}) } -> std::convertible_to<shape>;
};

/// A model with buffers: numbers that are state and are not trained (the running means of a batch normalisation).
/// visit_buffers(visit) calls visit(name, values) for each, in a stable order.
template <class M>
concept has_buffers = requires(M& model, detail::visits_no_buffers visit) {
  model.visit_buffers(visit);
};

/// How ranks, each of which changes its buffers by its own samples, make them equal: by the values of the first rank,
/// or by their mean (for integers those of the first rank). A model sets a static `buffers`; the default is first_rank.
enum class shared_buffers { first_rank, mean };

/// A plain model with parameters that are never trained: frozen(name). Parameters that optim::groups freezes are not
/// trained either.
template <class M>
concept has_frozen = requires(M& model) {
  { model.frozen(std::string_view{}) } -> std::convertible_to<bool>;
};

/// A plain model whose backward need not report every parameter, by a static `leaves_parameters_out = true`: a
/// parameter that a micro-batch has not used has a gradient of zeros. Without it, a parameter that is not reported is
/// an error, because a mistake in backward would otherwise go unnoticed.
template <class M>
concept leaves_parameters_out = requires {
  requires M::leaves_parameters_out;
};

/// A model with its own kernels and storage.
///
/// Requires  visit_parameters(visit): visit(name, value, gradient) for each, views of the model's own memory, in a
///           stable order; forward(samples), or forward(samples, purpose), -> mean loss over the given batch;
///           backward(ready): fills the gradients of that mean and calls ready(name) as each becomes final, in any
///           order, which may differ between ranks and steps.
/// Counting  a mean gives each sample the weight one. A loss that leaves targets out, or weighs them, returns a
///           counted_loss instead, and backward fills the gradients of its `sum`: all counted targets of a step then
///           have equal weights.
/// Purpose   forward gets the purpose of the pass: `train` (backward follows; apply dropout, update buffers) or
///           `evaluate` (the loss alone). Outputs are computed by predict(samples), without targets, if it exists.
/// Optional  predict, see has_model_predict; input_gradient, see has_model_input_gradient; frozen parameters, see
///           has_frozen (their gradient may be an empty view); parameters that a pass does not use, see
///           leaves_parameters_out; mixed precision, see casts_inside; buffers, see has_buffers: they are in
///           checkpoints and hashes, and are made equal on all ranks before a trainer evaluates, saves or hashes, and
///           at the end of fit(), not in every step.
/// Numerics  values and gradients of the trainer's element type (float with precision::fp32) are exchanged and updated
///           in place. Narrower ones (bf16, half; float under fp64), in any mixture, are the model's own mixed
///           precision: the trainer keeps a master value of its own type, exchanges gradients in it, and rounds each
///           new value into the model's memory. Wider ones do not compile.
template <class M>
concept plain_model = has_visit_parameters<M> && has_model_forward<M> && has_model_backward<M>;

}  // namespace trireme
