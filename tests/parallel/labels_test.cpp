// test-sanitize: none
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../comm/node_ranks.hpp"
#include "../watchdog.hpp"
#include "labels_cases.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/threads.hpp"

using namespace std::chrono_literals;
using namespace trireme;

TEST_CASE("exchanges and trainers in another order on one rank are an error that names both",
          "[parallel][exchange][labels]") {
  watchdog const guard("labels", 100s);
  for (auto const& each : labels_cases::all) {
    std::vector<std::string> found(2);
    CHECK_THROWS_AS(launch(comm::threads{.ranks = 2},
                           [&](auto& world) {
                             found[static_cast<std::size_t>(world.rank())] = labels_cases::wrong(world, each);
                             throw comm_error("the case is over");
                           }),
                    comm_error);
    CHECK(found == std::vector<std::string>(2));
    node_family family(2, in_world([&](node_world& world) { return labels_cases::wrong(world, each); }));
    CHECK(family.said() == std::vector<std::string>(2));
  }
}

TEST_CASE("two exchanges and a trainer on one world work in one order", "[parallel][exchange][labels]") {
  std::vector<std::string> wrong(2);
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::checked{}), [&](auto& world) {
    auto const expect = [&](bool holds, char const* what) {
      if (!holds) wrong[static_cast<std::size_t>(world.rank())] += what;
    };
    labels_cases::one_tensor a, b;
    auto first = make_exchange(a.list(), world), second = make_exchange(b.list(), world);
    auto trainer = make_trainer(b, optim::sgd{.learning_rate = 0.1}, world);
    first.begin();
    second.begin();
    for (auto* const each : {&second, &first}) {
      each->ready(0);
      expect(each->finish().finite, "an exchange; ");
    }
    std::int64_t steps = 0;
    trainer.on_step([&](step_report const&) {
      expect(world.labels().now == comm::call_label{}, "callbacks are the program's; ");
      ++steps;
    });
    std::vector<float> const numbers(2, 1.0F);
    trainer.step(make_samples(tensor_view<float const>(numbers.data(), shape{2, 1}),
                              tensor_view<float const>(numbers.data(), shape{2, 1})));
    expect(steps == 1, "a step; ");
    expect(world.labels().now == comm::call_label{}, "the label after the step; ");
    expect(world.labels().exchanges == 2 && world.labels().trainers == 1, "the numbers of owners; ");
  });
  CHECK(wrong == std::vector<std::string>(2));
}
