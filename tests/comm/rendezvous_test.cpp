// test-sanitize: thread address
#include "trireme/comm/rendezvous.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"

namespace {

using namespace trireme;
using namespace std::chrono_literals;

/// Where ranks meet by a file.
struct meeting_place : scratch {
  [[nodiscard]] std::string file() const { return *this / "meeting"; }
  [[nodiscard]] bool is_empty() const { return entries() == 0; }
};

/// Runs body(rank) in one thread a rank; returns the error of each, or "".
std::vector<std::string> on_ranks(int size, std::function<void(int)> const& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { errors[static_cast<std::size_t>(rank)] = sentence_of([&] { body(rank); }); });
  for (auto& each : threads) each.join();
  return errors;
}
bool all_empty(std::vector<std::string> const& errors) {
  for (auto const& each : errors)
    if (!each.empty()) UNSCOPED_INFO(each);
  return std::all_of(errors.begin(), errors.end(), [](auto const& each) { return each.empty(); });
}

/// A port that was free a moment ago.
int free_port() {
  auto const at = comm::detail::resolve("127.0.0.1", 0);
  int failed = 0;
  return comm::detail::port_of(comm::detail::listen_at(*at, failed));
}
comm::rendezvous at_port(std::chrono::milliseconds deadline = 20s) {
  return {.port = free_port(), .secret = std::string(32, 's'), .deadline = deadline};
}

}  // namespace

TEST_CASE("ranks meet by a file, gather, and leave nothing behind", "[comm][rendezvous]") {
  watchdog const guard("a meeting by a file");
  meeting_place const here;
  for (int const size : {1, 2, 3, 8}) {
    auto const errors = on_ranks(size, [&](int rank) {
      comm::meeting met({.file = here.file(), .deadline = 20s}, rank, size);
      for (int round = 0; round < 3; ++round) {
        // 0 bytes, a few, and the most that is allowed
        auto const content = [&](int r) {
          return std::string(round == 2 ? 65536U : static_cast<unsigned>(round * r), char('a' + r));
        };
        auto const all = met.all_gather(content(rank));
        if (all.size() != static_cast<std::size_t>(size)) throw comm_error("not one content a rank");
        for (int r = 0; r < size; ++r)
          if (all[static_cast<std::size_t>(r)] != content(r))
            throw comm_error(text("rank ", r, " sent something else"));
      }
    });
    CHECK(all_empty(errors));
    CHECK(here.is_empty());
  }
}

TEST_CASE("ranks meet at a port with a secret, again and again at the same one", "[comm][rendezvous]") {
  watchdog const guard("a meeting at a port");
  auto const where = at_port();
  for (int again = 0; again < 5; ++again) {
    auto const errors = on_ranks(3, [&](int rank) {
      if (rank == 0 && again == 1) std::this_thread::sleep_for(100ms);  // the others come first
      comm::meeting met(where, rank, 3);
      if (met.all_gather(std::to_string(rank)) != std::vector<std::string>{"0", "1", "2"}) throw comm_error("wrong");
    });
    CHECK(all_empty(errors));
  }
}

TEST_CASE("one rank meets without a socket or a file", "[comm][rendezvous]") {
  comm::meeting met({}, 0, 1);
  CHECK(met.all_gather("x") == std::vector<std::string>{"x"});
}

TEST_CASE("ranks that do not come are named on the ranks that came", "[comm][rendezvous]") {
  watchdog const guard("ranks that do not come");
  meeting_place const here;
  auto const errors = on_ranks(4, [&](int rank) {
    if (rank == 1 || rank == 3) return;
    comm::meeting const met({.file = here.file(), .deadline = 400ms}, rank, 4, "trireme::comm::processes");
  });
  for (int const rank : {0, 2}) {
    INFO(errors[static_cast<std::size_t>(rank)]);
    CHECK(contains(errors[static_cast<std::size_t>(rank)],
                   "trireme::comm::processes: ranks 1, 3 of 4 did not arrive at "));
    CHECK(contains(errors[static_cast<std::size_t>(rank)], "within 400ms"));
  }
  CHECK(here.is_empty());

  auto const alone = on_ranks(2, [&](int rank) {
    if (rank == 1) comm::meeting const met({.file = here.file(), .deadline = 200ms}, 1, 2);
  });
  CHECK(contains(alone[1], "rank 1 did not find rank 0 of 2 at " + here.file() + " within 200ms"));
}

