#pragma once

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
#include "trireme/core/rng.hpp"

namespace trireme {

/// Why the model is run: `train` keeps what backward needs and drops out; `evaluate` only sums losses; `predict`
/// returns outputs and reads no targets; `input_gradient` computes what `evaluate` does, and keeps what backward needs
/// for the gradient of the inputs. (Plain models are not told of the last one.)
enum class purpose { train, evaluate, predict, input_gradient };

/// What one micro-batch's way through the model needs to know, and where its memory comes from.
template <class Env>
struct pass {
  using space = typename Env::space;
  using activation_view = tensor_view<typename Env::compute, space>;

  arena<space>& activations;       ///< given back when the micro-batch is done
  arena<space>& scratch;           ///< given back when the unit returns
  samples_in<space> const& batch;  ///< of each sample the positions that lie here
  random_key key;                  ///< for dropout; the samples' ids tell them apart
  std::uint64_t version = 0;       ///< changes whenever parameter values do
  double weight = 1;               ///< of one sample's mean loss in the loss that backward differentiates
  trireme::purpose purpose = trireme::purpose::train;
  loss_sum loss{};  ///< out: the sum of losses of this micro-batch, of forward or backward; the same on all ranks of
                    ///< the group
  rank_groups<Env> const& groups = rank_groups<Env>::none();  ///< who shares this unit's work: some_group::of(pass)
  std::size_t slot = 0;             ///< of what units save: micro-batches in flight have different ones
  std::int64_t rows_of_sample = 0;  ///< what the model says of it, see trireme::rows_of_sample()
  tensor_group<Env>& group = tensor_group<Env>::of(groups);       ///< of them the ranks that share this unit's matrices
  precision_state<typename Env::precision>* precision = nullptr;  ///< which may write operands of products itself
  /// How many positions of each sample layers have had in passes before, to predict: what comes now follows them, and
  /// layers keep what positions need of those before. Below 0: samples are whole, and nothing is kept.
  std::int64_t known = -1;

