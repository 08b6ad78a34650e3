// test-sanitize: address
// test-timeout: 200
#include "trireme/comm/elastic.hpp"

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "child.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

/// What hand_over() and take_over() need of a trainer; its state is a sum that depends on all steps and ranks.
struct counter {
  comm::any_world& world;
  std::int64_t step = 0, sum = 0;

  [[nodiscard]] std::int64_t steps() const { return step; }
  void save(std::string const& path) {
    if (world.rank() == 0) std::ofstream(path + "/state") << step << ' ' << sum;
    world.barrier();
  }
  int load(std::string const& path) {
    std::ifstream(path + "/state") >> step >> sum;
    return 0;
  }
  void take_step() {
    std::int64_t more = step + world.rank() + 1;
    world.all_reduce(tensor_view<std::int64_t>(&more, shape{1}));
    sum = (sum * 3 + more) % 1000003;
    ++step;
  }
};

/// A run in a directory of its own.
struct run {
  scratch folder;
  std::string directory = folder.path() + "/members";
  std::list<child> ranks;
  comm::elastic how{};
  std::chrono::milliseconds deadline = 20s;

  /// Steps until `steps`. `each(step, members)` is called before each. Returns what the process has seen of the run:
  /// "number:first step:ranks " of each membership, and the sum at its end.
  template <class Each>
  std::string train(bool joins, std::int64_t steps, Each const& each) {
    std::string seen;
    auto options = how;
    options.directory = directory;
    options.join = joins;
    launch(comm::processes{.deadline = deadline}, options, [&](auto& world, comm::membership& members) {
      counter it{world};
      members.take_over(it, [&] { it.step = members.number() == 0 ? 0 : 1000; });  // as if a checkpoint were there
      seen += text(members.number(), ":", it.step, ":", world.size(), members.is_new() ? "+" : "", " ");
      while (it.step % 1000 < steps) {
        each(it.step, members, world);
        it.take_step();
        std::int32_t due = members.is_due() ? 1 : 0;
        world.all_reduce(tensor_view<std::int32_t>(&due, shape{1}), reduction::max{});
        if (due != 0 && members.hand_over(it)) return;
        if (members.is_over()) break;
      }
      seen += text("sum ", it.sum);
    });
    return seen;
  }
  template <class Each>
  child& start(int rank, int size, std::int64_t steps, Each const& each) {
    return ranks.emplace_back([this, rank, size, steps, each] {
      for (auto const& [name, value] : {std::pair{"TMPDIR", folder.path()}, std::pair{"TRIREME_RANK", text(rank)},
                                        std::pair{"TRIREME_SIZE", text(size)},
                                        std::pair{"TRIREME_JOB", text("elastic.", ::getppid(), folder.path())}})
        ::setenv(name, value.c_str(), 1);
      return train(false, steps, each);
    });
  }
  template <class Each>
  child& join(std::int64_t steps, Each const& each) {
    return ranks.emplace_back([this, steps, each] { return train(true, steps, each); });
  }
  /// Waits until so many have announced themselves.
  void until_announced(int count) const {
    for (;;) {
      int found = 0;
      if (std::filesystem::exists(directory))
        for (auto const& file : std::filesystem::directory_iterator(directory))
          if (file.path().filename().string().starts_with("join-")) ++found;
      if (found == count) return;
      std::this_thread::sleep_for(2ms);
    }
  }
  [[nodiscard]] std::vector<std::string> results() {
    std::vector<std::string> said;
    for (auto& each : ranks) said.push_back(each.result());
    return said;
  }
};
auto const nothing = [](std::int64_t, comm::membership&, comm::any_world&) {};
/// Waits at a step until a file is there.
auto wait_at(std::int64_t step, std::string const& file) {
  return [=](std::int64_t now, comm::membership&, comm::any_world&) {
    while (now == step && !std::filesystem::exists(file)) std::this_thread::sleep_for(2ms);
  };
}
/// The sum after steps on so many ranks each.
std::int64_t expected(std::vector<int> const& ranks_of_steps) {
  std::int64_t sum = 0, step = 0;
  for (int const ranks : ranks_of_steps) {
    std::int64_t more = 0;
    for (int rank = 0; rank < ranks; ++rank) more += step + rank + 1;
    sum = (sum * 3 + more) % 1000003;
    ++step;
  }
  return sum;
}
void touch(std::string const& path) { std::ofstream(path) << '.'; }

}  // namespace

