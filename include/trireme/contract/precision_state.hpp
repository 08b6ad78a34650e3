#pragma once

#include <cstdint>

namespace trireme {

/// The run state of a precision that names no `instance` of its own: losses are as they are, and a step is taken if all
/// gradients are finite.
///
/// An `instance` of your own has the same functions, is made of the policy, and may also show numbers that are the
/// same on all ranks (visit_numbers, see contract/state.hpp), which checkpoints then keep.
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

}  // namespace trireme
