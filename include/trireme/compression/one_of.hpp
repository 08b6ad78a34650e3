#pragma once

#include <string>
#include <utility>
#include <variant>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/type_name.hpp"

namespace trireme::compression {

/// One of several compressors, chosen at run time, so that a program which offers them compiles one trainer and not one
/// for each. It costs one virtual call per bucket; bits and bytes are those of the chosen one.
///
/// Ranks    all of them must choose the same; this is compared like any description.
/// Rules    those of every one of Compressors.
template <class... Compressors>
struct one_of {
  using policy_category = slot::compression;
  std::variant<Compressors...> chosen{};
  friend bool operator==(one_of const&, one_of const&) = default;

  void validate() const {
    std::visit([](auto const& one) { expect_valid(one); }, chosen);
  }
  /// See compressor.hpp.
  void expect_momentum(double of_optimizer) const {
    std::visit([&](auto const& one) { trireme::expect_momentum(one, of_optimizer); }, chosen);
  }
  /// See name_pattern.
  template <class F>
  void for_each_pattern(F&& f) const requires(has_patterns<Compressors> || ...) {
    std::visit(
        [&]<class One>(One const& one) {
          if constexpr (has_patterns<One>) one.for_each_pattern(f);
        },
        chosen);
  }
};

/// The text of the chosen one: checkpoints of a run that uses it directly, or through one_of, are the same.
template <class... Compressors>
[[nodiscard]] std::string to_string(one_of<Compressors...> const& c) {
  return std::visit([](auto const& chosen) { return describe(chosen); }, c.chosen);
}

}  // namespace trireme::compression

namespace trireme {

template <class... Compressors, class Env, class Comm>
inline constexpr bool chooses_compressor<compression::one_of<Compressors...>, Env, Comm> =
    (compressor<Compressors, Env, Comm> && ...);

}  // namespace trireme