TEST_CASE("a process that announces itself joins between two steps, with the state of the others", "[comm][elastic]") {
  watchdog const guard("a process that joins");
  run it;
  auto const open = it.folder.path() + "/open";
  for (int rank = 0; rank < 2; ++rank) it.start(rank, 2, 6, wait_at(3, open));
  it.join(6, nothing);
  it.until_announced(1);
  touch(open);
  auto const said = it.results();
  // Steps 0 to 3 on two ranks, or fewer if the announcement was there earlier.
  auto const at = said[2].empty() ? '?' : said[2][2];
  REQUIRE((at >= '1' && at <= '4'));
  int const first = at - '0';
  std::vector<int> steps(6, 3);
  std::fill_n(steps.begin(), first, 2);
  auto const end = text("1:", first, ":3");
  CHECK(said[0] == text("0:0:2 ", end, " sum ", expected(steps)));
  CHECK(said[1] == said[0]);
  CHECK(said[2] == text(end, "+ sum ", expected(steps)));
  std::ifstream record(it.directory + "/memberships.jsonl");
  std::string line;
  std::getline(record, line);
  CHECK(contains(line, "\"membership\": 0, \"step\": 0, \"ranks\": 2, \"joined\": 0, \"left\": 0"));
  std::getline(record, line);
  CHECK(contains(line, text("\"membership\": 1, \"step\": ", first, ", \"ranks\": 3, \"joined\": 1, \"left\": 0")));
  CHECK(contains(line, "\"from\": \"memory\""));
}

TEST_CASE("ranks leave between two steps, the first one among them, and a run that all leave is over",
          "[comm][elastic]") {
  watchdog const guard("ranks that leave");
  run it;
  for (int rank = 0; rank < 3; ++rank)
    it.start(rank, 3, 9, [rank](std::int64_t step, comm::membership& members, comm::any_world&) {
      if (step == 2 + rank) members.leave();
    });
  auto const said = it.results();
  CHECK(said[0] == "0:0:3 ");
  CHECK(said[1] == "0:0:3 1:3:2 ");
  CHECK(said[2] == text("0:0:3 1:3:2 2:4:1 sum ", expected({3, 3, 3, 2, 1})));
}

TEST_CASE("the number of ranks stays a multiple of what is asked for", "[comm][elastic]") {
  watchdog const guard("ranks that join in pairs");
  run it;
  it.how.multiple = 2;
  auto const open = it.folder.path() + "/open";
  for (int rank = 0; rank < 2; ++rank)
    it.start(rank, 2, 8,
             [wait = wait_at(4, open)](std::int64_t step, comm::membership& members, comm::any_world& world) {
               wait(step, members, world);
               if (step == 1 && world.rank() == 0) members.leave();  // waits for another one that leaves
             });
  it.join(8, nothing);
  it.join(8, nothing);
  it.until_announced(2);
  touch(open);
  auto const said = it.results();
  for (auto const& each : said) {
    INFO(each);
    CHECK((contains(each, ":4") || contains(each, ":2 ")));
    CHECK_FALSE(contains(each, ":3"));
    CHECK_FALSE(contains(each, ":1 "));
    CHECK_FALSE(contains(each, "failed"));
  }
}

TEST_CASE("a process that has died after announcing itself is not waited for", "[comm][elastic]") {
  watchdog const guard("a process that dies before it joins");
  run it;
  auto& lost = it.join(4, nothing);
  it.until_announced(1);
  ::kill(lost.pid, SIGKILL);
  CHECK(lost.result().empty());
  it.ranks.clear();
  it.start(0, 1, 4, nothing);
  CHECK(it.results() == std::vector<std::string>{text("0:0:1 sum ", expected({1, 1, 1, 1}))});
}

TEST_CASE("the others go on from a checkpoint when a rank is killed, and take in who waits", "[comm][elastic]") {
  watchdog const guard("a rank that is killed");
  run it;
  for (int rank = 0; rank < 3; ++rank)
    it.start(rank, 3, 5, [rank](std::int64_t step, comm::membership&, comm::any_world&) {
      if (rank == 0 && step == 2) ::raise(SIGKILL);
    });
  auto const said = it.results();
  CHECK(said[0].empty());
  CHECK(contains(said[1], "0:0:3 1:1000:2 sum "));
  CHECK(said[2] == said[1]);
}

TEST_CASE("mistakes are named", "[comm][elastic]") {
  scratch folder;
  auto const refusal = [](comm::elastic const& how) {
    return sentence_of<std::exception>(
        [&] { launch(comm::processes{.deadline = 50ms}, how, [](comm::any_world&, comm::membership&) {}); });
  };
  auto const place = folder.path() + "/members";
  CHECK(contains(refusal({}), ".directory is empty"));
  CHECK(contains(refusal({.directory = place, .multiple = 0}), ".multiple is 0"));
  CHECK(contains(refusal({.directory = place, .multiple = 2}), "1 rank at the start, but .multiple is 2"));
  CHECK(contains(refusal({.directory = place, .most_ranks = 0}), ".most_ranks is 0"));
  CHECK(contains(refusal({.directory = place, .attempts = -1}), ".attempts is -1"));
  CHECK(contains(refusal({.directory = place, .memory = "here"}), ".memory is \"here\""));
  CHECK(contains(refusal({.directory = place, .join = true}), "has not come to a boundary within 50ms"));
  CHECK(std::filesystem::is_empty(place));  // the announcement is withdrawn
  CHECK(refusal({.directory = place}).empty());
  CHECK(contains(refusal({.directory = place, .join = true}), "has ended, so there is nothing to join"));
  ::chmod(place.c_str(), 0777);
  CHECK(contains(refusal({.directory = place}), "others cannot write to"));
}
