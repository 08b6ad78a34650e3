// test-timeout: 300
// test-takes: 30
#include "trireme/comm/processes.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"
#include "trireme/comm/lend.hpp"

using namespace std::chrono_literals;

namespace {

/// This program again, as rank `rank` of `size`; its output goes to the file `said`.
::pid_t start_rank(int rank, int size, std::string const& meeting, std::string const& said) {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  variables.push_back(trireme::text("TRIREME_RANK=", rank));
  variables.push_back(trireme::text("TRIREME_SIZE=", size));
  variables.push_back("TRIREME_RENDEZVOUS=file:" + meeting);
  std::vector<char*> environment;
  for (auto& each : variables) environment.push_back(each.data());
  environment.push_back(nullptr);
  std::string name = "rank";
  std::string test = "[rank]";
  char* arguments[] = {name.data(), test.data(), nullptr};
  ::posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  ::pid_t process = -1;
  int const error = ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments, environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("posix_spawn: " + std::string(std::strerror(error)));
  return process;
}

std::string content(std::string const& path) {
  std::ostringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

}  // namespace

TEST_CASE("one rank of the ladder, in the world that its environment describes", "[.rank]") {
  watchdog dog("processes", 120s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(name);
    CHECK_NOTHROW(trireme::launch(trireme::comm::processes{.deadline = 60s}, rung));
  });
}

TEST_CASE("every rung holds on 1, 2, 3 and 4 processes that meet by a rendezvous", "[ladder][processes]") {
  int const size = GENERATE(1, 2, 3, 4);
  watchdog dog("waiting for the processes", 200s);
  scratch const folder;
  auto const said = [&](int rank) { return folder / trireme::text("rank", rank); };
  std::vector<::pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(start_rank(rank, size, folder / "meeting", said(rank)));
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    CHECK(::waitpid(ranks[static_cast<std::size_t>(rank)], &status, 0) > 0);
    INFO("rank " << rank << " of " << size << " said:\n" << content(said(rank)));
    CHECK(status == 0);
  }
}

TEST_CASE("every rung holds on threads used through any_world", "[ladder][any]") {
  int const size = GENERATE(1, 3, 4);
  watchdog dog("lent", 200s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(name << " on " << size << " ranks");
    CHECK_NOTHROW(trireme::launch(trireme::comm::threads{.ranks = size, .deadline = 60s}, [&](auto& world) {
      auto lent = trireme::comm::lend(world);
      rung(lent);
    }));
  });
}

TEST_CASE("any_world counts traffic as its owner does, and names the owner in errors", "[any]") {
  trireme::launch(trireme::comm::threads{.ranks = 2}, [](auto& world) {
    auto lent = trireme::comm::lend(world);
    static_assert(std::is_same_v<decltype(lent), trireme::comm::any_world>);
    CHECK(!trireme::requests_travel_alone(lent));  // as those of its owner, whose ranks are threads
    CHECK(!trireme::requests_travel_alone(world));
    std::vector<float> values(100, static_cast<float>(lent.rank()));
    lent.all_reduce(values);
    std::string said;
    try {
      lent.broadcast(values, 2);
    } catch (trireme::config_error const& problem) {
      said = problem.what();
    }
    auto group = lent.split(0, -lent.rank());
    if (lent.rank() != 0) return;
    CHECK(values[99] == 1.0F);
    CHECK(lent.traffic().bytes_sent == 400);
    CHECK(world.traffic().bytes_sent == 400);
    CHECK(said == "trireme::comm::threads::broadcast: root 2 is not one of the 2 ranks");
    CHECK(group.rank() == 1);
    CHECK(group.traffic().bytes_sent == 0);
  });
}
