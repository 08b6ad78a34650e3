#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::optim {

/// Settings for the parameters whose names match one of some patterns.
struct group {
  std::string names;  ///< patterns, separated by spaces; * matches any characters, ? one: "*.bias layers.?.weight"
  double learning_rate = 1;  ///< factor on the optimizer's rate, at every step
  std::optional<double>
      weight_decay{};   ///< instead of the optimizer's, also where a parameter does not decay by itself
  bool frozen = false;  ///< never updated
  friend bool operator==(group const&, group const&) = default;
};

/// An optimizer with other rates or weight decay for some parameters, which may also be frozen:
/// optim::groups{optim::adamw{}, {{.names = "*wte*", .frozen = true}, {.names = "*.bias", .learning_rate = 2}}}. The
/// first matching group is used.
///
/// Frozen   frozen parameters have only values: no memory for gradients (layers write them to one shared buffer as
/// large as the largest), no moments, no communication of gradients. They stay in checkpoints and hashes, and are
/// gathered under zero<3>. Their gradients are still computed.
/// @models  the same concepts as Base, wherever Base works.
template <class Base>
struct groups {
  using policy_category = slot::optimizer;

  Base base{};
  std::vector<group> list{};
  double clip = base.clip;  ///< largest global gradient norm, over trained parameters; 0 = no clipping
  friend bool operator==(groups const&, groups const&) = default;

  void validate() const {
    expect_valid(base);
    for (auto const& each : list) {
      expect_number("optim::group", ".learning_rate", each.learning_rate, not_negative);
      if (each.weight_decay) expect_number("optim::group", ".weight_decay", *each.weight_decay, not_negative);
    }
    expect_number("optim::groups", ".clip", clip, limit_or_none);
  }
  /// See name_pattern.
  template <class F>
  void for_each_pattern(F&& f) const {
    for (auto const& each : list) f(name_pattern{"optim::groups: .names", each.names});
    if constexpr (has_patterns<Base>) base.for_each_pattern(f);
  }

  static constexpr bool whole_tensors = declares_whole_tensors<Base>;
  static constexpr auto moment_names = Base::moment_names;
  [[nodiscard]] double rate_at(std::int64_t step) const { return base.rate_at(step); }
  [[nodiscard]] shape moment_shape(std::size_t which,
                                   parameter_info const& info) const requires has_moment_shape<Base> {
    return base.moment_shape(which, info);
  }
  [[nodiscard]] bool freezes(parameter_info const& info) const {
    auto const* const mine = group_of(info);
    return mine != nullptr && mine->frozen;
  }

  template <class Env>
  requires has_update<Base, Env>
  void update(update_segment<Env> const& segment, std::int64_t step) const {
    auto const* const mine = segment.info == nullptr ? nullptr : group_of(*segment.info);
    if (mine == nullptr) return base.update(segment, step);
    auto changed = segment;
    changed.decays = segment.decays || mine->weight_decay.has_value();
    changed_by(*mine).update(changed, step);
  }
  template <class Env>
  requires has_tensor_update<Base, Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    auto const* const mine = group_of(tensor.info);
    if (mine == nullptr) return base.update(tensor, step);
    auto info = tensor.info;
    info.decays = info.decays || mine->weight_decay.has_value();
    changed_by(*mine).update(tensor_update<Env>{info, tensor.value, tensor.moments, tensor.gradient, tensor.scale,
                                                tensor.outputs, tensor.scratch, tensor.updates},
                             step);
  }

 private:
  [[nodiscard]] group const* group_of(parameter_info const& info) const {
    for (auto const& each : list) {
      if (matches_any(each.names, info.name)) return &each;
    }
    return nullptr;
  }
  [[nodiscard]] Base changed_by(group const& mine) const {
    auto out = base;
    change(out, mine);
    if constexpr (requires { out.rest.learning_rate; })
      change(out.rest, mine);  // a nested optimizer, for other parameters
    return out;
  }
  template <class Optimizer>
  static void change(Optimizer& it, group const& mine) {
    static_assert(
        requires {
          it.learning_rate;
          it.schedule;
          it.weight_decay;
        },
        "trireme::optim::groups: the optimizer in it lacks learning_rate, schedule or weight_decay, "
        "which groups change");
    it.learning_rate *= mine.learning_rate;
    std::visit(
        [&](auto& each) {
          if constexpr (requires { each.peak; }) each.peak *= mine.learning_rate;
          if constexpr (requires { each.floor; }) each.floor *= mine.learning_rate;
        },
        it.schedule);
    if (mine.weight_decay) it.weight_decay = *mine.weight_decay;
  }
};
template <class Base>
groups(Base, std::vector<group>) -> groups<Base>;

template <class Base>
[[nodiscard]] std::string to_string(groups<Base> const& o) {
  std::string list;
  for (auto const& each : o.list) {
    list += text(list.empty() ? "" : ", ", "{.names = \"", each.names, "\", .learning_rate = ", each.learning_rate);
    if (each.weight_decay) list += text(", .weight_decay = ", *each.weight_decay);
    list += text(", .frozen = ", each.frozen, "}");
  }
  auto const base = describe(o.base);  // "optim::adamw{.learning_rate = 0.001, ...}"
  return text("optim::groups<", base.substr(0, base.find('{')), ">{", base, ", {", list, "}, ", o.clip, "}");
}

}  // namespace trireme::optim
