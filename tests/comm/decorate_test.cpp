#include "trireme/comm/decorate.hpp"

#include <chrono>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/recorded.hpp"
#include "trireme/comm/throttled.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

comm::throttled const quick{.every = {.latency = 1us, .bytes_per_second = 1e12}};
comm::checked const patient{.patience = 30s};  // for sanitizers

}  // namespace

TEST_CASE("a decorated description is compared, printed as its source, and makes nested worlds", "[comm][decorate]") {
  auto const description = comm::decorate(comm::threads{.ranks = 2}, comm::recorded{}, comm::checked{});
  CHECK(description == comm::decorate(comm::threads{.ranks = 2}, comm::recorded{}, comm::checked{}));
  CHECK(description != comm::decorate(comm::threads{.ranks = 3}, comm::recorded{}, comm::checked{}));
  CHECK(to_string(description) ==
        "comm::decorate(comm::decorate(comm::threads{.ranks = 2, .deadline = 60s}, comm::recorded{.last = 256, .path = "
        "\"\", .signal = 0}), comm::checked{.patience = 1s})");
  CHECK(launch(description, [](auto& world) {
          using plain = comm::threads_world;
          static_assert(std::same_as<decltype(world), comm::checked_world<comm::recorded_world<plain>>&>);
          auto part = world.split(0, 1 - world.rank());
          auto twin = part.duplicate(5s);
          if (twin.deadline() != 5s || twin.rank() != 1 - world.rank()) throw std::runtime_error("no such duplicate");
          static_assert(has_allocate<comm::checked_world<plain>, float> && has_peers<comm::checked_world<plain>, int>);
          return world.size();
        }) == 2);
}

TEST_CASE("worlds in any order of decorators give the same values", "[comm][decorate]") {
  watchdog dog("any order of decorators");
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    auto a = comm::decorate(world, comm::counted{}, quick, comm::recorded{}, patient);
    auto b = comm::decorate(world, patient, comm::recorded{}, quick, comm::counted{});
    std::vector<float> plain(1000, 0.1F * static_cast<float>(world.rank() + 1)), with_a = plain, with_b = plain;
    world.all_reduce(tensor_view{plain}, reduction::mean{});
    a.all_reduce_async(tensor_view{with_a}, reduction::mean{}).wait();
    b.all_reduce(tensor_view{with_b}, reduction::mean{});
    if (plain != with_a || plain != with_b) throw std::runtime_error("decorators change values");
    if (a.traffic().bytes_sent != b.traffic().bytes_sent) throw std::runtime_error("decorators change the traffic");
  });
}

TEST_CASE("a training on decorated threads ends in the state of a plain one", "[comm][decorate]") {
  watchdog dog("a decorated training");
  auto const run = [](auto const& description, auto strategy) {
    return launch(description,
                  [&](auto& world) { return toy::twelve_steps.train(world, toy::adaptive, strategy).hash; });
  };
  comm::threads const threads{.ranks = 2};
  auto const decorated = comm::decorate(threads, quick, comm::recorded{}, patient);
  CHECK(run(decorated, parallel::data{}) == run(threads, parallel::data{}));
  CHECK(run(decorated, parallel::zero<1>{}) == run(threads, parallel::zero<1>{}));
}

TEST_CASE("a decorated world works in another memory space", "[comm][decorate]") {
  launch(comm::decorate(comm::self{}, comm::checked{}), [](auto& world) {
    auto dry = comm::in_space<phantom>(world);
    tensor<float, phantom> values(shape{100});
    dry.all_reduce(values.view());
    if (dry.traffic().collectives != 1) throw std::runtime_error("not counted");
  });
}
