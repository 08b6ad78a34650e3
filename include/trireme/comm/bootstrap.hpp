#pragma once

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"

/// Finds out which launcher started this process, and which rank of how many it is.
namespace trireme::comm::bootstrap {

/// The launchers, in the order in which their variables are looked up; `stated` is TRIREME_RANK and TRIREME_SIZE.
enum class launcher : std::uint8_t { stated, torchrun, open_mpi, pmi, slurm, single };

[[nodiscard]] constexpr std::string_view name_of(launcher who) noexcept {
  constexpr std::string_view names[] = {"hand", "torchrun", "Open MPI", "PMI", "a Slurm step", "no launcher"};
  return names[static_cast<std::size_t>(who)];
}

/// What the environment variables give for this process.
struct launch_info {
  launcher started_by = launcher::single;
  int rank = 0;
  int size = 1;  ///< 0 if the launcher does not give it (PMIX_RANK alone)
  int local_rank = 0;
  int local_size = 1;        ///< number of ranks on this machine; `size` if the launcher does not give it
  std::string address;       ///< of rank 0, from MASTER_ADDR or TRIREME_RENDEZVOUS; may be empty
  int port = 0;              ///< under torchrun the port of its agent
  std::string file;          ///< TRIREME_RENDEZVOUS=file:PATH
  std::string job;           ///< the launcher's id of this run; empty if it gives none
  std::string_view because;  ///< the variables that were read
  bool has_address = false;  ///< address and port, or file, come from TRIREME_RENDEZVOUS
  friend bool operator==(launch_info const&, launch_info const&) = default;

