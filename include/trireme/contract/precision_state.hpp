#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// An operand of a product that a layer is about to compute: x or w of y = x w, or the gradient of y. An operand that
/// two products read is asked for twice. All are matrices: x (M, K), w (K, N) and the gradient of y (M, N), where the
/// rows of x and y may be several leading extents; y and the gradients of x and w are sums over K, N and M. The w of a
/// head, the table of its words, is (N, K).
struct product_operand {
  enum class role { input, weight, gradient };
  /// What is computed: y = x w, the gradient of x from that of y and w, or the gradient of w from x and that of y.
  enum class product { forward, input_gradient, weight_gradient };
  std::string_view weight;  ///< the name of w
  role is = role::input;
  bool training = true;  ///< false: this pass trains nothing, and does not change the precision's state
  product of = product::forward;
  bool head = false;  ///< y are the logits of words (nn::unembedding)
  std::uint64_t draw =
      0;  ///< for random numbers: another one in each micro-batch of each step, whatever ranks share it
};

/// The run state of a precision without an `instance`: losses are not scaled, and a step is taken if all gradients are
/// finite.
///
/// Your own `instance` has the same functions, is made from the policy, and may have more:
///
///   visit_numbers(f)          numbers that are the same on all ranks (contract/state.hpp); checkpoints keep them.
///   operand(which, from, to)  writes what products read instead of `from`, of the same extents: for number formats
///                             without an element type. Called before each product of nn::linear, convolutions and
///                             nn::experts.
///   writes(which)             whether operand() is called for this one; without it: for all but those of heads.
///   maxima()                  a span of non-negative doubles, the same number on all ranks: the largest values that
///                             operand() has read. Before decide() each becomes the maximum over all ranks.
///   tf32_products()           whether products of float in CUDA memory round their operands to TF32; without it: no.
template <class Precision>
class plain_precision {
 public:
  explicit plain_precision(Precision const&) {}
  /// The losses of the next step are multiplied by this before backward; gradients are divided by it before the update.
  [[nodiscard]] double scale() const noexcept { return 1; }
  /// After each vote: whether the step is taken. Called on every rank with the same argument.
  [[nodiscard]] bool decide(bool finite) noexcept { return finite; }
  /// The number of consecutive skipped steps after which a run is an error.
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

/// The run state of a precision.
template <class Precision>
using precision_state = typename detail::precision_state_of<Precision>::type;

/// A precision that writes the operands of products itself. In phantom memory (plans) operand() is not called; only its
/// memory is planned.
template <class State, class T, class Space>
concept writes_operands = requires(State& state, product_operand const& which,
                                   tensor_view<T const, std::conditional_t<without_elements<Space>, host, Space>> from,
                                   tensor_view<T, std::conditional_t<without_elements<Space>, host, Space>> to) {
  state.operand(which, from, to);
};

/// A precision that may round products of float to TF32.
template <class State>
concept may_round_to_tf32 = requires(State const& state) {
  static_cast<bool>(state.tf32_products());
};

/// Whether this operand is to be written.
template <class State>
[[nodiscard]] bool is_written(State const& state, product_operand const& which) {
  if constexpr (requires { static_cast<bool>(state.writes(which)); }) {
    return static_cast<bool>(state.writes(which));
  } else {
    return !which.head;
  }
}

}  // namespace trireme