TEST_CASE("a rank that disconnects or sends nothing is named on the others", "[comm][rendezvous]") {
  watchdog const guard("a rank that leaves");
  meeting_place const here;
  for (bool const leaves : {true, false}) {
    std::atomic<bool> over{false};
    auto const errors = on_ranks(3, [&](int rank) {
      comm::meeting met({.file = here.file(), .deadline = 400ms}, rank, 3);
      if (rank == 2) {
        while (!leaves && !over) std::this_thread::sleep_for(5ms);
        return;
      }
      try {
        static_cast<void>(met.all_gather("here"));
      } catch (error const&) {
        over = true;
        throw;
      }
    });
    auto const expected = leaves ? "rank 2 of 3 has left the meeting" : "rank 2 of 3 did not send in the meeting";
    CHECK(contains(errors[0], expected));
    CHECK(contains(errors[1], expected));
  }
  auto const errors = on_ranks(2, [&](int rank) {
    comm::meeting met({.file = here.file(), .deadline = 5s}, rank, 2);
    if (rank == 1) static_cast<void>(met.all_gather("here"));
  });
  CHECK(contains(errors[1], "rank 0 of 2 has left the meeting"));
}

TEST_CASE("a rank of another meeting is refused with the reason, and the others meet", "[comm][rendezvous]") {
  watchdog const guard("a rank that is refused");
  auto const where = at_port();
  std::atomic<int> refused{0};
  auto const errors = on_ranks(4, [&](int thread) {
    if (thread < 2) {
      while (thread == 1 && refused < 2) std::this_thread::sleep_for(1ms);
      comm::meeting met(where, thread, 2);
      static_cast<void>(met.all_gather(""));
      return;
    }
    struct count {
      std::atomic<int>& refused;
      ~count() { ++refused; }
    } const counted{refused};
    comm::meeting const met(where, thread, thread == 2 ? 3 : 4);
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  CHECK(contains(errors[2], "rank 0 refuses this process: rank 2 was started with 3 ranks, but rank 0 with 2"));
  CHECK(contains(errors[3], "rank 0 refuses this process: rank 3 was started with 4 ranks, but rank 0 with 2"));

  auto const where_twice = at_port(1s);
  auto const twice = on_ranks(3, [&](int thread) { comm::meeting const met(where_twice, thread == 0 ? 0 : 1, 3); });
  CHECK(contains(twice[1] + twice[2], "rank 1 has connected twice"));
  CHECK(contains(twice[0], "rank 2 of 3 did not arrive"));
}

TEST_CASE("other jobs and other secrets do not meet", "[comm][rendezvous]") {
  watchdog const guard("another job");
  for (bool const other_job : {true, false}) {
    auto where = at_port(1s);
    auto const errors = on_ranks(2, [&](int rank) {
      auto mine = where;
      if (rank == 1 && other_job) mine.job = "other";
      if (rank == 1 && !other_job) mine.secret.back() = 't';
      comm::meeting const met(mine, rank, 2);
    });
    CHECK(contains(errors[0], "rank 1 of 2 did not arrive"));
    CHECK(contains(errors[1], "the process that listens there has another secret or another job"));
    CHECK_FALSE(contains(errors[0] + errors[1], where.secret));
  }
}

TEST_CASE("an impossible meeting is refused before anything is sent", "[comm][rendezvous]") {
  auto const message = [](comm::rendezvous const& where, int rank, int size) {
    try {
      comm::meeting const met(where, rank, size);
      return std::string("met");
    } catch (config_error const& e) {
      return std::string(e.what());
    }
  };
  std::string const secret(32, 's');
  CHECK(contains(message({.port = 4000, .secret = "short"}, 0, 2), "needs a secret of at least 32 characters"));
  CHECK(contains(message({.port = 0, .secret = secret}, 0, 2), ".port is 0"));
  CHECK(contains(message({.port = 4000, .secret = secret}, 2, 2), "rank 2 of 2 is out of range"));
  CHECK(contains(message({.port = 4000, .secret = secret, .deadline = 0ms}, 0, 2), ".deadline is 0s"));
  CHECK(contains(message({.port = 4000, .secret = secret}, 0, INT_MAX), "2147483647 ranks are more than the 65536"));
  CHECK(contains(message({.address = "0.0.0.0", .port = 4000, .secret = secret}, 0, 2), "TRIREME_RENDEZVOUS_REMOTE=1"));
  CHECK(
      contains(message({.address = "192.0.2.1", .port = 4000, .secret = secret}, 1, 2), "TRIREME_RENDEZVOUS_REMOTE=1"));
  CHECK(contains(message({.address = "192.0.2.1", .port = 4000, .secret = secret, .remote = true}, 0, 2),
                 "cannot listen"));
  CHECK(contains(message({.file = "/nowhere/at/all"}, 0, 2), "cannot write /nowhere/at/all"));
  comm::meeting met({}, 0, 1);
  CHECK_THROWS_AS(met.all_gather(std::string(65537, 'x')), config_error);
}

TEST_CASE("the file of a killed rank 0 is detected and replaced", "[comm][rendezvous]") {
  watchdog const guard("a killed rank 0");
  meeting_place const here;
  auto const child = ::fork();
  if (child == 0) {
    try {
      comm::meeting const met({.file = here.file(), .deadline = 60s}, 0, 2);
    } catch (...) {
    }
    std::_Exit(0);
  }
  while (!std::filesystem::exists(here.file())) std::this_thread::sleep_for(1ms);
  struct ::stat status {};
  ::stat(here.file().c_str(), &status);
  CHECK((status.st_mode & 0777) == 0600);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(std::filesystem::exists(here.file()));
  auto const errors = on_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(200ms);  // rank 1 finds the dead one first
    comm::meeting met({.file = here.file(), .deadline = 20s}, rank, 2);
    static_cast<void>(met.all_gather(""));
  });
  CHECK(all_empty(errors));
  CHECK(here.is_empty());
}

