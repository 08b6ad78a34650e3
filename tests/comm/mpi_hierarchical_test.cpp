// test-ranks: 1 2
#include "trireme/comm/hierarchical.hpp"

#include <chrono>
#include <type_traits>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "hierarchy_by_the_book.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

namespace {

int processes() {
  return launch(comm::mpi{}, [](auto& world) { return world.size(); });
}

}  // namespace

TEST_CASE("threads inside processes: every collective equals its definition", "[comm][hierarchical][mpi]") {
  watchdog dog("threads x mpi");
  auto const nodes = processes();
  auto const places = GENERATE(1, 2, 3);
  bool const shared_memory = GENERATE(true, false);
  dog.now(text(nodes, " processes of ", places, shared_memory ? " threads, shared memory" : " threads, messages"));
  comm::hierarchical const ranks{comm::threads{.ranks = places}, comm::mpi{.shared_memory = shared_memory}};
  launch(ranks, [&](auto& world) {
    static_assert(communicator<std::remove_reference_t<decltype(world)>>);
    by_the_book::every_collective(world, places, nodes, 5003);
    auto twin = world.duplicate();
    by_the_book::exchanges(twin, 50);
    auto part = world.split(world.rank() % places == 0 ? 0 : 1, 0);  // the first threads, and the others
    auto const wanted = world.rank() % places == 0 ? nodes : nodes * (places - 1);
    by_the_book::expect(part.size() == wanted, "the part has ", part.size(), " ranks");
    by_the_book::exchanges(part, 50);
  });
}

TEST_CASE("threads inside processes: decorators wrap them", "[comm][hierarchical][mpi]") {
  watchdog dog("checked threads x mpi");
  auto const nodes = processes();
  comm::hierarchical const ranks{comm::threads{.ranks = 2}, comm::mpi{}};
  launch(comm::decorate(ranks, comm::checked{.patience = std::chrono::seconds(20)}), [&](auto& world) {
    by_the_book::requests(world, 2, nodes, 1000);
    by_the_book::exchanges(world, 1000);
  });
}
