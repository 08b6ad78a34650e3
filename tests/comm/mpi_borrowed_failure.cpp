// A solver that initialises MPI itself, borrows worlds, survives failures and finalises MPI, for
// mpi_borrowed_failure_test.sh:
//   mpi_borrowed_failure shared|messages CASE[,CASE...] [RUNS [LEVEL [JITTER [DEADLINE]]]]
// where LEVEL is single, funneled, serialized (the default) or multiple. Each rank waits a random time up to JITTER
// microseconds (0) before it fails or calls what fails; DEADLINE is that of the cases at a deadline, in milliseconds
// (3000). Rank 1 is the one that fails. Each rank prints "right" or "WRONG", and what it was told; the program ends
// with 0 if MPI_Finalize has returned.
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

// What must be heard at once is heard long before the first, however busy the machine is.
constexpr std::chrono::milliseconds long_deadline = 30s;
std::chrono::milliseconds short_deadline = 3s;
int most_jitter = 0;  // microseconds
using clock_type = std::chrono::steady_clock;

struct outcome {
  std::string told;
  double seconds = 0;
};

/// Calls f, which must end with an error of the library; what it was, and how long it took.
template <class F>
outcome told_by(F f) {
  auto const began = clock_type::now();
  outcome out;
  try {
    f();
  } catch (comm_error const& problem) {
    out.told = problem.what();
  }
  out.seconds = std::chrono::duration<double>(clock_type::now() - began).count();
  return out;
}

std::size_t size_of_case(std::string const& how) {
  if (how.ends_with("-large")) return 300'000;
  return how.ends_with("-middle") ? 6000 : 60;
}

/// What a leak checker must find, so that what it is told to ignore is not too much (tests/support/mpi_leaks.supp).
[[gnu::noinline]] void plant_a_leak() {
  static float* volatile lost = nullptr;
  lost = new float[1000];
  lost = nullptr;
}

/// Lets the order in which ranks fail, call and hear of it differ from run to run.
void wait_a_little() {
  static std::minstd_rand random{std::random_device{}()};
  if (most_jitter > 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % most_jitter));
}

void use(comm::mpi_world& world, std::size_t count = 60) {
  std::vector<float> values(count, 1.0F);
  world.all_reduce(values);
  if (values.front() != static_cast<float>(world.size())) throw std::runtime_error("another sum");
}

/// What all ranks but `odd` must be told, and what that one must be; empty: nothing.
struct expected {
  std::string others, odd;
  bool at_once = true;  ///< by a notice; otherwise at the deadline
};

bool is_at_deadline(std::string const& how) { return how.starts_with("late") || how.starts_with("absent"); }

expected expected_of(std::string const& how, bool shared) {
  std::string const own = "rank 1 ended with an error: ";
  if (how.starts_with("differs")) {
    std::string const usual = R"(all_reduce\(F32, [0-9]+ elements, sum\))";
    std::string const other = R"(all_reduce\(I64, [0-9]+ elements, sum\))";
    auto const both = text("call number 2 differs between ranks: (rank [0-9] called ", usual, ", rank 1 called ", other,
                           "|rank 1 called ", other, ", rank [0-9] called ", usual, "); make every");
    return {both, both};
  }
  if (how.starts_with("throws")) return {text(own, ".*exception"), ""};
  if (how.starts_with("alone") || how == "plants-a-leak") return {"", ""};
  if (how.starts_with("leaves"))
    return {R"(all_reduce\(F32, [0-9]+ elements, sum\).* cannot finish, because rank 1 has left without calling it)",
            ""};
  if (how.starts_with("pending")) return {text(own, ".*exception"), ""};
  if (how.starts_with("abandons")) return {text(own, "loss is nan"), text(own, "loss is nan")};
  if (how.starts_with("late")) {
    auto const waited = text("all_reduce.* waited ", comm::to_string(short_deadline), " for rank 1",
                             shared ? ", which did not .*" : "", "; find out why it is late, or raise comm::mpi");
    return {waited, waited, false};
  }
  if (how.starts_with("absent")) {  // from an exchange
    auto const waited =
        text("(exchange|all_reduce).* waited ", comm::to_string(short_deadline), " for ranks? [0-9, ]*1");
    return {waited, waited, false};
  }
  if (how.starts_with("transfer")) {
    auto const both = "rank 0 sends [0-9]+ elements of F32 to rank 1, which expects [0-9]+ elements? of F32";
    return {both, both};
  }
  return {"no such case", "no such case"};
}

