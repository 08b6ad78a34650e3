// Trireme 0.1.0: trireme/nn/one_of.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f42b3b6949096ceb90fec23a8da3b2370dc786595de2de7b55f715fd9e41a91b
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/one_of.hpp
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::nn {

/// One of several models, chosen at run time: a program that offers them is compiled with one trainer, not with one for
/// each. Numbers, checkpoints and files are those of the chosen one.
///
/// Ranks    all of them choose the same; that is compared like any description.
/// Errors   those of the chosen one.
/// @models  staged_model, if all of Models do.
template <class... Models>
struct one_of {
  using policy_category = slot::model;
  static constexpr bool cuts_context = (Models::cuts_context && ...);
  static constexpr bool made_of_layers = (Models::made_of_layers || ...);

  std::variant<Models...> chosen{};
  friend bool operator==(one_of const&, one_of const&) = default;

  /// Calls f with the chosen one.
  template <class F>
  decltype(auto) with(F&& f) const {
    return std::visit(std::forward<F>(f), chosen);
  }

  template <class Emit>
  void units(Emit&& put) const {
    with([&](auto const& model) { model.units(put); });
  }
  void validate() const {
    with([](auto const& model) { model.validate(); });
  }
  [[nodiscard]] std::vector<double> unit_costs() const {
    return with([](auto const& model) { return model.unit_costs(); });
  }
  [[nodiscard]] file_mapping in_files() const {
    return with([](auto const& model) { return model.in_files(); });
  }
};

/// That of the chosen one: checkpoints of a run with it, and with one_of, are the same.
template <class... Models>
[[nodiscard]] std::string to_string(one_of<Models...> const& m) {
  return m.with([](auto const& model) { return describe(model); });
}
template <class... Models>
[[nodiscard]] formats::json::value config_of(one_of<Models...> const& m) {
  return m.with([](auto const& model) { return config_of(model); });
}

}  // namespace trireme::nn
