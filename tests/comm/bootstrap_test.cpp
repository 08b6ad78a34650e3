// test-sanitize: address
#include "trireme/comm/bootstrap.hpp"

#include <map>

#include "../catch.hpp"

namespace {

using namespace trireme;
using namespace trireme::comm;
using variables = std::map<std::string, std::string>;

bootstrap::launch_info detect(variables const& given) {
  return bootstrap::detect([&](char const* name) -> std::optional<std::string> {
    auto const found = given.find(name);
    return found == given.end() ? std::nullopt : std::optional(found->second);
  });
}
/// The error for an environment that is invalid.
std::string refusal(variables const& given) {
  try {
    return "accepted: " + to_string(detect(given));
  } catch (config_error const& e) {
    return e.what();
  }
}
variables with(variables base, variables const& more) {
  for (auto const& [name, value] : more) base[name] = value;
  return base;
}
variables without(variables base, std::string const& name) {
  base.erase(name);
  return base;
}
bool has(std::string const& text, std::string_view part) { return text.find(part) != text.npos; }

// As torchrun 2.x sets them on the second of two machines.
variables const torchrun{{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "a1"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}};
// As Open MPI 4.1 sets them.
variables const open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_RANK", "1"},
                         {"PMIX_NAMESPACE", "1881800705"}};
// As MPICH 4.0's mpiexec sets them.
variables const mpich{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
// As srun sets them for the third task of five on two nodes.
variables const slurm{
    {"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "8"},  {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
    {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}, {"SLURM_NODEID", "1"},         {"SLURM_LOCALID", "0"}};
variables const stated{{"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "2"}, {"TRIREME_RENDEZVOUS", "127.0.0.1:4000"}};

}  // namespace

TEST_CASE("without a launcher there is one rank", "[comm][bootstrap]") {
  auto const here = detect({{"HOME", "/root"}, {"MASTER_ADDR", "left over"}});
  CHECK(here == bootstrap::launch_info{});
  CHECK(to_string(here) == "rank 0 of 1, started by no launcher");
  CHECK(here.is_one_machine());
}

TEST_CASE("each launcher's own variables are understood", "[comm][bootstrap]") {
  using bootstrap::launcher;
  auto const by_torchrun = detect(torchrun);
  CHECK(by_torchrun.started_by == launcher::torchrun);
  CHECK(to_string(by_torchrun) == "rank 3 of 4, started by torchrun (RANK, WORLD_SIZE)");
  CHECK(by_torchrun.local_rank == 1);
  CHECK(by_torchrun.local_size == 2);
  CHECK_FALSE(by_torchrun.is_one_machine());
  CHECK(by_torchrun.address == "node0");
  CHECK(by_torchrun.port == 29500);
  CHECK(by_torchrun.job == "a1/2");

  // Two agents on one machine: each counts its restarts by itself, so the run's name is without the count.
  for (auto const* const address : {"localhost", "127.0.0.1", "::1"}) {
    auto const together = detect(with(torchrun, {{"MASTER_ADDR", address}}));
    CHECK(together.is_one_machine());
    CHECK(together.local_rank == 3);
    CHECK(together.job == "a1");
  }

  auto const by_open_mpi = detect(open_mpi);
  CHECK(by_open_mpi.started_by == launcher::open_mpi);
  CHECK(to_string(by_open_mpi) == "rank 1 of 2, started by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)");
  CHECK(by_open_mpi.is_one_machine());
  CHECK(by_open_mpi.job == "1881800705");

  auto const by_pmi = detect(mpich);
  CHECK(to_string(by_pmi) == "rank 2 of 3, started by PMI (PMI_RANK, PMI_SIZE)");
  CHECK(by_pmi.local_size == 1);
  auto const by_pmix = detect({{"PMIX_RANK", "4"}, {"PMIX_NAMESPACE", "n"}});
  CHECK(to_string(by_pmix) == "rank 4, started by PMI (PMIX_RANK)");
  CHECK(by_pmix.size == 0);

  auto const by_slurm = detect(slurm);
  CHECK(to_string(by_slurm) == "rank 3 of 5, started by a Slurm step (SLURM_PROCID, SLURM_STEP_NUM_TASKS)");
  CHECK(by_slurm.local_size == 2);
  CHECK(by_slurm.local_rank == 0);
  CHECK(by_slurm.job == "77.0");
  CHECK(to_string(detect(without(slurm, "SLURM_STEP_NUM_TASKS"))) ==
        "rank 3 of 8, started by a Slurm step (SLURM_PROCID, SLURM_NTASKS)");

  auto const by_hand = detect(stated);
  CHECK(to_string(by_hand) == "rank 0 of 2, started by hand (TRIREME_RANK, TRIREME_SIZE)");
  CHECK(by_hand.address == "127.0.0.1");
  CHECK(by_hand.port == 4000);
  CHECK(by_hand.has_address);
}

TEST_CASE("variables set by hand come first, then torchrun's, Open MPI's, PMI's and those of a Slurm step",
          "[comm][bootstrap]") {
  variables all = with(with(with(with(slurm, mpich), open_mpi), torchrun), stated);
  auto const who = [&] { return std::string(name_of(detect(all).started_by)); };
  CHECK(who() == "hand");
  all.erase("TRIREME_RANK"), all.erase("TRIREME_SIZE");
  CHECK(who() == "torchrun");
  all.erase("RANK");  // batch scripts export WORLD_SIZE alone for their steps
  CHECK(who() == "Open MPI");
  all.erase("OMPI_COMM_WORLD_RANK"), all.erase("OMPI_COMM_WORLD_SIZE");
  CHECK(who() == "PMI");
  all.erase("PMI_RANK"), all.erase("PMI_SIZE"), all.erase("PMIX_RANK");
  CHECK(who() == "a Slurm step");
  all.erase("SLURM_STEP_ID"), all.erase("WORLD_SIZE");  // a batch script itself
  CHECK(who() == "no launcher");
}

TEST_CASE("a shell inside a Slurm job is not taken for a task of a step", "[comm][bootstrap]") {
  auto const first = with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}});
  CHECK(detect(first).size == 5);
  for (auto const* const special : {"4294967290", "4294967291", "4294967292"})
    CHECK(detect(with(first, {{"SLURM_STEP_ID", special}})) == bootstrap::launch_info{});
  auto const typed = with(first, {{"SLURM_PTY_PORT", "41234"}, {"SLURM_TASK_PID", "1"}});
  CHECK(detect(typed) == bootstrap::launch_info{});                              // in the shell of srun --pty
  CHECK(detect(with(typed, {{"SLURM_TASK_PID", text(::getpid())}})).size == 5);  // srun --pty PROGRAM
  CHECK(detect(with(typed, {{"SLURM_PROCID", "3"}, {"SLURM_NODEID", "1"}})).size ==
        5);  // not the task with the terminal
}

