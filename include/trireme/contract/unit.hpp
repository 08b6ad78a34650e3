#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/pass.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"

namespace trireme {

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
  virtual void shadow_forward(pass<Env>& pass) = 0;
  virtual void shadow_backward(pass<Env>& pass) = 0;
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

/// A unit that counts its dropout sites: it drops numbers at pass.first_site and the sites after it, so that no two
/// units of a model drop the same numbers.
template <class U>
concept counts_dropout_sites = requires(U const& state) {
  { state.dropout_sites() } -> std::convertible_to<std::uint32_t>;
};

/// A unit whose passes involve all ranks along an axis: shadow_forward(pass, saved) and shadow_backward(pass, saved)
/// take part in the passes of other ranks, without rows of this one.
template <class U, class Env>
concept has_shadow_passes = requires(U& state, pass<Env>& pass, typename U::saved& saved) {
  state.shadow_forward(pass, saved);
  state.shadow_backward(pass, saved);
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
  /// (`distributed`).
  explicit boxed_unit(Description const& description, rank_groups<Env> const& groups = rank_groups<Env>::none())
      : state_(make(valid(description), groups)) {
    if constexpr (knows_groups || !takes_group_rank) {
      if (tensor_group<Env>::of(groups).rank() == 0) return;
      state_.visit([&](parameter<Env>& each) {
        if (!each.info.is_shard() || !each.info.distributed.empty()) each.info.is_owner = false;
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
  void shadow_forward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (has_shadow_passes<state, Env>) state_.shadow_forward(pass, saved_of(pass));
  }
  void shadow_backward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (has_shadow_passes<state, Env>) state_.shadow_backward(pass, saved_of(pass));
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
  static constexpr bool takes_group_rank = std::constructible_from<state, Description const&, group_rank>;
  static constexpr bool knows_groups = std::constructible_from<state, Description const&, rank_groups<Env> const&>;
  static Description const& valid(Description const& description) {
    expect_valid(description);
    return description;
  }
  static state make(Description const& description, [[maybe_unused]] rank_groups<Env> const& groups) {
    if constexpr (knows_groups) {
      return state(description, groups);
    } else if constexpr (takes_group_rank) {
      return state(description, tensor_group<Env>::of(groups).coordinate());
    } else {
      return state(description);
    }
  }

  [[nodiscard]] typename state::saved& saved_of(pass<Env> const& pass) {
    if (pass.saved_index >= saved_.size()) saved_.resize(pass.saved_index + 1);
    return saved_[pass.saved_index];
  }

  state state_;
  std::vector<typename state::saved> saved_ = std::vector<typename state::saved>(1);
};

}  // namespace trireme
