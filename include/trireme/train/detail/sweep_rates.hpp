#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/comm/counted.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::detail {

/// `world`, for computing in Space: itself where that is its space already.
template <class Space, class World>
[[nodiscard]] decltype(auto) in_space_of(World& world) {
  if constexpr (std::is_same_v<typename space_of<World>::type, Space>)
    return (world);
  else
    return comm::in_space<Space>(world);
}

/// Operations per second of a rank that trains the whole model alone on its part of the samples while all others do the
/// same.
template <class Model, class Data, class World, class Options, class... Policies>
[[nodiscard]] double measured_flops(Model const& model, Data const& data, World& world, Options const& options,
                                    Policies const&... policies) {
  using space = typename space_of<World>::type;
  if constexpr (without_elements<space>) {
    throw config_error(text("trireme::sweep: nothing is computed in ", space::name,
                            " memory, so its speed is not measured; set .flops in the options"));
  } else {
    auto const share = [&](std::int64_t of) { return of > world.size() ? of / world.size() : std::int64_t{1}; };
    auto const samples = share(options.batch);
    auto const parts = share(options.micro_batches);
    double work = 0;
    double seconds = 0;  // of the fastest step
    world.barrier();
    together(world, [&] {
      comm::self_world single;
      auto&& alone = in_space_of<space>(single);
      auto trainer = make_trainer(model, alone, policies...);
      work = plan(trainer, data, {.samples = samples, .micro_batches = parts}).flops;
      trainer.on_step([&](step_report const& done) {
        if (done.step == 0 || done.seconds < seconds) seconds = done.seconds;
      });
      trainer.fit(data, {.steps = 6, .batch = samples, .micro_batches = parts});
    });
    world.all_reduce(tensor_view<double>(&seconds, shape{1}), reduction::max{});
    return work / seconds;
  }
}

struct link_rates {
  double bandwidth = 1;  // a world of one rank sends nothing
  double latency = 0;
};

/// Bandwidth and latency of a world, from all_reduces of one number and of a million: the fastest of a few, on the
/// slowest rank.
template <class World>
[[nodiscard]] link_rates measured_link(World& world) {
  if (world.size() == 1) return {};
  constexpr int runs = 8;
  auto counted = comm::decorate(world, comm::counted{});
  struct cost {
    double seconds, bytes;
  };
  auto const cost_of = [&](std::int64_t count) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    auto const before = counted.counts()[comm::collective::all_reduce];
    double best = 0;
    for (int run = 0; run < runs; ++run) {
      world.barrier();
      auto const start = std::chrono::steady_clock::now();
      counted.all_reduce(tensor_view<float>(numbers), reduction::sum{});
      double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (run == 0 || seconds < best) best = seconds;
    }
    world.all_reduce(tensor_view<double>(&best, shape{1}), reduction::max{});
    auto const after = counted.counts()[comm::collective::all_reduce];
    return cost{best, static_cast<double>(after.bytes - before.bytes) / runs};
  };
  auto const one = cost_of(1);
  auto const many = cost_of(1 << 20);
  return {.bandwidth = many.bytes / (many.seconds > one.seconds ? many.seconds - one.seconds : many.seconds),
          .latency = one.seconds / comm::rounds_among(world.size())};
}

}  // namespace trireme::detail
