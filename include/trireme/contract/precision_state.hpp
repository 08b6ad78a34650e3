#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// An operand of a product that a layer is about to compute: x or w of y = x w, or the gradient of y, which both
/// products of the backward pass read.
struct product_operand {
  enum class role { input, weight, gradient };
  std::string_view weight;  ///< the name of w
  role is = role::input;
  bool training = true;  ///< false: nobody learns from this pass, and neither does the precision
};

/// The run state of a precision that names no `instance` of its own: losses are as they are, and a step is taken if all
/// gradients are finite.
///
/// An `instance` of your own has the same functions, is made of the policy, and may have more:
///
///   visit_numbers(f)          numbers that are the same on all ranks (contract/state.hpp); checkpoints keep them.
///   operand(which, from, to)  writes what products read instead of `from`, of the same extents: for number formats
///                             that are no element type. Called before each product of nn::linear and nn::experts.
///   maxima()                  a span of doubles, not negative, as many on all ranks: what operand() has seen. Before
///                             decide() each becomes the largest of all ranks'.
template <class Precision>
class plain_precision {
 public:
  explicit plain_precision(Precision const&) {}
  /// What the losses of the next step are multiplied by before backward; gradients are divided by it before the update.
  [[nodiscard]] double scale() const noexcept { return 1; }
  /// After each vote: whether the step is taken. Called on every rank with the same argument.
  [[nodiscard]] bool decide(bool finite) noexcept { return finite; }
  /// After so many steps in a row that were not taken a run is an error.
  [[nodiscard]] std::int64_t normal_skips() const noexcept { return 10; }
};

namespace detail {

template <class Precision>
struct precision_state_of {
  using type = plain_precision<Precision>;
};
template <class Precision>
requires requires { typename Precision::instance; }
struct precision_state_of<Precision> {
  using type = typename Precision::instance;
};

}  // namespace detail

template <class Precision>
using precision_state = typename detail::precision_state_of<Precision>::type;

/// A precision that writes the operands of products itself. On paper (phantom memory) it is not asked to: there is room
/// for what it would write in host memory.
template <class State, class T, class Space>
concept writes_operands =
    requires(State& state, product_operand const& which,
             tensor_view<T const, std::conditional_t<std::is_same_v<Space, phantom>, host, Space>> from,
             tensor_view<T, std::conditional_t<std::is_same_v<Space, phantom>, host, Space>> to) {
  state.operand(which, from, to);
};

}  // namespace trireme