/// One failure; returns what this rank was told.
outcome play(comm::mpi_world& world, std::string const& how) {
  bool const odd = world.rank() == 1;
  auto const count = size_of_case(how);
  std::vector<float> values(count, 1.0F);
  std::vector<std::int64_t> integers(count, 1);
  if (odd) use(world);
  wait_a_little();
  if (how == "plants-a-leak") {
    if (odd) plant_a_leak();
    return told_by([&] {
      if (!odd) use(world);
    });
  }
  if (odd && how.starts_with("throws")) throw std::domain_error("loss is nan");
  if (odd && how.starts_with("leaves")) return {};
  if (how.starts_with("alone")) {  // when the others have left already, and need nothing any more
    if (!odd) return told_by([&] { use(world); });
    std::this_thread::sleep_for(200ms);
    throw std::domain_error("loss is nan");
  }
  if (odd && how.starts_with("pending")) {
    auto const coming = world.all_reduce_async(values);
    throw std::domain_error("loss is nan");
  }
  if (odd && how.starts_with("abandons")) world.abandon("loss is nan");
  if (odd && is_at_deadline(how)) std::this_thread::sleep_for(short_deadline * 4 / 3);
  return told_by([&] {
    if (!odd) use(world);  // others may hear of a failure in it already
    if (how.starts_with("absent")) {
      // Small messages have come already, and are received: then the next call is the first that throws.
      if (odd) world.exchange({receive_from(world.size() - 1, values), receive_from(0, values)});
      if (world.rank() == 0 || world.rank() == world.size() - 1) world.exchange({send_to(1, values)});
    }
    if (how.starts_with("transfer")) {
      if (world.rank() == 0) world.exchange({send_to(1, values)});
      if (odd)
        world.exchange({receive_from(0, tensor_view{values.data(), shape{static_cast<std::int64_t>(count) - 1}})});
    }
    if (odd && how.starts_with("differs"))
      world.all_reduce(integers);
    else
      world.all_reduce(values);
    if (how.starts_with("pending")) world.barrier();
  });
}

std::vector<std::string> cases_of(std::string const& list) {
  std::vector<std::string> all;
  std::istringstream rest(list);
  for (std::string each; std::getline(rest, each, ',');) all.push_back(each);
  return all;
}

/// `runs` failures of as many worlds beside one that lives, and what goes on after them; whether everything was right.
/// All ranks have left a failed world when the next one is borrowed.
bool survive(int rank, std::string const& how, bool shared, int runs) {
  bool right = true;
  auto const deadline = is_at_deadline(how) ? short_deadline : long_deadline;
  auto const say = [&](bool good, char const* what, outcome const& it) {
    right = right && good;
    std::printf("%s %s %s rank %d after %.2f s: %s\n", good ? "right" : "WRONG", how.c_str(), what, rank, it.seconds,
                it.told.c_str());
    std::fflush(stdout);
  };
  try {
    // However long some rank needs to hear of a failure.
    auto other = comm::mpi::borrow(MPI_COMM_WORLD, long_deadline, shared);
    auto const must = expected_of(how, shared);
    auto const& sentence = rank == 1 ? must.odd : must.others;
    outcome got;
    for (int run = 0; run < runs; ++run) {
      got = {};
      try {
        auto world = comm::mpi::borrow(MPI_COMM_WORLD, deadline, shared);
        got = play(world, how);
      } catch (std::domain_error const&) {  // the solver survives it
      }
      bool const good = sentence.empty() ? got.told.empty() : std::regex_search(got.told, std::regex(sentence));
      bool const in_time = !must.at_once || got.seconds < std::chrono::duration<double>(deadline).count() / 2;
      say(good && in_time, "failure:", got);
      got = told_by([&] { use(other, 2000); });  // the failed world is dead, others live
      say(got.told.empty(), "another world:", got);
    }
    got = told_by([&] {
      auto again = comm::mpi::borrow(MPI_COMM_WORLD, long_deadline, shared);
      use(again, 2000);
    });
    say(got.told.empty(), "borrowed again:", got);
  } catch (std::exception const& problem) {
    say(false, "ended:", {problem.what()});
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  bool const shared = std::string(argv[1]) == "shared";
  auto const cases = cases_of(argv[2]);
  int const runs = argc > 3 ? std::atoi(argv[3]) : 1;
  std::string const level = argc > 4 ? argv[4] : "";
  if (argc > 5) most_jitter = std::atoi(argv[5]);
  if (argc > 6) short_deadline = std::chrono::milliseconds(std::atoi(argv[6]));
  int provided = 0;
  if (level == "single")
    MPI_Init(&argc, &argv);
  else
    MPI_Init_thread(&argc, &argv,
                    level == "funneled"   ? MPI_THREAD_FUNNELED
                    : level == "multiple" ? MPI_THREAD_MULTIPLE
                                          : MPI_THREAD_SERIALIZED,
                    &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  bool right = true;
  for (auto const& how : cases) right = survive(rank, how, shared, runs) && right;
  MPI_Finalize();
  if (right) std::printf("right finalised rank %d\n", rank);
  return 0;
}
