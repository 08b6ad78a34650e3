#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/contract/tensor_group.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"

namespace trireme {

/// What a pass is for. `train` keeps what backward needs and applies dropout; `evaluate` only sums losses; `predict`
/// returns outputs and reads no targets; `input_gradient` computes the same as `evaluate`, and keeps what backward
/// needs for the gradient of the inputs. (Plain models never get the last one.)
enum class purpose { train, evaluate, predict, input_gradient };

/// What is known about a step's loss before its first pass, if units need it (adds_sample_losses): how many of all rows
/// of the step, on all ranks, the model's loss will count.
///
/// Why: gradients are divided by that number when they are applied, which is right for losses of rows. A term of the
/// loss that does not depend on targets, such as the load balance of experts, must not grow when targets are left out.
struct loss_rows {
  double counted = 1;    ///< the share of all rows that is counted; 1 if none is
  double of_sample = 0;  ///< counted rows of a sample, averaged over the step; 0: not known
  bool none = false;     ///< no row is counted

  [[nodiscard]] static loss_rows of(loss_sum const& all, std::int64_t all_samples) noexcept {
    auto const rows = static_cast<double>(all.count == 0 ? all.left_out : all.count);
    return {all.counted_share(), all_samples == 0 ? 0 : rows / static_cast<double>(all_samples), all.count == 0};
  }
};

/// The information that one micro-batch's pass through the model needs, and its memory.
template <class Env>
struct pass {
  using space = typename Env::space;
  using activation_view = tensor_view<typename Env::compute, space>;

  arena<space>& activations;       ///< released when the micro-batch is done
  arena<space>& scratch;           ///< released when the unit returns
  samples_in<space> const& batch;  ///< of each sample the positions on this rank
  random_key key;                  ///< for dropout, together with the samples' ids
  std::uint64_t version = 0;       ///< changes whenever parameter values do
  double weight = 1;               ///< of one sample's mean loss in the loss that backward differentiates
  trireme::purpose purpose = trireme::purpose::train;
  loss_sum loss{};  ///< out: the sum of losses of this micro-batch, of forward or backward; the same on all ranks of
                    ///< the group
  rank_groups<Env> const& groups =
      rank_groups<Env>::none();     ///< ranks that share this unit's work: some_group::of(pass)
  std::size_t slot = 0;             ///< index of the units' saved state: micro-batches in flight have different ones
  std::int64_t rows_of_sample = 0;  ///< see trireme::rows_of_sample()
  tensor_group<Env>& group = tensor_group<Env>::of(groups);  ///< the group of them that shares this unit's matrices
  precision_state<typename Env::precision>* precision = nullptr;  ///< may write operands of products itself
  /// For prediction: the number of positions of each sample that layers have processed in earlier passes. The new ones
  /// follow them, and layers keep what later positions need (a cache). Below 0: samples are whole, and nothing is kept.
  std::int64_t known = -1;
  loss_rows rows{};              ///< of the step's loss
  std::uint32_t first_site = 0;  ///< added to the dropout sites of the unit: how many the units before it have

  /// The weight of a loss term that every sample has once, whatever its targets: in training add its sum over the
  /// samples, times this, to loss.sum; its gradient has weight weight_of_sample(). The term then is a mean over all
  /// samples of the step, on all ranks.
  /// @param otherwise  rows of a sample, for a model whose last unit cannot tell which rows its loss will count.
  [[nodiscard]] double rows_of_loss(std::int64_t otherwise) const noexcept {
    return rows.of_sample > 0 ? rows.of_sample : static_cast<double>(otherwise);
  }
  [[nodiscard]] double weight_of_sample() const noexcept { return weight * rows.counted; }
  [[nodiscard]] bool training() const noexcept { return purpose == trireme::purpose::train; }
  /// Whether values for backward must be kept. Without training(), only for the gradient of the inputs.
  [[nodiscard]] bool backward_follows() const noexcept {
    return training() || purpose == trireme::purpose::input_gradient;
  }
  [[nodiscard]] bool goes_on() const noexcept { return known >= 0; }
  /// The position within its sample of a sample's first row on this rank.
  [[nodiscard]] std::int64_t first_position() const noexcept { return goes_on() ? known : 0; }
  /// The operand that a product with the weight of this name reads instead of x: x itself, or the precision's
  /// conversion of it, in scratch memory.
  template <class View>
  [[nodiscard]] View operand(std::string_view name, product_operand::role role, View x) {
    using element = std::remove_const_t<typename View::value_type>;
    if constexpr (writes_operands<precision_state<typename Env::precision>, element, space>) {
      if (precision == nullptr) return x;
      auto const to = scratch.template take<element>(x.extents());
      if constexpr (!std::is_same_v<space, phantom>)
        precision->operand({name, role, training()}, tensor_view<element const, space>(x), to);
      return to;
    } else {
      return x;
    }
  }
  /// Activations that live until backward has passed (or, outside training, until the pass ends).
  [[nodiscard]] activation_view take(shape extents) {
    return activations.template take<typename Env::compute>(extents);
  }
};

/// A unit of a staged model: models are split, gathered and checkpointed by units, and a step has virtual calls only
/// here.
///
/// Shapes   forward maps x (rows, ...) to y; the first unit gets an empty x and reads the batch, the last one adds to
///          pass.loss. backward maps dy to dx, and adds to its parameters' gradients.
/// Threads  one owner.
template <class Env>
class unit {
 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;

