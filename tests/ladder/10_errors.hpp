#pragma once

#include "support.hpp"
#include "trireme/core/error.hpp"

namespace ladder {

template <class Call>
void expect_config_error(char const* what, Call call) {
  try {
    call();
  } catch (trireme::config_error const& problem) {
    expect(std::string(problem.what()).find("trireme::comm::") != std::string::npos, problem.what());
    return;
  }
  expect(false, what, " must be a config_error");
}

/// What is wrong on every rank alike is refused before anything is sent, and the communicator goes on.
template <class World>
void errors(World& world) {
  int const p = world.size();
  std::vector<float> odd(static_cast<std::size_t>(p) * 2 + 1);
  std::vector<float> even(static_cast<std::size_t>(p) * 2);
  if (p > 1) {
    expect_config_error("uneven slices", [&] { world.reduce_scatter(tensor_view{odd}); });
    expect_config_error("uneven slices", [&] { world.all_gather(tensor_view{odd}); });
    expect_config_error("uneven slices", [&] { (void)world.all_gather_async(tensor_view{odd}); });
  }
  expect_config_error("unequal views", [&] { world.all_to_all(tensor_view<float const>(odd), tensor_view{even}); });
  expect_config_error("a root out of range", [&] { world.broadcast(tensor_view{even}, p); });
  expect_config_error("a negative root", [&] { (void)world.broadcast_async(tensor_view{even}, -1); });
  expect_config_error("a negative color", [&] { (void)world.split(-1, 0); });
  std::vector<std::int32_t> one{1};
  world.all_reduce(tensor_view{one});
  expect(one[0] == p, "the communicator goes on after a refused call");
}

}  // namespace ladder