TEST_CASE("two runs do not meet in one file", "[comm][rendezvous]") {
  watchdog const guard("two runs in one file");
  meeting_place const here;
  std::string second;
  auto const errors = on_ranks(2, [&](int rank) {
    if (rank == 1) {
      while (!std::filesystem::exists(here.file())) std::this_thread::sleep_for(1ms);
      try {
        comm::meeting const met({.file = here.file(), .deadline = 5s}, 0, 2);
      } catch (config_error const& e) {
        second = e.what();
      }
    }
    comm::meeting const met({.file = here.file(), .deadline = 20s}, rank, 2);
  });
  CHECK(all_empty(errors));
  CHECK(contains(second, "another run meets at " + here.file()));
}

TEST_CASE("a meeting file that is a link, or that other users may read, is not used", "[comm][rendezvous]") {
  watchdog const guard("a file that is not private");
  meeting_place const here;
  auto const why = [&] {
    std::string sentence;
    CHECK_FALSE(comm::detail::read_note(here.file(), sentence));
    return sentence;
  };
  std::ofstream(here.file()) << "anything";
  ::chmod(here.file().c_str(), 0644);
  CHECK(contains(why(), "must belong to this user and be unreadable for others"));
  ::chmod(here.file().c_str(), 0600);
  CHECK(contains(why(), "is not the file of a meeting"));
  CHECK(comm::detail::read_secret(here.file()) == "anything");
  ::chmod(here.file().c_str(), 0640);
  CHECK_THROWS_AS(comm::detail::read_secret(here.file()), config_error);
  std::filesystem::create_symlink(here.file(), here / "link");
  CHECK_THROWS_AS(comm::detail::read_secret(here / "link"), config_error);
}

TEST_CASE("the environment sets the place of the meeting", "[comm][rendezvous]") {
  using variables = std::map<std::string, std::string>;
  auto const from = [](variables const& given) {
    comm::bootstrap::lookup const look = [&](char const* name) -> std::optional<std::string> {
      auto const found = given.find(name);
      return found == given.end() ? std::nullopt : std::optional(found->second);
    };
    return comm::rendezvous::from(comm::bootstrap::detect(look), look);
  };
  variables const torchrun{{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_RUN_ID", "run"},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"TMPDIR", "/some"}};
  auto const with = [](variables base, variables const& more) {
    for (auto const& [name, value] : more) base[name] = value;
    return base;
  };
  auto const first = from(torchrun);
  CHECK(contains(first.file, text("/some/trireme-", ::geteuid(), "/")));
  CHECK(from(with(torchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})) == first);
  CHECK(from(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).file != first.file);
  CHECK(from(with(torchrun, {{"MASTER_PORT", "29501"}})).file != first.file);

  // The agents of one machine have the loopback as their address.
  variables const one_here{{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"TRIREME_SECRET", "s"}};
  CHECK(contains(from(with(torchrun, one_here)).file, text("/some/trireme-", ::geteuid(), "/")));
  auto const several = from(with(with(torchrun, one_here), {{"MASTER_ADDR", "node0"}}));
  CHECK(several.file.empty());
  CHECK(several.address == "node0");
  CHECK(several.port == 29501);  // 29500 is the agent's
  CHECK(several.secret == "s");
  CHECK_FALSE(several.remote);

  variables const stated{{"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "2"}};
  CHECK_THROWS_AS(from(stated), config_error);  // such runs cannot be distinguished
  CHECK_FALSE(from(with(stated, {{"TRIREME_JOB", "a"}})).file.empty());
  CHECK(from(with(stated, {{"TRIREME_RENDEZVOUS", "file:/x/y"}})).file == "/x/y");
  auto const stated_port = from(with(stated, {{"TRIREME_RENDEZVOUS", "[::1]:40"}, {"TRIREME_RENDEZVOUS_REMOTE", "1"}}));
  CHECK(stated_port.address == "::1");
  CHECK(stated_port.port == 40);
  CHECK(stated_port.remote);
  CHECK(to_string(comm::rendezvous{.port = 4, .secret = "never shown"}) ==
        "comm::rendezvous{.address = \"127.0.0.1\", .port = 4, .secret = ..., .deadline = 60s}");
}
