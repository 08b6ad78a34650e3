#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/ops/sets/whole_tensors.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/detail/whole_tensor.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::optim {

/// Muon: for the hidden matrices of a network, momentum that is made orthogonal before the step; AdamW for all other
/// parameters.
///
/// A parameter is a hidden matrix if it has two extents and its name matches none of `others`: embeddings, positions
/// and the head are updated by `rest`, as is usual, and so are tensors of more extents. Queries, keys and values are
/// separate matrices, and so are experts (parameter_info::fused, stacked).
///
/// Method   [Jordan et al., "Muon: an optimizer for hidden layers", 2024]: m = momentum * m + (1 - momentum) * g; five
///          steps of Newton-Schulz compute X from m (with Nesterov: from the next m), and value -= rate * sqrt(max(1,
///          outputs / inputs)) * X.
/// Bytes    one moment per element of a hidden matrix, two for others; scratch for the largest matrix: twice the matrix
///          and twice the square of its shorter side.
/// Numerics products in the master type, as in layers; X is 2 to 5 % from orthogonal, as the coefficients are designed.
/// @models  whole_tensor_optimizer: cannot be used with parallel::tensor of degree above 1.
struct muon {
  TRIREME_NEEDS_KERNELS("optim::muon", muon);
  using policy_category = slot::optimizer;

  double learning_rate = 0.02;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double momentum = 0.95;
  bool nesterov = true;
  int iterations = 5;
  double weight_decay = 0;
  bool rows_are_outputs =
      false;        ///< order of a matrix's extents: (outputs, inputs); layers of nn have (inputs, outputs)
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  std::string others = "*wte* *wpe* *embed* *lm_head*";  ///< patterns with * and ?, separated by spaces
  adamw rest{.learning_rate = 3e-4, .beta2 = 0.95};      ///< has its own schedule
  friend bool operator==(muon const&, muon const&) = default;

  void validate() const {
    expect_number("optim::muon", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::muon", ".momentum", momentum, below_one);
    expect_number("optim::muon", ".iterations", iterations, at_least_one);
    expect_number("optim::muon", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::muon", ".clip", clip, limit_or_none);
    rest.validate();
  }
  /// See name_pattern. The default patterns need not match anything.
  template <class F>
  void for_each_pattern(F&& f) const {
    if (others != muon{}.others) f(name_pattern{"optim::muon: .others", others});
  }

  static constexpr bool whole_tensors = true;
  static constexpr std::array<std::string_view, 3> moment_names{"momentum", "first_moment", "second_moment"};
  [[nodiscard]] bool is_hidden_matrix(parameter_info const& info) const {
    return info.extents.rank() == 2 && !matches_any(others, info.name);
  }
  [[nodiscard]] shape moment_shape(std::size_t which, parameter_info const& info) const {
    return (which == 0) == is_hidden_matrix(info) ? info.extents : shape{0};
  }
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, learning_rate, step); }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    if (!is_hidden_matrix(tensor.info)) {
      return rest.update(detail::as_segment(tensor, tensor.moments.subspan(1)), step);
    }
    using real = typename Env::master;
    using whole = ops::whole_tensors_on<typename Env::space>;
    auto const rows = tensor.info.extents[0], columns = tensor.info.extents[1];
    auto direction = tensor.scratch.template take<real>(tensor.info.extents);
    whole::muon_momentum(tensor.moments[0], direction, tensor.gradient, momentum, tensor.scale, nesterov);
    direction = orthogonal<Env>(direction, tensor.scratch);
    auto const tall = static_cast<double>(rows) / static_cast<double>(columns);
    auto const stretch = std::sqrt(std::max<double>(1, rows_are_outputs ? tall : 1 / tall));
    auto const now = rate_at(step);
    whole::muon_step(tensor.value, direction, 1 - now * (tensor.info.decays ? weight_decay : 0), now * stretch);
    detail::write_outputs(tensor);
  }

 private:
  static constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

  // Newton-Schulz: X = a X + (b A + c A^2) X with A = X X^T, starting from X / |X|; A has the size of the shorter side.
  template <class Env>
  [[nodiscard]] tensor_view<typename Env::master, typename Env::space> orthogonal(
      tensor_view<typename Env::master, typename Env::space> x, arena<typename Env::space>& scratch) const {
    using real = typename Env::master;
    using space = typename Env::space;
    using kernels = ops::on<space>;
    using whole = ops::whole_tensors_on<space>;
    using matrix = ops::weights<real, space>;
    auto const times = [](auto to, auto left, auto right, ops::orientation way) {
      matrix second(right, way);
      second.refresh(ops::passing_values);  // no packed copy of it is kept
      kernels::linear(to, left, second);
    };
    bool const wide = x.extent(0) <= x.extent(1);
    auto const side = std::min(x.extent(0), x.extent(1));
    auto const square = scratch.template take<real>({side, side});
    auto const polynomial = scratch.template take<real>({side, side});
    auto next = scratch.template take<real>(x.extents());
    whole::muon_normalise(x);
    for (int i = 0; i < iterations; ++i) {
      if (wide) {
        times(square, x, x, ops::orientation::out_in);
      } else {
        kernels::fill(square, 0.0);
        kernels::linear_backward_weight(square, {}, x, x, ops::orientation::in_out);
      }
      times(polynomial, square, square, ops::orientation::in_out);
      whole::muon_mix(polynomial, square, b, c);
      times(next, wide ? polynomial : x, wide ? x : polynomial, ops::orientation::in_out);
      whole::muon_mix(next, x, a, 1);
      std::swap(x, next);
    }
    return x;
  }
};

[[nodiscard]] inline std::string to_string(muon const& o) {
  return text("optim::muon{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .momentum = ", o.momentum, ", .nesterov = ", o.nesterov, ", .iterations = ", o.iterations,
              ", .weight_decay = ", o.weight_decay, ", .rows_are_outputs = ", o.rows_are_outputs, ", .clip = ", o.clip,
              ", .others = \"", o.others, "\", .rest = ", to_string(o.rest), "}");
}

}  // namespace trireme::optim
