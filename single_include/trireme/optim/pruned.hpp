// Trireme 0.1.0: trireme/optim/pruned.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f94cf7f786ba4078199a2752f48a471706ad5228560789d5f232be01c6c73878
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/pruning.hpp"

// ---- trireme/optim/pruned.hpp
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::optim {

/// Which elements of some matrices become zero.
struct pruning {
  std::string names;              ///< patterns, separated by spaces; * matches any characters, ? one: "*.c_fc.weight"
  double ratio = 0.5;             ///< this share of each matrix: its elements of smallest magnitude
  bool two_of_four = false;       ///< instead: of each four inputs of an output in order, the two of smallest magnitude
  bool rows_are_outputs = false;  ///< order of a matrix's extents: (outputs, inputs); layers of nn have (inputs,
                                  ///< outputs), tables of words not
  std::int64_t after = 0;         ///< updates of the dense matrix before its elements are chosen
  friend bool operator==(pruning const&, pruning const&) = default;
};

/// An optimizer that keeps chosen elements of some matrices at zero, exactly:
/// optim::pruned{optim::adamw{}, {{.names = "*.c_fc.weight *.c_proj.weight", .two_of_four = true}}}. The first entry
/// that matches a matrix is used; a parameter that is not a matrix (a bias, a gain) stays dense.
///
/// In the first update (or the one `after` so many) the smallest elements of the values before it are chosen; from then
/// on they are zero after each update, in the master values and in what layers read. The choice is a mask, which is run
/// state: a moment of the trainer, saved and resumed with the others. A run that begins with pruned values, from
/// load_pretrained say, chooses the same zeros again, as they are the smallest.
///
/// Method   magnitude pruning [Han et al., "Learning both weights and connections for efficient neural networks",
/// 2015];
///          2:4 [Mishra et al., "Accelerating sparse deep neural networks", 2021].
/// Bytes    the moments of Base, and a mask as large as one moment for matrices that match.
/// Ranks    the owner of a matrix chooses, and sees all of it; every rank reads the same values, under every strategy
///          that takes whole tensors: equal to one rank's, as for the others.
/// Numerics the gradient's norm, by which `clip` clips, counts pruned elements too.
/// @models  whole_tensor_optimizer: cannot be used with parallel::tensor of degree above 1.
template <class Base>
struct pruned {
  TRIREME_NEEDS_KERNELS("optim::pruned", pruning);
  using policy_category = slot::optimizer;

  Base base{};
  std::vector<pruning> list{};
  double clip = base.clip;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(pruned const&, pruned const&) = default;

  void validate() const {
    expect_valid(base);
    for (auto const& each : list) {
      expect_number("optim::pruning", ".ratio", each.ratio, below_one);
      expect_number("optim::pruning", ".after", static_cast<double>(each.after), not_negative);
    }
    expect_number("optim::pruned", ".clip", clip, limit_or_none);
  }
  /// See name_pattern.
  template <class F>
  void for_each_pattern(F&& f) const {
    for (auto const& each : list) f(name_pattern{"optim::pruned: .names", each.names});
    if constexpr (has_patterns<Base>) base.for_each_pattern(f);
  }

  static constexpr bool whole_tensors = true;
  static constexpr std::size_t base_moments = Base::moment_names.size();
  static constexpr auto moment_names = [] {
    std::array<std::string_view, base_moments + 1> names{};
    for (std::size_t i = 0; i < base_moments; ++i) names[i] = Base::moment_names[i];
    names[base_moments] = "pruned";
    return names;
  }();
  [[nodiscard]] double rate_at(std::int64_t step) const { return base.rate_at(step); }
  /// Errors   config_error for two_of_four of a matrix whose inputs do not divide by four.
  [[nodiscard]] shape moment_shape(std::size_t which, parameter_info const& info) const {
    if (which == base_moments) {
      auto const* const mine = pruning_of(info);
      if (mine == nullptr) return {0};
      if (auto const inputs = info.extents[mine->rows_are_outputs ? 1 : 0]; mine->two_of_four && inputs % 4 != 0) {
        throw config_error(text("trireme::optim::pruned: ", info.name, " has ", inputs,
                                " inputs, which do not divide by four; leave it out of .names, or prune it by .ratio"));
      }
      return info.extents;
    }
    if constexpr (has_moment_shape<Base>)
      return base.moment_shape(which, info);
    else
      return info.extents;
  }
  [[nodiscard]] bool freezes(parameter_info const& info) const {
    if constexpr (requires { base.freezes(info); })
      return base.freezes(info);
    else
      return false;
  }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    using kernels = ops::pruning_on<typename Env::space>;
    auto const* const mine = pruning_of(tensor.info);
    auto const pruned_now = mine == nullptr ? 0 : count_of_updates(tensor, step) - static_cast<double>(mine->after);
    if (mine == nullptr || pruned_now < 1) return update_base(tensor, step);
    auto const value = tensor.value, mask = tensor.moments[base_moments];
    if (pruned_now < 2) {  // the first one
      if (mine->two_of_four) {
        kernels::two_of_four(mask, value, mine->rows_are_outputs ? 1 : tensor.info.extents[1]);
      } else {
        kernels::smallest(mask, value, std::llround(mine->ratio * static_cast<double>(value.size())));
      }
    }
    update_base(
        tensor_update<Env>{
            tensor.info, value, tensor.moments, tensor.gradient, tensor.scale, {}, tensor.scratch, tensor.updates},
        step);
    kernels::clear(value, mask);
    detail::write_outputs(tensor);
  }

 private:
  [[nodiscard]] pruning const* pruning_of(parameter_info const& info) const {
    if (info.extents.rank() != 2) return nullptr;
    for (auto const& each : list) {
      if (matches_any(each.names, info.name)) return &each;
    }
    return nullptr;
  }
  template <class Env>
  void update_base(tensor_update<Env> const& tensor, std::int64_t step) const {
    auto const moments = tensor.moments.first(base_moments);
    if constexpr (has_tensor_update<Base, Env>) {
      base.update(tensor_update<Env>{tensor.info, tensor.value, moments, tensor.gradient, tensor.scale, tensor.outputs,
                                     tensor.scratch, tensor.updates},
                  step);
    } else {
      base.update(detail::as_segment(tensor, moments), step);
    }
  }
};
template <class Base>
pruned(Base, std::vector<pruning>) -> pruned<Base>;

template <class Base>
[[nodiscard]] std::string to_string(pruned<Base> const& o) {
  std::string list;
  for (auto const& each : o.list) {
    list += text(list.empty() ? "" : ", ", "{.names = \"", each.names, "\", .ratio = ", each.ratio,
                 ", .two_of_four = ", each.two_of_four, ", .rows_are_outputs = ", each.rows_are_outputs,
                 ", .after = ", each.after, "}");
  }
  auto const base = describe(o.base);  // "optim::adamw{.learning_rate = 0.001, ...}"
  return text("optim::pruned<", base.substr(0, base.find('{')), ">{", base, ", {", list, "}, ", o.clip, "}");
}

}  // namespace trireme::optim
