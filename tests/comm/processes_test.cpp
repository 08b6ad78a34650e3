// test-sanitize: address
#include "trireme/comm/processes.hpp"
#include "trireme/comm/rendezvous.hpp"

#include <filesystem>
#include <list>
#include <locale>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "child.hpp"

namespace {

using namespace trireme;
using namespace std::chrono_literals;
using variables = std::initializer_list<std::pair<char const*, std::string>>;

static_assert(communicator<comm::processes_world>);
static_assert(has_all_reduce<comm::processes_world, float>);

void set(variables const& all) {
  for (auto const& [name, value] : all) ::setenv(name, value.c_str(), 1);
}
/// A folder of this test alone, for the meetings of its ranks; made before the first meeting.
scratch const folder;
/// As torchrun starts rank `rank` of `size` on one machine.
void as_torchrun(int rank, int size, std::string const& run, int restarts = 0) {
  auto const r = std::to_string(rank), n = std::to_string(size);
  set({{"TMPDIR", folder.path()},
       {"RANK", r},
       {"WORLD_SIZE", n},
       {"LOCAL_RANK", r},
       {"LOCAL_WORLD_SIZE", n},
       {"MASTER_ADDR", "localhost"},
       {"MASTER_PORT", "1"},  // no process may listen there
       {"TORCHELASTIC_RUN_ID", run},
       {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts)}});
}
/// A run id that no other test has.
std::string new_run() {
  static int number = 0;
  return text(::getpid(), ".", ++number);
}
std::string meetings() { return comm::detail::meeting_directory(folder.path()); }
std::size_t descriptors() {
  std::filesystem::directory_iterator const all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
/// The sum of rank + 1 over all ranks, by all_reduce.
std::string sum(comm::processes const& description) {
  return launch(description, [](auto& world) {
    float value = static_cast<float>(world.rank() + 1);
    world.all_reduce(tensor_view<float>(&value, shape{1}));
    return text(world.rank(), " of ", world.size(), ": ", value);
  });
}

}  // namespace

TEST_CASE("without a launcher there is one rank, and its result is returned", "[comm][processes]") {
  watchdog const guard("one rank");
  child alone([] { return sum({}); });
  CHECK(alone.result() == "0 of 1: 1");
}

TEST_CASE("ranks that torchrun has started can launch any number of times, and leave no files", "[comm][processes]") {
  watchdog const guard("ranks of torchrun");
  auto const run = new_run();
  std::list<child> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      as_torchrun(rank, 3, run);
      auto const before = descriptors();
      std::string said;
      for (int again = 0; again < 3; ++again) said += sum({.deadline = 30s}) + "; ";
      return said + (descriptors() == before ? "nothing open" : "something is still open");
    });
  int rank = 0;
  for (auto& each : ranks) {
    auto const one = text(rank++, " of 3: 6; ");
    CHECK(each.result() == one + one + one + "nothing open");
  }
  CHECK_FALSE(std::filesystem::exists(meetings()));
}

TEST_CASE("a restart after a kill meets again, and removes the files that were left", "[comm][processes]") {
  watchdog const guard("a restart");
  auto const run = new_run();
  {
    child killed([&] {
      as_torchrun(0, 2, run);
      return sum({.deadline = 60s});
    });
    while (!std::filesystem::exists(meetings()) || std::filesystem::is_empty(meetings()))
      std::this_thread::sleep_for(1ms);
  }
  CHECK(std::filesystem::exists(meetings()));  // its file is still there
  std::list<child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      as_torchrun(rank, 2, run, 1);
      return sum({.deadline = 30s});
    });
  for (auto& each : ranks) CHECK(contains(each.result(), "of 2: 3"));
  CHECK_FALSE(std::filesystem::exists(meetings()));
}

TEST_CASE("the other ranks name a rank that ends with an error or is killed", "[comm][processes]") {
  watchdog const guard("a rank that fails");
  for (bool const killed : {false, true}) {
    auto const run = new_run();
    std::list<child> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&, rank] {
        as_torchrun(rank, 3, run);
        return launch(comm::processes{.deadline = 20s}, [&](auto& world) -> std::string {
          world.barrier();
          if (rank == 1 && killed) ::raise(SIGKILL);
          if (rank == 1) throw config_error("no more");
          world.barrier();
          return "went on";
        });
      });
    auto each = ranks.begin();
    auto const first = each++->result(), failed = each++->result(), last = each->result();
    for (auto const& said : {first, last}) {
      INFO(said);
      CHECK(contains(said, "failed: "));
      CHECK(contains(said, "trireme::comm::processes: "));
      CHECK(contains(said, killed ? "rank 1 has died" : "rank 1 ended with an error: no more"));
    }
    CHECK(failed == (killed ? "" : "failed: no more"));
  }
}

