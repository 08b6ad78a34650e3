#include "trireme/comm/report.hpp"

#include <chrono>
#include <iterator>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "child.hpp"
#include "trireme/comm/processes.hpp"

namespace {

using namespace trireme;
using namespace std::chrono_literals;

/// A folder of this test alone, for the meetings of its ranks; made before the first meeting.
scratch const folder;

/// The output of each of three ranks if the body runs on all of them: nothing, or an error.
/// @param stands_still  whether rank 0 hangs until the others have ended.
template <class Body>
std::vector<std::string> printed(Body body, bool stands_still = false) {
  static int number = 0;
  auto const run = text(::getpid(), ".", ++number);
  std::list<child> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank]() -> std::string {
      ::setenv("TMPDIR", folder.path().c_str(), 1);
      ::setenv("TRIREME_RANK", text(rank).c_str(), 1);
      ::setenv("TRIREME_SIZE", "3", 1);
      ::setenv("TRIREME_JOB", run.c_str(), 1);
      try {
        launch(comm::processes{.deadline = 1s}, body);
      } catch (std::exception const& problem) {
        return comm::reports(problem.what()) ? problem.what() : "";
      }
      return "no error";
    });
  std::vector<std::string> all(3);
  for (auto rank = all.size(); rank-- > 0;) {
    auto& each = *std::next(ranks.begin(), static_cast<std::ptrdiff_t>(rank));
    if (rank == 0 && stands_still) ::kill(each.pid, SIGKILL);
    all[rank] = each.result();
  }
  return all;
}

}  // namespace

TEST_CASE("if rank 0 is killed, only the lowest remaining rank prints the error", "[comm][report]") {
  watchdog const guard("rank 0 is killed");
  auto const said = printed([](auto& world) {
    world.barrier();
    if (world.rank() == 0) ::raise(SIGKILL);
    world.barrier();
  });
  INFO(said[1]);
  CHECK(contains(said[1], "rank 0 has died"));
  CHECK(contains(said[1], "barrier"));
  CHECK(said[2].empty());
}

TEST_CASE("if rank 0 is stopped, only the lowest of the others prints the error", "[comm][report]") {
  watchdog const guard("rank 0 is stopped");
  auto const said = printed(
      [](auto& world) {
        world.barrier();
        if (world.rank() == 0) ::raise(SIGSTOP);
        world.barrier();
      },
      true);
  INFO(said[1]);
  CHECK(contains(said[1], "waited 1s for rank 0"));
  CHECK(contains(said[1], "barrier"));
  CHECK(said[2].empty());
}

TEST_CASE("while rank 0 runs, it prints the errors of other ranks", "[comm][report]") {
  watchdog const guard("rank 1 throws");
  auto const said = printed([](auto& world) {
    world.barrier();
    if (world.rank() == 1) throw config_error("no more");
    world.barrier();
  });
  INFO(said[0]);
  CHECK(contains(said[0], "rank 1 ended with an error: no more"));
  CHECK(said[1].empty());
  CHECK(said[2].empty());
}

TEST_CASE("a rank that comes late to an error that was printed prints nothing", "[comm][report]") {
  watchdog const guard("rank 0 is late");
  auto const said = printed([](auto& world) {
    world.barrier();
    if (world.rank() == 0) std::this_thread::sleep_for(3s);
    world.barrier();
  });
  CHECK(said[0].empty());
  CHECK(contains(said[1], "waited 1s for rank 0"));
  CHECK(said[2].empty());
}

TEST_CASE("before there is a world, rank 0 prints the errors of all ranks", "[comm][report]") {
  for (auto const rank : {0, 1}) {
    child alone([rank] {
      ::setenv("TRIREME_RANK", text(rank).c_str(), 1);
      ::setenv("TRIREME_SIZE", "2", 1);
      return std::string(comm::reports("there is no such option") ? "told" : "silent");
    });
    CHECK(alone.result() == (rank == 0 ? "told" : "silent"));
  }
}
