// test-ranks: 2 3
// test-timeout: 300
// test-sanitize: none
// mpirun starts the ranks here, but they meet by the rendezvous.
#include "trireme/comm/processes.hpp"

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"

using namespace std::chrono_literals;

TEST_CASE("every rung holds on processes that meet by a rendezvous", "[ladder][processes]") {
  watchdog dog("processes", 280s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(name);
    CHECK_NOTHROW(trireme::launch(trireme::comm::processes{.deadline = 60s}, rung));
  });
}
