#pragma once

#include "11_exchange.hpp"
#include "trireme/core/error.hpp"

namespace ladder {

template <class Call>
void expect_config_error(char const* what, Call call) {
  try {
    call();
  } catch (trireme::config_error const& problem) {
    expect(std::string(problem.what()).starts_with("trireme::comm::"), problem.what());
    return;
  }
  expect(false, what, " must be a config_error");
}

/// Arguments that are wrong on every rank are refused before anything is sent or counted, and the communicator still
/// works.
template <class World>
void errors(World& world) {
  using space = space_of_world<World>;
  int const p = world.size();
  message<float, World> const odd(world, 2 * p + 1, {});
  message<float, World> const even(world, 2 * p, {});
  auto const before = world.traffic();
  if (p > 1) {
    expect_config_error("uneven slices", [&] { world.reduce_scatter(odd.view()); });
    expect_config_error("uneven slices", [&] { world.all_gather(odd.view()); });
    expect_config_error("uneven slices", [&] { (void)world.all_gather_async(odd.view()); });
  }
  expect_config_error("a root out of range", [&] { world.broadcast(even.view(), p); });
  expect_config_error("a negative root", [&] { (void)world.broadcast_async(even.view(), -1); });
  expect_config_error("a negative color", [&] { (void)world.split(-1, 0); });
  std::vector<std::int64_t> const few(static_cast<std::size_t>(p), 1);
  std::vector<std::int64_t> negative(static_cast<std::size_t>(p), 2);
  negative[0] = -2;
  std::span<std::int64_t const> const none{};
  if constexpr (trireme::has_ragged_all_gather<World, float, space>) {
    std::span<std::int64_t const> const parts(few);
    expect_config_error("counts that do not add up", [&] { world.all_gather(even.view(), parts); });
    expect_config_error("no counts", [&] { world.all_gather(even.view(), none); });
    expect_config_error("a negative count", [&] { world.all_gather(even.view(), std::span(std::as_const(negative))); });
  }
  if constexpr (trireme::has_ragged_reduce_scatter<World, float, reduction::sum, space>) {
    expect_config_error("counts that do not add up", [&] { world.reduce_scatter(odd.view(), few); });
    expect_config_error("no counts", [&] { (void)world.reduce_scatter_async(even.view(), none); });
    expect_config_error("a negative count", [&] { world.reduce_scatter(even.view(), negative); });
  }
  if constexpr (trireme::has_all_to_all<World, float, space>)
    expect_config_error("unequal views", [&] { world.all_to_all(odd.input(), even.view()); });
  if constexpr (trireme::has_ragged_all_to_all<World, float, space>)
    expect_config_error("no counts", [&] { world.all_to_all(even.input(), none, even.view(), none); });
  if constexpr (trireme::has_reduce<World, float, reduction::sum, space>)
    expect_config_error("a root out of range", [&] { world.reduce(even.view(), p); });
  if constexpr (trireme::has_gather<World, float, space>) {
    expect_config_error("a root out of range", [&] { world.gather(even.input(), odd.view(), -1); });
    if (world.rank() == 0)
      expect_config_error("a whole of the wrong size", [&] { world.gather(odd.input(), even.view(), 0); });
  }
  if constexpr (trireme::has_scatter<World, float, space>)
    expect_config_error("a root out of range", [&] { world.scatter(even.input(), even.view(), p); });
  if constexpr (trireme::has_exchange<World, space>) {
    expect_config_error("a peer out of range",
                        [&] { world.exchange(transfers_of<World>{trireme::send_to(p, even.view())}); });
    expect_config_error("a negative peer", [&] {
      (void)world.exchange_async(transfers_of<World>{trireme::receive_from(-1, even.view())});
    });
  }
  expect(world.traffic() == before, "refused calls are not counted");
  std::int32_t const one = 1;
  message<std::int32_t, World> sum(world, 1, {}, &one);
  world.all_reduce(sum.view());
  expect(sum.read()[0] == p, "the communicator goes on after a refused call");
}

}  // namespace ladder
