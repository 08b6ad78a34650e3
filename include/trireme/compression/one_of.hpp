#pragma once

#include <string>
#include <utility>
#include <variant>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/type_name.hpp"

namespace trireme::compression {

/// One of several compressors, chosen at run time: a program that offers them is compiled with one trainer, not with
/// one for each. It is called through a virtual function a bucket; bits and bytes are those of the chosen one.
///
/// Ranks    all of them choose the same; that is compared like any description.
/// Rules    those that any of Compressors is subject to.
template <class... Compressors>
struct one_of {
  using policy_category = slot::compression;
  std::variant<Compressors...> chosen{};
  friend bool operator==(one_of const&, one_of const&) = default;

  void validate() const {
    std::visit([](auto const& one) { expect_valid(one); }, chosen);
  }
};

/// That of the chosen one: checkpoints of a run with it, and with one_of, are the same.
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