TEST_CASE("ranks that never come are named", "[comm][processes]") {
  watchdog const guard("ranks that never come");
  auto const run = new_run();
  std::list<child> ranks;
  for (int const rank : {0, 2})
    ranks.emplace_back([&, rank] {
      as_torchrun(rank, 4, run);
      return sum({.deadline = 500ms});
    });
  for (auto& each : ranks) {
    auto const said = each.result();
    INFO(said);
    CHECK(contains(said, "failed: trireme::comm::processes: ranks 1, 3 of 4 did not arrive"));
    CHECK(contains(said,
                   "torchrun's RANK, WORLD_SIZE set the number of ranks to 4; to run this process alone set "
                   "TRIREME_RANK=0 and TRIREME_SIZE=1; is every rank started?"));
  }
}

TEST_CASE("a shell inside a Slurm job is one rank, and a Slurm step whose other tasks do not come is an error",
          "[comm][processes]") {
  watchdog const guard("Slurm");
  auto const in_job = [](variables const& more) {
    set({{"TMPDIR", folder.path()},
         {"SLURM_JOB_ID", text(::getpid())},
         {"SLURM_NTASKS", "4"},
         {"SLURM_PROCID", "0"},
         {"SLURM_NODEID", "0"},
         {"SLURM_LOCALID", "0"},
         {"SLURM_TASKS_PER_NODE", "4"}});
    set(more);
    return sum({.deadline = 500ms});
  };
  child shell([&] { return in_job({{"SLURM_STEP_ID", "4294967290"}}); });
  CHECK(shell.result() == "0 of 1: 1");
  child typed([&] {
    return in_job({{"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_NUM_TASKS", "4"},
                   {"SLURM_PTY_PORT", "40001"},
                   {"SLURM_TASK_PID", text(::getppid())}});
  });
  CHECK(typed.result() == "0 of 1: 1");
  child left([&] { return in_job({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}); });
  auto const said = left.result();
  INFO(said);
  CHECK(contains(said, "ranks 1, 2, 3 of 4 did not arrive"));
  CHECK(contains(said,
                 "a Slurm step's SLURM_PROCID, SLURM_STEP_NUM_TASKS set the number of ranks to 4; to run this "
                 "process alone set TRIREME_RANK=0 and TRIREME_SIZE=1"));
  child alone([&] { return in_job({{"SLURM_STEP_ID", "0"}, {"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "1"}}); });
  CHECK(alone.result() == "0 of 1: 1");
}

TEST_CASE("ranks meet whatever the program's locale is", "[comm][processes]") {
  watchdog const guard("a global locale");
  struct other_numbers : std::numpunct<char> {  // 1234.5 is 1.2.3.4,5
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\1"; }
  };
  auto const run = new_run();
  std::list<child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      if (rank == 1) std::locale::global(std::locale(std::locale::classic(), new other_numbers));
      as_torchrun(rank, 2, run);
      return sum({.deadline = 10s});
    });
  int rank = 0;
  for (auto& each : ranks) CHECK(each.result() == text(rank++, " of 2: 3"));
}

TEST_CASE("an impossible environment is refused", "[comm][processes]") {
  watchdog const guard("an environment that cannot be");
  auto const said = [](variables const& all) {
    return child([&] {
             set(all);
             return sum({});
           })
        .result();
  };
  auto const two_machines = said({{"RANK", "0"},
                                  {"WORLD_SIZE", "4"},
                                  {"LOCAL_RANK", "0"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", "a"},
                                  {"MASTER_PORT", "1"}});
  INFO(two_machines);
  CHECK(contains(two_machines,
                 "failed: trireme::comm::processes: the 4 ranks are on several machines (2 on this one), "
                 "but comm::processes connects one machine"));
  CHECK(contains(said({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "failed: trireme::comm::bootstrap: "));
  CHECK(contains(said({{"PMIX_RANK", "1"}}), "does not give the number of ranks"));
  for (auto const* many : {"257", "2147483647"}) {
    auto const too_many = said({{"RANK", "0"}, {"WORLD_SIZE", many}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
    CHECK(contains(too_many, text("(RANK, WORLD_SIZE) sets the number of ranks to ", many,
                                  " ranks, but shared memory holds at most 256")));
  }
  CHECK(contains(said({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "this run, started by PMI, has no id"));
  CHECK(contains(said({{"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "2"}, {"TRIREME_RENDEZVOUS", "localhost:4000"}}),
                 "needs a secret of at least 32 characters"));
}

TEST_CASE("a description prints as its source", "[comm][processes]") {
  CHECK(to_string(comm::processes{.deadline = 1500ms}) == "comm::processes{.deadline = 1500ms}");
}