TEST_CASE("TRIREME_RENDEZVOUS and TRIREME_JOB go with any launcher", "[comm][bootstrap]") {
  auto const here = detect(with(torchrun, {{"TRIREME_RENDEZVOUS", "file:/a/b"}, {"TRIREME_JOB", "mine"}}));
  CHECK(here.file == "/a/b");
  CHECK(here.address.empty());
  CHECK(here.job == "mine");
  CHECK(detect(with(stated, {{"TRIREME_RENDEZVOUS", "[fe80::1]:65535"}})).address == "fe80::1");
  // With TRIREME_RENDEZVOUS the agent's address is not needed.
  auto const elsewhere =
      with(without(without(torchrun, "MASTER_ADDR"), "MASTER_PORT"), {{"TRIREME_RENDEZVOUS", "h:1"}});
  CHECK(detect(elsewhere).address == "h");
}

TEST_CASE("an impossible environment is refused with the variable and its value", "[comm][bootstrap]") {
  auto const refused = [](variables const& given, std::string_view sentence) {
    auto const said = refusal(given);
    INFO(said);
    CHECK(has(said, "trireme::comm::bootstrap: "));
    CHECK(has(said, sentence));
    CHECK(said.find('\n') == said.npos);
  };
  refused(with(torchrun, {{"RANK", "three"}}), "RANK is \"three\", which is not a whole number");
  refused(with(torchrun, {{"RANK", ""}}), "RANK is \"\", which is not a whole number");
  refused(with(torchrun, {{"RANK", "1 "}}), "RANK is \"1 \", which is not a whole number");
  refused(with(torchrun, {{"RANK", "99999999999999"}}), "RANK is \"99999999999999\", which is not a whole number");
  refused(with(torchrun, {{"RANK", "-1"}}), "RANK is \"-1\", which is less than 0");
  refused(with(torchrun, {{"RANK", "4"}}), "RANK is 4 but WORLD_SIZE is 4; ranks are numbered from 0 to 3");
  refused(with(torchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE is \"0\", which is less than 1");
  refused(with(torchrun, {{"RANK", "a\nb\x01"}}), "RANK is \"a?b?\", which is not a whole number");
  refused(with(torchrun, {{"RANK", std::string(200, '9')}}), "999...\"");
  refused(with(torchrun, {{"LOCAL_RANK", "2"}}),
          "LOCAL_RANK is \"2\", which is not one of the 2 ranks of this machine");
  refused(with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE is \"5\", which is more than the 4 ranks");
  refused(with(torchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT is \"65536\", which is outside 1 to 65535");
  refused(without(torchrun, "MASTER_PORT"), "WORLD_SIZE is set (\"4\") but MASTER_PORT is not");
  refused(without(torchrun, "MASTER_ADDR"), "MASTER_ADDR is not");
  refused(without(torchrun, "RANK"), "WORLD_SIZE is set (\"4\") but RANK is not; set both or neither");
  refused(without(torchrun, "WORLD_SIZE"), "RANK is set (\"3\") but WORLD_SIZE is not; set both or neither");
  refused(with(open_mpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
          "OMPI_COMM_WORLD_SIZE is \"2\", which contradicts WORLD_SIZE, which is 1; unset RANK and WORLD_SIZE");
  variables const by_hand{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  refused(with(open_mpi, by_hand),
          "OMPI_COMM_WORLD_RANK is \"1\", which contradicts RANK, which is 0; unset RANK and WORLD_SIZE");
  refused(with(mpich, by_hand), "PMI_SIZE is \"3\", which contradicts WORLD_SIZE, which is 2");
  refused(with(slurm, by_hand), "SLURM_STEP_NUM_TASKS is \"5\", which contradicts WORLD_SIZE, which is 2");
  refused(with(slurm, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "SLURM_STEP_NUM_TASKS is \"5\", which contradicts");
  CHECK(detect(with(with(open_mpi, by_hand), {{"RANK", "1"}})).size == 2);
  CHECK(detect(with(with(open_mpi, by_hand), {{"WORLD_SIZE", "8"}, {"RANK", "7"}})).size == 8);  // several a process
  refused(without(open_mpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not; set both or neither");
  refused(without(mpich, "PMI_SIZE"), "PMI_RANK is set (\"2\") but PMI_SIZE is not");
  refused({{"PMIX_RANK", "x"}}, "PMIX_RANK is \"x\", which is not a whole number");
  refused(without(without(slurm, "SLURM_NTASKS"), "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS is not");
  refused(with(slurm, {{"SLURM_LOCALID", "2"}}), "SLURM_LOCALID is \"2\"");
  refused(without(stated, "TRIREME_SIZE"), "TRIREME_RANK is set (\"0\") but TRIREME_SIZE is not");
  for (auto const* const value : {"", "host", ":4", "host:", "host:0", "host:65536", "host:4x", "file:"})
    refused(with(stated, {{"TRIREME_RENDEZVOUS", value}}), text("TRIREME_RENDEZVOUS is \"", value, "\", which "));
}

TEST_CASE("Slurm's list of tasks for each node is parsed", "[comm][bootstrap]") {
  using bootstrap::detail::slurm_tasks;
  CHECK(slurm_tasks("4", 0) == 4);
  CHECK(slurm_tasks("2(x3),1", 0) == 2);
  CHECK(slurm_tasks("2(x3),1", 2) == 2);
  CHECK(slurm_tasks("2(x3),1", 3) == 1);
  for (auto const* const list : {"", "x", "2(", "2(x", "2(x3", "2(x0)", "0", "-1", "2(x3)1", "2x", ","})
    CHECK_FALSE(slurm_tasks(list, 0));
  CHECK_FALSE(slurm_tasks("2(x3),1", 4));
}
