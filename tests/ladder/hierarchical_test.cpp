// test-timeout: 600
// test-sanitize: none
#include "trireme/comm/hierarchical.hpp"
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"
#include "trireme/comm/comm.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

TEST_CASE("every rung holds on nodes of threads", "[ladder][hierarchical]") {
  int const nodes = GENERATE(1, 2, 3), places = 2;
  watchdog dog("the ladder on nodes of threads", 400s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    auto const what = trireme::text(name, " on ", nodes, " nodes of ", places);
    dog.now(what);
    INFO(what);
    std::string refused;
    try {
      trireme::launch(comm::threads{.ranks = nodes * places, .deadline = 60s}, [&](auto& world) {
        auto inside = world.split(world.rank() / places, world.rank());
        auto between = world.split(world.rank() % places, world.rank());
        comm::hierarchical_world ranks(std::move(inside), std::move(between), world);
        rung(ranks);
      });
    } catch (std::exception const& problem) {
      refused = problem.what();
    }
    if (nodes == 3 && std::string_view(name) == "15_grid")  // of other nodes and places than these
      CHECK(refused.find("do not form a grid of nodes and places") != std::string::npos);
    else
      CHECK(refused.empty());
  });
}
