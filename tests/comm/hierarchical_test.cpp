#include "trireme/comm/hierarchical.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "hierarchy_by_the_book.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/launch.hpp"

using namespace trireme;

namespace {

auto nodes_of(comm::threads_world& world, int places) {
  auto inside = world.split(world.rank() / places, world.rank());
  auto between = world.split(world.rank() % places, world.rank());
  return comm::hierarchical_world(std::move(inside), std::move(between), world);
}

}  // namespace

static_assert(communicator<comm::hierarchical_world<comm::threads_world, comm::threads_world>>);

TEST_CASE("a hierarchical description is compared, and printed as its source", "[comm][hierarchical]") {
  comm::hierarchical const it{comm::threads{.ranks = 4}, comm::self{}};
  CHECK(it == comm::hierarchical{comm::threads{.ranks = 4}, comm::self{}});
  CHECK(it != comm::hierarchical{comm::threads{.ranks = 3}, comm::self{}});
  CHECK(to_string(it) == "comm::hierarchical{comm::threads{.ranks = 4, .deadline = 60s}, comm::self{}}");
}

TEST_CASE("every collective of nodes x places equals its definition", "[comm][hierarchical]") {
  watchdog dog("collectives of nodes x places");
  auto const [places, nodes] =
      GENERATE(std::pair{2, 4}, std::pair{4, 2}, std::pair{3, 2}, std::pair{1, 3}, std::pair{3, 1}, std::pair{1, 1});
  dog.now(text(nodes, " nodes of ", places));
  launch(comm::threads{.ranks = places * nodes}, [places = places, nodes = nodes](auto& world) {
    auto mine = nodes_of(world, places);
    by_the_book::every_collective(mine, places, nodes, 5003);
    auto again = mine.duplicate();
    by_the_book::exchanges(again, 100);
    by_the_book::requests(again, places, nodes, 3000);
    auto patient = mine.duplicate(std::chrono::minutes(7));
    by_the_book::expect(patient.inner().deadline() == std::chrono::minutes(7), "the deadline inside");
    by_the_book::expect(patient.outer().deadline() == std::chrono::minutes(7), "the deadline between");
    by_the_book::every_collective(patient, places, nodes, 503);
    by_the_book::exchanges(patient, 100);
  });
}

TEST_CASE("only a part of a large message travels between nodes, and traffic counts for all ranks",
          "[comm][hierarchical]") {
  launch(comm::threads{.ranks = 4}, [](auto& world) {
    auto mine = nodes_of(world, 2);
    auto const before = mine.outer().traffic().bytes_sent;
    std::vector<float> values(64 * 1024);
    mine.all_reduce(tensor_view{values});
    by_the_book::expect(mine.outer().traffic().bytes_sent - before == values.size() / 2 * 4,
                        "half of it goes to the other node");
    by_the_book::expect(mine.traffic().bytes_sent == comm::bytes_sent::all_reduce(64 * 1024, 4, mine.rank(), 4),
                        "traffic");
  });
}

TEST_CASE("a hierarchical world splits into grids and refuses what is none", "[comm][hierarchical]") {
  watchdog dog("splitting nodes x places");
  launch(comm::threads{.ranks = 8}, [](auto& world) {
    auto mine = nodes_of(world, 4);
    auto const r = mine.rank();
    auto by_place = mine.split(r % 2, 0);  // two places of each node
    by_the_book::requests(by_place, 2, 2, 1000);
    auto by_node = mine.split(r / 4, r);
    by_the_book::expect(by_node.size() == 4 && by_node.rank() == r % 4, "a node is a grid");
    auto back = mine.split(0, -(r / 4));  // nodes in the other order
    by_the_book::expect(back.rank() == (1 - r / 4) * 4 + r % 4, "keys order the nodes");
    std::vector<int> sum{r};
    by_place.all_reduce(tensor_view{sum});
    by_the_book::expect(sum[0] == (r % 2 == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5 + 7), "the members of one color");
    auto const told = sentence_of<config_error>([&] { static_cast<void>(mine.split(r == 0 || r == 5 ? 0 : 1, 0)); });
    by_the_book::expect(told.find("trireme::comm::hierarchical::split") == 0, "refused on every rank: ", told);
    mine.barrier();  // and goes on
  });
}

TEST_CASE("worlds that are no grid, and messages without a way, are refused", "[comm][hierarchical]") {
  watchdog dog("no grid");
  launch(comm::threads{.ranks = 4}, [](auto& world) {
    auto const r = world.rank();
    auto const told = sentence_of<config_error>([&] {
      auto inside = world.split(r / 2, r);
      auto between = world.split(r < 2 ? r : 3 - r, r);  // crossed
      comm::hierarchical_world(std::move(inside), std::move(between));
    });
    by_the_book::expect(told.find("do not form a grid") != std::string::npos, "crossed places: ", told);

    auto inside = world.split(r / 2, r);
    auto between = world.split(r % 2, r);
    comm::hierarchical_world mine(std::move(inside), std::move(between));
    std::vector<int> out{r};
    std::vector<int> in(1);
    auto const meet = [&](int peer) {
      mine.exchange({send_to(peer, tensor_view{out}), receive_from(peer, tensor_view{in})});
    };
    meet(r ^ 1);
    by_the_book::expect(in[0] == (r ^ 1), "inside the node");
    meet(r ^ 2);
    by_the_book::expect(in[0] == (r ^ 2), "at the same place");
    auto const lost = sentence_of<config_error>([&] { meet(r ^ 3); });
    by_the_book::expect(contains(lost, "cannot reach rank"), "another node and place: ", lost);
  });
}

TEST_CASE("threads inside one process without others are launched as such, and decorators wrap them",
          "[comm][hierarchical]") {
  watchdog dog("threads x self");
  auto const description = comm::decorate(comm::hierarchical{comm::threads{.ranks = 3}, comm::self{}}, comm::checked{});
  CHECK(launch(description, [](auto& world) {
          by_the_book::exchanges(world, 10);
          by_the_book::requests(world, 3, 1, 500);
          return world.size();
        }) == 3);
}

TEST_CASE("an error on one rank ends the waits of all nodes", "[comm][hierarchical]") {
  watchdog dog("an error in a node", std::chrono::seconds(30));
  CHECK_THROWS_AS(launch(comm::threads{.ranks = 4},
                         [](auto& world) {
                           auto mine = nodes_of(world, 2);
                           if (mine.rank() == 3) throw std::domain_error("rank 3 has had enough");
                           std::vector<float> values(100000);
                           auto pending = mine.all_reduce_async(tensor_view{values});
                           mine.barrier();
                         }),
                  std::domain_error);
}