  [[nodiscard]] bool is_one_machine() const noexcept { return local_size == size; }
  /// For messages: which variables set the number of ranks to `size`, and how to run this process alone.
  [[nodiscard]] std::string origin() const {
    return text(started_by == launcher::stated ? std::string() : text(name_of(started_by), "'s "), because,
                " set the number of ranks to ", size,
                "; to run this process alone set TRIREME_RANK=0 and TRIREME_SIZE=1");
  }
};

/// "rank 1 of 2, started by torchrun (RANK, WORLD_SIZE)"
[[nodiscard]] inline std::string to_string(launch_info const& it) {
  auto const count = it.size > 0 ? text(" of ", it.size) : std::string();
  if (it.started_by == launcher::single) return text("rank ", it.rank, count, ", started by no launcher");
  return text("rank ", it.rank, count, ", started by ", name_of(it.started_by), " (", it.because, ")");
}

/// The value of an environment variable, or nothing: std::getenv, or a function of a test.
using lookup = std::function<std::optional<std::string>(char const*)>;

[[nodiscard]] inline std::optional<std::string> environment_variable(char const* name) {
  auto const* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

namespace detail {

/// Reads variables, and throws config_error for values without a meaning.
class reader {
 public:
  explicit reader(lookup const& variable) : variable_(variable) {}

  [[nodiscard]] std::string word(char const* name) const { return variable_(name).value_or(""); }
  [[nodiscard]] bool has(char const* name) const { return variable_(name).has_value(); }

  [[nodiscard]] std::optional<int> number(char const* name, int least,
                                          int most = std::numeric_limits<int>::max()) const {
    auto const value = variable_(name);
    if (!value) return std::nullopt;
    int out = 0;
    auto const [end, error] = std::from_chars(value->data(), value->data() + value->size(), out);
    if (error != std::errc() || end != value->data() + value->size() || value->empty())
      throw refusal(name, *value, "is not a whole number");
    if (out < least || out > most)
      throw refusal(name, *value,
                    most == std::numeric_limits<int>::max() ? text("is less than ", least)
                                                            : text("is outside ", least, " to ", most));
    return out;
  }
  [[nodiscard]] int required(char const* name, char const* partner, int least) const {
    if (auto const found = number(name, least)) return *found;
    throw config_error(text("trireme::comm::bootstrap: ", partner, " is set (", quoted(word(partner)), ") but ", name,
                            " is not; set both or neither"));
  }
  /// The rank and size in these variables; config_error unless 0 <= rank < size.
  [[nodiscard]] std::pair<int, int> rank_and_size(char const* rank_name, char const* size_name) const {
    auto const rank = required(rank_name, size_name, 0);
    auto const size = required(size_name, rank_name, 1);
    if (rank >= size)
      throw config_error(text("trireme::comm::bootstrap: ", rank_name, " is ", rank, " but ", size_name, " is ", size,
                              "; ranks are numbered from 0 to ", size - 1));
    return {rank, size};
  }
  /// The ranks of this machine; all ranks if the launcher does not give them.
  void place_locally(launch_info& it, char const* rank_name, char const* size_name) const {
    it.local_size = number(size_name, 1).value_or(it.size);
    it.local_rank = number(rank_name, 0).value_or(it.local_size == it.size ? it.rank : 0);
    if (it.size > 0 && it.local_size > it.size)
      throw refusal(size_name, word(size_name), text("is more than the ", how_many(it.size, "rank"), " of the run"));
    if (it.local_size > 0 && it.local_rank >= it.local_size)
      throw refusal(rank_name, word(rank_name),
                    text("is not one of the ", how_many(it.local_size, "rank"), " of this machine"));
  }
  [[nodiscard]] static config_error refusal(char const* name, std::string const& value, std::string_view what) {
    return config_error(
        text("trireme::comm::bootstrap: the environment variable ", name, " is ", quoted(value), ", which ", what));
  }

 private:
  /// The value as printable and short text.
  [[nodiscard]] static std::string quoted(std::string_view value) {
    std::string out = "\"";
    for (char const letter : value.substr(0, 64)) out += letter >= ' ' && letter <= '~' ? letter : '?';
    return out + (value.size() > 64 ? "...\"" : "\"");
  }
  lookup const& variable_;
};

/// Whether srun has started this process as a task of a step.
///
/// The variables are also set in a shell, and a program started from that shell is not a task. The steps of salloc's
/// shells, batch scripts and processes that join a job (pam_slurm_adopt) have special step numbers. `srun --pty bash`
/// gives the shell of task 0 a terminal: the shell is the task, the programs that it starts are not.
[[nodiscard]] inline bool is_slurm_task(reader const& read, std::string const& process) {
  if (!read.has("SLURM_PROCID") || !read.has("SLURM_STEP_ID")) return false;
  for (std::string_view const special :
       {"4294967290", "4294967291", "4294967292", "-6", "-5", "-4", "interactive", "batch", "extern"})
    if (read.word("SLURM_STEP_ID") == special) return false;
  bool const has_terminal = read.has("SLURM_PTY_PORT") || read.has("SLURM_PTY_WIN_COL");
  return !has_terminal || read.word("SLURM_PROCID") != "0" || read.word("SLURM_TASK_PID") == process;
}

/// Throws config_error if the variables of an outer launcher contradict RANK and WORLD_SIZE, which a shell or notebook
/// may have left set. Otherwise each process would train alone, or several would take one rank, without an error. More
/// ranks than processes of the outer launcher are allowed: an inner launcher (torchrun or a script on each machine)
/// starts them.
inline void expect_no_leftover(reader const& read, launch_info const& it, bool by_slurm) {
  struct names {
    char const *rank, *size;
  };
  bool const by_agent = read.has("TORCHELASTIC_RUN_ID");
  for (auto const each : {names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, names{"PMI_RANK", "PMI_SIZE"},
                          names{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}) {
    bool const slurm = std::string_view(each.rank) == "SLURM_PROCID";
    if (slurm && (!by_slurm || by_agent)) continue;
    auto const size = read.number(each.size, 1).value_or(1);
    if (size == 1 || (by_agent && it.size > 1)) continue;
    if (it.size < size)
      throw reader::refusal(each.size, read.word(each.size),
                            text("contradicts WORLD_SIZE, which is ", it.size, "; unset RANK and WORLD_SIZE"));
    if (it.size == size && read.number(each.rank, 0).value_or(it.rank) != it.rank)
      throw reader::refusal(each.rank, read.word(each.rank),
                            text("contradicts RANK, which is ", it.rank, "; unset RANK and WORLD_SIZE"));
  }
}

/// Whether an address of rank 0 can be reached from its own machine only.
[[nodiscard]] inline bool is_loopback_name(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// The number of tasks on node number `node` in Slurm's "2(x3),1"; nothing if the list does not contain it.
[[nodiscard]] inline std::optional<int> slurm_tasks(std::string_view list, int node) {
  while (!list.empty()) {
    auto const comma = list.find(',');
    auto const item = list.substr(0, comma);
    int tasks = 0, nodes = 1;
    auto const* const end = item.data() + item.size();
    auto const read = std::from_chars(item.data(), end, tasks);
    if (read.ec != std::errc() || tasks < 1) return std::nullopt;
    if (read.ptr != end) {
      auto const times = std::string_view(read.ptr, static_cast<std::size_t>(end - read.ptr));
      if (!times.starts_with("(x")) return std::nullopt;
      auto const again = std::from_chars(times.data() + 2, end, nodes);
      if (again.ec != std::errc() || nodes < 1 ||
          std::string_view(again.ptr, static_cast<std::size_t>(end - again.ptr)) != ")")
        return std::nullopt;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return std::nullopt;
}

/// "host:port", "[::1]:port" or "file:PATH" of TRIREME_RENDEZVOUS.
inline void read_rendezvous(launch_info& it, std::string const& value) {
  constexpr char const* name = "TRIREME_RENDEZVOUS";
  it.has_address = true;
  it.address.clear();
  it.port = 0;
  if (value.starts_with("file:")) {
    it.file = value.substr(5);
    if (it.file.empty()) throw reader::refusal(name, value, "names no file; write file:/PATH");
    return;
  }
  auto const colon = value.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw reader::refusal(name, value, "is neither HOST:PORT nor file:PATH");
  it.address = value.substr(0, colon);
  if (it.address.size() > 2 && it.address.front() == '[' && it.address.back() == ']')
    it.address = it.address.substr(1, it.address.size() - 2);
  auto const* const end = value.data() + value.size();
  auto const [rest, error] = std::from_chars(value.data() + colon + 1, end, it.port);
  if (error != std::errc() || rest != end || it.port < 1 || it.port > 65535)
    throw reader::refusal(name, value, "has no port from 1 to 65535 behind its colon");
}

}  // namespace detail

/// Finds out from the environment who started this process, and which rank it is.
///
/// The first of these that is set counts: TRIREME_RANK and TRIREME_SIZE (also TRIREME_LOCAL_RANK and
/// TRIREME_LOCAL_SIZE); torchrun (RANK and WORLD_SIZE); Open MPI (OMPI_COMM_WORLD_RANK); PMI (PMI_RANK, or PMIX_RANK);
/// a Slurm step (SLURM_PROCID with SLURM_STEP_ID; batch scripts and interactive shells do not count as steps); none.
/// TRIREME_RENDEZVOUS and TRIREME_JOB may be added to any of them. Several agents of torchrun whose MASTER_ADDR is
/// this machine's loopback are agents on one machine.
///
/// Errors   config_error that names the variable and its value if it is not a number or out of range, if its partner is
///          not set, or if another launcher's variables contradict RANK and WORLD_SIZE.
[[nodiscard]] inline launch_info detect(lookup const& variable) {
  detail::reader const read(variable);
  bool const by_slurm = detail::is_slurm_task(read, text(::getpid()));
  launch_info it;
  auto const found = [&](launcher who, std::string_view because, std::pair<int, int> rank_and_size) {
    it.started_by = who;
    it.because = because;
    it.rank = rank_and_size.first;
    it.size = rank_and_size.second;
  };
  if (read.has("TRIREME_RANK") || read.has("TRIREME_SIZE")) {
    found(launcher::stated, "TRIREME_RANK, TRIREME_SIZE", read.rank_and_size("TRIREME_RANK", "TRIREME_SIZE"));
    read.place_locally(it, "TRIREME_LOCAL_RANK", "TRIREME_LOCAL_SIZE");
  } else if (read.has("RANK") && read.has("WORLD_SIZE")) {
    found(launcher::torchrun, "RANK, WORLD_SIZE", read.rank_and_size("RANK", "WORLD_SIZE"));
    read.place_locally(it, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    it.job = text(read.word("TORCHELASTIC_RUN_ID"), "/", read.word("TORCHELASTIC_RESTART_COUNT"));
    if (!it.is_one_machine() && detail::is_loopback_name(read.word("MASTER_ADDR"))) {
      it.local_rank = it.rank;
      it.local_size = it.size;
      it.job = read.word("TORCHELASTIC_RUN_ID");  // each agent counts its restarts by itself
    }
    detail::expect_no_leftover(read, it, by_slurm);
    if (it.size > 1 && !read.has("TRIREME_RENDEZVOUS")) {
      it.port = read.required("MASTER_PORT", "WORLD_SIZE", 1);
      static_cast<void>(read.number("MASTER_PORT", 1, 65535));
      it.address = read.word("MASTER_ADDR");
      if (it.address.empty())
        throw config_error(
            "trireme::comm::bootstrap: RANK and WORLD_SIZE are set but MASTER_ADDR is not; "
            "torchrun sets all of them");
    }
  } else if (read.has("OMPI_COMM_WORLD_RANK") || read.has("OMPI_COMM_WORLD_SIZE")) {
    found(launcher::open_mpi, "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
          read.rank_and_size("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
    read.place_locally(it, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    it.job = read.word("PMIX_NAMESPACE");
  } else if (read.has("PMI_RANK") || read.has("PMI_SIZE")) {
    found(launcher::pmi, "PMI_RANK, PMI_SIZE", read.rank_and_size("PMI_RANK", "PMI_SIZE"));
    read.place_locally(it, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  } else if (read.has("PMIX_RANK")) {
    found(launcher::pmi, "PMIX_RANK", {*read.number("PMIX_RANK", 0), 0});
    it.local_size = 0;
    it.job = read.word("PMIX_NAMESPACE");
  } else if (by_slurm) {
    bool const of_step = read.has("SLURM_STEP_NUM_TASKS");
    auto const* const size = of_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    found(launcher::slurm, of_step ? "SLURM_PROCID, SLURM_STEP_NUM_TASKS" : "SLURM_PROCID, SLURM_NTASKS",
          read.rank_and_size("SLURM_PROCID", size));
    auto const tasks = read.has("SLURM_STEP_TASKS_PER_NODE") ? read.word("SLURM_STEP_TASKS_PER_NODE")
                                                             : read.word("SLURM_TASKS_PER_NODE");
    it.local_size = detail::slurm_tasks(tasks, read.number("SLURM_NODEID", 0).value_or(0)).value_or(it.size);
    it.local_rank = read.number("SLURM_LOCALID", 0, it.local_size - 1).value_or(0);
    it.job = text(read.word("SLURM_JOB_ID"), ".", read.word("SLURM_STEP_ID"));
  } else if (read.has("RANK") != read.has("WORLD_SIZE")) {
    static_cast<void>(read.rank_and_size("RANK", "WORLD_SIZE"));  // throws: names the missing one
  }
  if (read.has("TRIREME_JOB")) it.job = read.word("TRIREME_JOB");
  if (read.has("TRIREME_RENDEZVOUS")) detail::read_rendezvous(it, read.word("TRIREME_RENDEZVOUS"));
  return it;
}
[[nodiscard]] inline launch_info detect() { return detect(environment_variable); }

/// With TRIREME_LOG=1, prints once a run on standard error who started it.
inline void log(launch_info const& here, lookup const& variable = environment_variable) {
  if (here.rank == 0 && variable("TRIREME_LOG") == "1")
    std::fputs(text("trireme: ", to_string(here), "\n").c_str(), stderr);
}

}  // namespace trireme::comm::bootstrap