  virtual ~unit() = default;
  /// The parameters, in a fixed order. Their value and gradient are bound by the exchange.
  [[nodiscard]] virtual std::vector<parameter<Env>*> parameters() = 0;
  virtual view forward(pass<Env>& pass, view x) = 0;
  virtual view backward(pass<Env>& pass, view dy) = 0;
  /// backward in two halves: dx first; later, with the same slot, the remaining gradients of the parameters. A unit
  /// without two halves does all of it in the first.
  virtual view backward_input(pass<Env>& pass, view dy) = 0;
  virtual void backward_weight(pass<Env>& pass) = 0;
  /// dx alone: gradients of parameters stay unchanged. The first unit returns the gradient of the batch's inputs, in
  /// memory of pass.activations.
  virtual view input_gradient(pass<Env>& pass, view dy) = 0;
  /// A unit's part in a micro-batch of other ranks, along an axis of equal passes, while this rank has none.
  virtual void serve_forward(pass<Env>& pass) = 0;
  virtual void serve_backward(pass<Env>& pass) = 0;
  /// How many dropout sites it has, if it counts them.
  [[nodiscard]] virtual std::uint32_t dropout_sites() const noexcept { return 0; }
  /// For a model's last unit: how many rows of some samples its loss will count and leave out; zeros if it cannot tell.
  [[nodiscard]] virtual loss_sum rows_of_loss(samples const&) const { return {}; }
};

/// The run state of a unit description: `description::instance<Env>` with typed `saved` state.
template <class U, class Env>
concept unit_state = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                              tensor_view<typename Env::compute, typename Env::space> x) {
  { state.forward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  { state.backward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
};

/// A unit whose backward has two halves, for schedules that fill idle time with weight gradients: backward_input(pass,
/// saved, dy) -> dx keeps in `saved` what backward_weight(pass, saved) needs.
template <class U, class Env>
concept has_backward_halves = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                                       tensor_view<typename Env::compute, typename Env::space> dy) {
  { state.backward_input(pass, saved, dy) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  state.backward_weight(pass, saved);
};

/// A unit that can compute its input's gradient alone: input_gradient(pass, saved, dy) -> dx; see unit.
template <class U, class Env>
concept has_input_gradient = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                                      tensor_view<typename Env::compute, typename Env::space> dy) {
  { state.input_gradient(pass, saved, dy) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
};

/// Whether a description is a model's first unit and reads tokens, which have no gradients. nn specialises it for
/// expressions.
template <class Unit>
inline constexpr bool reads_tokens = false;

/// A unit whose passes involve all ranks along an axis: serve_forward(pass, saved) and serve_backward(pass, saved) take
/// part in the passes of other ranks, without rows of this one.
template <class U, class Env>
concept serves_others = requires(U& state, pass<Env>& pass, typename U::saved& saved) {
  state.serve_forward(pass, saved);
  state.serve_backward(pass, saved);
};

/// A unit that counts its dropout sites: it drops numbers at pass.first_site and the sites after it, so that no two
/// units of a model drop the same numbers.
template <class U>
concept counts_dropout_sites = requires(U const& state) {
  { state.dropout_sites() } -> std::convertible_to<std::uint32_t>;
};

/// Whether a unit adds loss terms that each sample has once (pass::rows_of_loss): its instance<Env> has a static
/// adds_sample_losses(description), which returns true.
template <class Env, class Description>
[[nodiscard]] bool adds_sample_losses([[maybe_unused]] Description const& unit) {
  using state = typename Description::template instance<Env>;
  if constexpr (requires {
                  { state::adds_sample_losses(unit) } -> std::convertible_to<bool>;
                })
    return state::adds_sample_losses(unit);
  else
    return false;
}

/// A typed unit behind the virtual interface; inside, all types are known to the compiler.
template <class Env, class Description>
class boxed_unit final : public unit<Env> {
  using state = typename Description::template instance<Env>;
  static_assert(
      unit_state<state, Env>,
      "trireme::model: a unit's instance<Env> needs saved, forward(pass, saved, x) and backward(pass, saved, dy)");

 public:
  using typename unit<Env>::view;

  /// A unit whose instance takes a share (`instance(description, share)`) makes its own part of the tensors that a
  /// tensor group divides, and marks which rank owns each. Any other unit is replicated on all ranks of the group; the
  /// first of them owns its parameters. A unit that uses other groups is made with all of them, `instance(description,
  /// rank_groups)`; then the first rank owns every parameter that is not a part, or a part along another axis
  /// (`dealt`).
  explicit boxed_unit(Description const& description, rank_groups<Env> const& groups = rank_groups<Env>::none())
      : state_(make(valid(description), groups)) {
    if constexpr (knows_groups || !knows_shares) {
      if (tensor_group<Env>::of(groups).rank() == 0) return;
      state_.visit([&](parameter<Env>& each) {
        if (!each.info.is_part() || !each.info.dealt.empty()) each.info.answers = false;
      });
    }
  }
  [[nodiscard]] std::vector<parameter<Env>*> parameters() override {
    std::vector<parameter<Env>*> all;
    state_.visit([&](parameter<Env>& each) { all.push_back(&each); });
    return all;
  }
  view forward(pass<Env>& pass, view x) override { return state_.forward(pass, saved_of(pass), x); }
  view backward(pass<Env>& pass, view dy) override { return state_.backward(pass, saved_of(pass), dy); }
  view backward_input(pass<Env>& pass, view dy) override {
    if constexpr (has_backward_halves<state, Env>) {
      return state_.backward_input(pass, saved_of(pass), dy);
    } else {
      return state_.backward(pass, saved_of(pass), dy);
    }
  }
  void backward_weight([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (has_backward_halves<state, Env>) state_.backward_weight(pass, saved_of(pass));
  }
  view input_gradient([[maybe_unused]] pass<Env>& pass, [[maybe_unused]] view dy) override {
    if constexpr (has_input_gradient<state, Env>) {
      return state_.input_gradient(pass, saved_of(pass), dy);
    } else {
      throw config_error("trireme::model: this unit has no input_gradient(pass, saved, dy)");
    }
  }
  void serve_forward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (serves_others<state, Env>) state_.serve_forward(pass, saved_of(pass));
  }
  void serve_backward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (serves_others<state, Env>) state_.serve_backward(pass, saved_of(pass));
  }
  [[nodiscard]] std::uint32_t dropout_sites() const noexcept override {
    if constexpr (counts_dropout_sites<state>) return state_.dropout_sites();
    return 0;
  }
  [[nodiscard]] loss_sum rows_of_loss([[maybe_unused]] samples const& batch) const override {
    if constexpr (requires {
                    { state_.rows_of_loss(batch) } -> std::same_as<loss_sum>;
                  })
      return state_.rows_of_loss(batch);
    else
      return {};
  }

 private:
  static constexpr bool knows_shares = std::constructible_from<state, Description const&, share>;
  static constexpr bool knows_groups = std::constructible_from<state, Description const&, rank_groups<Env> const&>;
  static Description const& valid(Description const& description) {
    expect_valid(description);
    return description;
  }
  static state make(Description const& description, [[maybe_unused]] rank_groups<Env> const& groups) {
    if constexpr (knows_groups) {
      return state(description, groups);
    } else if constexpr (knows_shares) {
      return state(description, tensor_group<Env>::of(groups).share());
    } else {
      return state(description);
    }
  }

  [[nodiscard]] typename state::saved& saved_of(pass<Env> const& pass) {
    if (pass.slot >= saved_.size()) saved_.resize(pass.slot + 1);
    return saved_[pass.slot];
  }

  state state_;
  std::vector<typename state::saved> saved_ = std::vector<typename state::saved>(1);
};

namespace detail {

struct counts_units {
  std::int64_t count = 0;
  template <class Unit>
  void operator()(Unit const&) {
    ++count;
  }
};

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
struct visits_no_unit_buffers {
  template <class Values>
  void operator()(char const*, Values, std::int64_t) const {}
};

}  // namespace detail

/// A model that lists its units: `units(emit)` calls `emit(description)` for each, in order, the same list each time.
template <class M>
concept staged_model = requires(M const& model, detail::counts_units& put) {
  model.units(put);
};

/// The rows of activations of one sample, for a model whose inputs do not show it (patches of an image, say): its
/// rows_of_sample(); for all others 0, which means one a token of int32 inputs, else one.
template <class M>
[[nodiscard]] std::int64_t rows_of_sample([[maybe_unused]] M const& model) {
  if constexpr (requires {
                  { model.rows_of_sample() } -> std::convertible_to<std::int64_t>;
                })
    return model.rows_of_sample();
  else
    return 0;
}

/// A model whose units are layers of nn, so that its memory space needs their kernels: it has a static
/// `made_of_layers`, for a clear error if they are missing.
template <class M>
concept made_of_layers = requires {
  requires M::made_of_layers;
};

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
}
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
concept says_fused = requires(M const& model) {
  { model.fused(std::string_view{}) } -> std::convertible_to<shape>;
};
/// A model with buffers: numbers that are state and are not trained (the running means of a batch normalisation).
/// visit_buffers(visit) calls visit(name, values) for each, in a stable order.
template <class M>
concept has_buffers = requires(M& model, detail::visits_no_buffers visit) {
  model.visit_buffers(visit);
};

/// A staged model with buffers: visit_buffers(visit) calls visit(name, values, unit) for each, in a stable order, with
/// the number of the unit whose forward changes it. Every rank has memory for all of them. The values of the first rank
/// that has the unit are copied to all others when the buffers of a plain model would be; see plain_model.
template <class M>
concept has_unit_buffers = staged_model<M> && requires(M const& model, detail::visits_no_unit_buffers visit) {
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
