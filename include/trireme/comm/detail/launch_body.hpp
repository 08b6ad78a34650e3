#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace trireme::comm::detail {

/// What may be wrong with the body of a launch.
enum class body_slip : std::uint8_t { none, by_value, takes_nothing, not_callable, result };

template <class Body, class World>
[[nodiscard]] consteval body_slip slip_of() {
  if constexpr (std::invocable<Body&, World&>) {
    using result = std::invoke_result_t<Body&, World&>;
    bool const leaves = std::is_void_v<result> || std::is_constructible_v<std::decay_t<result>, result>;
    return leaves ? body_slip::none : body_slip::result;
  } else if constexpr (std::invocable<Body&, World>) {
    return body_slip::by_value;
  } else if constexpr (std::invocable<Body&>) {
    return body_slip::takes_nothing;
  } else {
    return body_slip::not_callable;
  }
}

/// One sentence for a body that cannot be launched.
template <body_slip Slip>
struct check_body {
  static_assert(Slip != body_slip::by_value,
                "trireme::launch: the body takes its world by value, and a world cannot be copied; take a reference: "
                "[](auto& world) { ... }");
  static_assert(Slip != body_slip::takes_nothing,
                "trireme::launch: the body takes nothing, but is called with this rank's world: [](auto& world) { ... "
                "}");
  static_assert(Slip != body_slip::not_callable,
                "trireme::launch: the body cannot be called with this rank's world and nothing else (unless it has an "
                "error of its own, which stands elsewhere): [](auto& world) { ... }");
  static_assert(Slip != body_slip::result,
                "trireme::launch: the body returns what can be neither copied nor moved, such as a trainer or the "
                "world, which end with the launch; return values, or nothing");
};

/// Says it. A function of its own: the one that is wrong must stay one that can be called, or clang adds errors.
template <body_slip Slip>
constexpr void expect_body() noexcept {
  static_cast<void>(sizeof(check_body<Slip>));
}

}  // namespace trireme::comm::detail
