// test-timeout: 600
// test-takes: 30
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"
#include "trireme/comm/comm.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

TEST_CASE("every rung holds on one rank alone", "[ladder][self]") {
  watchdog dog("the ladder on self");
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(name);
    CHECK_NOTHROW(trireme::launch(comm::self{}, rung));
  });
}

TEST_CASE("every rung holds on 1, 2, 3, 4 and 8 threads", "[ladder][threads]") {
  int const ranks = GENERATE(1, 2, 3, 4, 8);
  watchdog dog("the ladder on threads", 400s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(trireme::text(name, " on ", ranks, " threads"));
    INFO(name << " on " << ranks << " threads");
    CHECK_NOTHROW(trireme::launch(comm::threads{.ranks = ranks, .deadline = 60s}, rung));
  });
}