  [[nodiscard]] bool training() const noexcept { return purpose == trireme::purpose::train; }
  /// Whether what backward needs has to be kept. Without training() that is for the gradient of the inputs alone.
  [[nodiscard]] bool backward_follows() const noexcept {
    return training() || purpose == trireme::purpose::input_gradient;
  }
  [[nodiscard]] bool goes_on() const noexcept { return known >= 0; }
  /// The position in its sample of a sample's first row here.
  [[nodiscard]] std::int64_t first_position() const noexcept { return goes_on() ? known : 0; }
  /// What a product with the weight of this name reads instead of x: x itself, or what the precision makes of it, in
  /// scratch memory.
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

/// A unit of a staged model: the grain of cutting, gathering and checkpointing, and the one virtual edge of a step.
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
  /// backward in two halves: first dx; later, with the same slot, what the parameters' gradients still lack. A unit
  /// that cannot does all of it in the first.
  virtual view backward_input(pass<Env>& pass, view dy) = 0;
  virtual void backward_weight(pass<Env>& pass) = 0;
  /// dx alone: gradients of parameters stay as they are. The first unit returns the gradient of the batch's inputs, in
  /// memory of pass.activations.
  virtual view input_gradient(pass<Env>& pass, view dy) = 0;
  /// What a unit does for a micro-batch of other ranks, along an axis of equal passes, while this rank has none.
  virtual void serve_forward(pass<Env>& pass) = 0;
  virtual void serve_backward(pass<Env>& pass) = 0;
};

/// The run state of a unit description: `description::instance<Env>` with typed `saved` state.
template <class U, class Env>
concept unit_state = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                              tensor_view<typename Env::compute, typename Env::space> x) {
  { state.forward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  { state.backward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
};

/// A unit whose backward comes apart, for schedules that fill idle time with weight gradients: backward_input(pass,
/// saved, dy) -> dx keeps in `saved` what backward_weight(pass, saved) needs.
template <class U, class Env>
concept has_backward_halves = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                                       tensor_view<typename Env::compute, typename Env::space> dy) {
  { state.backward_input(pass, saved, dy) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  state.backward_weight(pass, saved);
};

/// A unit that can form its input's gradient alone: input_gradient(pass, saved, dy) -> dx; see unit.
template <class U, class Env>
concept has_input_gradient = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                                      tensor_view<typename Env::compute, typename Env::space> dy) {
  { state.input_gradient(pass, saved, dy) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
};

/// Whether a description is a model's first unit, and reads tokens, which have no gradients. nn says so of expressions.
template <class Unit>
inline constexpr bool reads_tokens = false;

/// A unit in whose passes all ranks along an axis take part: serve_forward(pass, saved) and serve_backward(pass, saved)
/// do for others' rows what forward and backward do, without rows of your own.
template <class U, class Env>
concept serves_others = requires(U& state, pass<Env>& pass, typename U::saved& saved) {
  state.serve_forward(pass, saved);
  state.serve_backward(pass, saved);
};

/// A typed unit behind the virtual edge; inside, everything is known to the compiler.
template <class Env, class Description>
class boxed_unit final : public unit<Env> {
  using state = typename Description::template instance<Env>;
  static_assert(
      unit_state<state, Env>,
      "trireme::model: a unit's instance<Env> needs saved, forward(pass, saved, x) and backward(pass, saved, dy)");

 public:
  using typename unit<Env>::view;

  /// A unit that knows of shares (`instance(description, share)`) makes its own part of what a tensor group shares, and
  /// says who answers for what; another one is the same on all ranks of the group, and the first of them answers for
  /// its parameters. A unit that knows of other groups is made with all of them, `instance(description, rank_groups)`;
  /// then the first answers for what is no part, or a part along another axis (`dealt`).
  explicit boxed_unit(Description const& description, rank_groups<Env> const& groups = rank_groups<Env>::none())
      : state_(make(description, groups)) {
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

 private:
  static constexpr bool knows_shares = std::constructible_from<state, Description const&, share>;
  static constexpr bool knows_groups = std::constructible_from<state, Description const&, rank_groups<Env> const&>;
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
concept staged_model = requires(M const& model, detail::counts_units& emit) {
  model.units(emit);
};

/// The rows of activations that a sample makes, for a model whose inputs do not show it (squares of an image, say), by
/// its rows_of_sample(); 0 for all others: one a token of int32 inputs, else one.
template <class M>
[[nodiscard]] std::int64_t rows_of_sample([[maybe_unused]] M const& model) {
  if constexpr (requires {
                  { model.rows_of_sample() } -> std::convertible_to<std::int64_t>;
                })
    return model.rows_of_sample();
  else
    return 0;
}

/// A model whose units are layers of nn, so that its memory space needs their kernels: it says so by a static
/// `made_of_layers`, to be refused in one sentence where they are lacking.
template <class M>
concept made_of_layers = requires {
  requires M::made_of_layers;
};

template <class M>
concept has_visit_parameters = requires(M& model, detail::visits_nothing visit) {
  model.visit_parameters(visit);
};
template <class M>
concept has_purposeful_forward = requires(M& model, samples const& batch) {
  { model.forward(batch, purpose::train) } -> std::convertible_to<double>;
};
template <class M>
concept has_model_forward = has_purposeful_forward<M> || requires(M& model, samples const& batch) {
  { model.forward(batch) } -> std::convertible_to<double>;
};
/// With a loss scale as well it is a model for mixed precision; see contract/casting_model.hpp.
template <class M>
concept has_scaled_backward = requires(M& model, detail::ready_nothing ready) {
  model.backward(ready, double{});
};
template <class M>
concept has_model_backward = has_scaled_backward<M> || requires(M& model, detail::ready_nothing ready) {
  model.backward(ready);
};

/// A model that computes outputs: predict(samples) -> tensor<float> (n, outputs), without targets.
template <class M>
concept has_model_predict = requires(M& model, samples const& batch) {
  { model.predict(batch) } -> std::same_as<tensor<float>>;
};
/// A model that differentiates by its inputs: input_gradient(samples) -> tensor<float> of the inputs' shape, the
/// gradient of what forward(samples, purpose::evaluate) gives. It leaves the gradients of parameters as they are.
template <class M>
concept has_model_input_gradient = requires(M& model, samples const& batch) {
  { model.input_gradient(batch) } -> std::same_as<tensor<float>>;
};
/// A model with buffers: numbers that are state and are not trained (the running means of a batch normalisation).
/// visit_buffers(visit) calls visit(name, values) for each, in a stable order.
template <class M>
concept has_buffers = requires(M& model, detail::visits_no_buffers visit) {
  model.visit_buffers(visit);
};

/// A staged model with buffers: visit_buffers(visit) calls visit(name, values, unit) for each, in a stable order, with
/// the number of the unit whose forward changes it. Every rank has memory for all of them. Those of the first rank that
/// has the unit become everybody's when the buffers of a plain model would; see plain_model.
template <class M>
concept has_unit_buffers = staged_model<M> && requires(M const& model, detail::visits_no_unit_buffers visit) {
  model.visit_buffers(visit);
};

/// How ranks come to have the same buffers, which each changes by its own samples: those of the first rank, or their
/// mean (of integers those of the first rank). A model says it by a static `buffers`; without it, first_rank.
enum class shared_buffers { first_rank, mean };

/// A plain model that says which of its parameters are never trained: frozen(name). What optim::groups freezes is, too.
template <class M>
concept has_frozen = requires(M& model) {
  { model.frozen(std::string_view{}) } -> std::convertible_to<bool>;
};
/// A plain model whose backward need not report every parameter, by a static `leaves_parameters_out = true`: what a
/// micro-batch has not used has a gradient of zeros. Without it a parameter that is not reported is an error, which a
/// slip in backward would else hide.
template <class M>
concept leaves_parameters_out = requires {
  requires M::leaves_parameters_out;
};

/// A model with kernels and storage of its own.
///
/// Requires  visit_parameters(visit): visit(name, value, gradient) for each, views of the model's own memory, in a
///           stable order; forward(samples), or forward(samples, purpose), -> mean loss over the batch it is given;
///           backward(ready): fills the gradients of that mean and calls ready(name) as each becomes final, in any
///           order, which may be another one on each rank and in each step.
/// Told      forward is told what the pass is for: `train` (backward follows; drop out, update buffers) or `evaluate`
///           (the loss alone). Outputs are asked for by predict(samples), without targets, if there is one.
/// May have  predict, see has_model_predict; input_gradient, see has_model_input_gradient; frozen parameters, see
///           has_frozen (their gradient may be an empty view); parameters that a pass does not use, see
///           leaves_parameters_out; mixed precision, see casts_inside; buffers, see has_buffers: they are in
///           checkpoints and hashes, and are shared before a trainer evaluates, saves or hashes, and at the end of
///           fit(), not in every step.
/// Numerics  values and gradients of the trainer's element type (float with precision::fp32) are exchanged and updated
///           where they are. Narrower ones (bf16, half; float under fp64), in any mixture, are the model's own mixed
///           precision: the trainer keeps a master value of its own type, exchanges gradients in it, and rounds each
///           new value into the model's memory. Wider ones are refused by the compiler.
template <class M>
concept plain_model = has_visit_parameters<M> && has_model_forward<M> && has_model_backward<M>;

}  // namespace trireme
