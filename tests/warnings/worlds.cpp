// Every collective of every communicator and decorator, compiled with every warning (tests/headers.cmake): the rungs of
// the ladder, whose own headers do not belong to the library.
#include <ladder.hpp>

#include <string>

#include "trireme/comm/checked.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/recorded.hpp"
#include "trireme/comm/throttled.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

void climb(auto& world) {
  ladder::for_each_rung([&](char const*, auto rung) { rung(world); });
}

}  // namespace

void worlds() {
  launch(comm::threads{}, [](auto& world) { climb(world); });
  launch(comm::self{}, [](auto& world) { world.barrier(); });
  launch(comm::processes{}, [](auto& world) { climb(world); });
  launch(comm::decorate(comm::threads{}, comm::throttled{}, comm::counted{}, comm::recorded{}, comm::checked{}),
         [](auto& world) { climb(world); });
}
