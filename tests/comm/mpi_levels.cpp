// A program that initialises MPI itself, for mpi_levels_test.sh: mpi_levels single|funneled|serialized|multiple. By
// messages it does all collectives, a loop of its own that calls MPI between ready and step, and a training; then it
// calls after MPI_Finalize. Each rank prints "right" or "WRONG" for each.
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../ladder/ladder.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/trireme.hpp"

using namespace std::chrono_literals;
using namespace trireme;

// Calls of MPI's that move messages: how many, and how many of them by another thread than main's.
namespace {
std::thread::id const main_thread = std::this_thread::get_id();
std::atomic<long> calls{0}, calls_of_others{0};
void note_call() {
  ++calls;
  if (std::this_thread::get_id() != main_thread) ++calls_of_others;
}
}  // namespace
extern "C" int MPI_Isend(void const* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm group,
                         MPI_Request* request) {
  note_call();
  return PMPI_Isend(buffer, count, type, to, tag, group, request);
}
extern "C" int MPI_Testall(int count, MPI_Request* requests, int* flag, MPI_Status* statuses) {
  note_call();
  return PMPI_Testall(count, requests, flag, statuses);
}
extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  note_call();
  return PMPI_Test(request, flag, status);
}
extern "C" int MPI_Improbe(int from, int tag, MPI_Comm group, int* flag, MPI_Message* message, MPI_Status* status) {
  note_call();
  return PMPI_Improbe(from, tag, group, flag, message, status);
}
extern "C" int MPI_Iprobe(int from, int tag, MPI_Comm group, int* flag, MPI_Status* status) {
  note_call();
  return PMPI_Iprobe(from, tag, group, flag, status);
}

namespace {

int own_rank = 0;
void say(bool good, std::string const& what) {
  std::printf("%s rank %d: %s\n", good ? "right" : "WRONG", own_rank, what.c_str());
  std::fflush(stdout);
}
/// f must end with an error of this type that says `part`.
template <class Error, class F>
void expect_sentence(char const* call, std::string const& part, F f) {
  std::string said = "nothing";
  bool good = false;
  try {
    f();
  } catch (Error const& problem) {
    said = problem.what();
    good = said.find(part) != said.npos;
  } catch (std::exception const& problem) {
    said = std::string("another type: ") + problem.what();
  }
  say(good, std::string(call) + ": " + said);
}

std::int64_t machine_memory() { return ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE); }
/// Of this process, in bytes: what the system calls VmSize.
std::int64_t address_space() {
  long long in_pages = 0;
  std::ifstream("/proc/self/statm") >> in_pages;
  return in_pages * ::sysconf(_SC_PAGESIZE);
}

/// Weights after a loop of one's own that does something between ready and step.
std::vector<float> own_loop(comm::mpi_world& world, std::function<void()> const& between) {
  std::vector<float> first(30000), second(700), first_gradient(30000), second_gradient(700);
  std::vector<foreign_parameter<float>> parameters{{"first", tensor_view{first}, tensor_view{first_gradient}},
                                                   {"second", tensor_view{second}, tensor_view{second_gradient}}};
  auto exchange = make_exchange(parameters, world, parallel::zero<1>{.bucket_bytes = 16384});
  auto const fill = [&](std::vector<float>& gradient, std::vector<float> const& weights, int step) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = weights[i] - std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(step + world.rank()));
  };
  for (int step = 0; step < 6; ++step) {
    exchange.begin();
    fill(second_gradient, second, step);
    exchange.ready("second");
    between();
    fill(first_gradient, first, step);
    exchange.ready("first");
    between();
    exchange.step(optim::sgd{.learning_rate = 0.25, .momentum = 0.5});
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
std::vector<float> training(comm::mpi_world& world) {
  auto data = data::function([](float x) { return std::sin(x); }, {.samples = 512});
  auto trainer = make_trainer(nn::mlp{.inputs = 1, .hidden = {32, 32}, .outputs = 1}, optim::sgd{.learning_rate = 1e-2},
                              world, parallel::data{.bucket_bytes = 2048});
  trainer.fit(data, {.steps = 12, .batch = 48});
  std::vector<float> points(64);
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = 0.05F * static_cast<float>(i);
  auto const out = trainer.predict(points);
  std::vector<float> values;
  for (std::int64_t i = 0; i < 64; ++i) values.push_back(out[i]);
  return values;
}

void collectives(MPI_Comm theirs) {
  auto world = comm::mpi::borrow(theirs, 60s, false);
  ladder::for_each_rung([&](char const* name, auto rung) {
    try {
      rung(world);
    } catch (std::exception const& problem) {
      say(false, std::string(name) + ": " + problem.what());
    }
  });
  say(true, "all collectives");
}

/// Each kind of training gives the bits that shared memory gives.
void trainings(MPI_Comm theirs, int size) {
  auto messages = comm::mpi::borrow(theirs, 60s, false);
  auto shared = comm::mpi::borrow(theirs, 60s);
  auto const compare = [&](char const* what, std::vector<float> const& got, std::vector<float> const& expected) {
    say(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0, what);
  };
  auto const call_mpi = [&] {
    int sum = 0;
    MPI_Allreduce(&size, &sum, 1, MPI_INT, MPI_SUM, theirs);
    if (sum != size * size) say(false, "a sum of the program's own");
  };
  compare("a loop that calls MPI between ready and step", own_loop(messages, call_mpi), own_loop(shared, [] {}));
  compare("a training", training(messages), training(shared));
}

void poll(MPI_Comm theirs) {
  auto world = comm::mpi::borrow(theirs, 60s, false);
  std::vector<float> values(200'000, 1.0F);
  auto pending = world.all_reduce_async(values);
  auto const end = std::chrono::steady_clock::now() + 20s;
  std::int32_t all = 0;
  for (int round = 0; all == 0 && std::chrono::steady_clock::now() < end; ++round) {
    for (int i = 0; i < 200; ++i) world.poll();
    long const before = calls;
    std::int32_t const done = pending.test() && calls == before ? 1 : 0;  // a test of what is done asks nobody
    MPI_Allreduce(&done, &all, 1, MPI_INT, MPI_MIN, theirs);
  }
  say(all == 1 && values.back() == static_cast<float>(world.size()), "a request that proceeds in poll()");
}

/// Only main's thread may call MPI: another one is told so, and nothing is lost.
void other_threads(MPI_Comm theirs, char const* level) {
  auto world = comm::mpi::borrow(theirs, 60s, false);
  std::vector<float> values(60'000, 1.0F), more(60'000, 1.0F);
  auto pending = world.all_reduce_async(values);
  std::thread([&] {
    expect_sentence<config_error>("a call of another thread", level, [&] { world.all_reduce(more); });
    expect_sentence<config_error>("a wait of another thread", level, [&] { pending.wait(); });
    expect_sentence<config_error>("a test of another thread", level, [&] { static_cast<void>(pending.test()); });
    expect_sentence<config_error>("a borrow of another thread", level,
                                  [&] { static_cast<void>(comm::mpi::borrow(theirs)); });
  }).join();
  expect_sentence<config_error>("worlds of several threads", level, [&] { world.expect_several_callers(); });
  pending.wait();
  world.all_reduce(more);
  say(values.back() == static_cast<float>(world.size()) && more == values, "calls of the right thread afterwards");
  // A request that ends in another thread cannot be waited for; then its world has failed, and others go on.
  auto dropped = std::make_optional(world.all_reduce_async(values));
  std::thread([&] { dropped.reset(); }).join();
  expect_sentence<comm_error>("a request that was dropped", "", [&] { world.barrier(); });
  comm::mpi::borrow(theirs, 60s, false).barrier();
}

}  // namespace

int main(int argc, char** argv) {
  std::string const level = argc > 1 ? argv[1] : "";
  int const wanted = level == "multiple"     ? MPI_THREAD_MULTIPLE
                     : level == "serialized" ? MPI_THREAD_SERIALIZED
                                             : MPI_THREAD_FUNNELED;
  int provided = MPI_THREAD_SINGLE;
  if (level == "single")
    MPI_Init(&argc, &argv);
  else
    MPI_Init_thread(&argc, &argv, wanted, &provided);
  MPI_Query_thread(&provided);
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::optional<comm::mpi_world> messages, shared;
  std::vector<float> values(60'000, 1.0F);
  std::optional<comm::mpi_world::request> pending;
  try {
    collectives(MPI_COMM_WORLD);
    trainings(MPI_COMM_WORLD, size);
    poll(MPI_COMM_WORLD);
    if (provided < MPI_THREAD_MULTIPLE)
      say(calls_of_others == 0, text(calls_of_others.load(), " calls of other threads"));
    if (provided < MPI_THREAD_SERIALIZED && size > 1)  // alone, a request ends where it begins
      other_threads(MPI_COMM_WORLD, provided == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED");
    messages.emplace(comm::mpi::borrow(MPI_COMM_WORLD, 5s, false));
    auto const before = address_space();
    shared.emplace(comm::mpi::borrow(MPI_COMM_WORLD, 5s));
    auto const grown = address_space() - before;
    say(grown < 3 * machine_memory(), text("shared memory reserves ", grown >> 20, " MiB of addresses"));
    // Rank 1, if there is one, takes no part in this: it cannot end before MPI_Finalize.
    if (size == 1 || own_rank != 1) pending.emplace(messages->all_reduce_async(values));
  } catch (std::exception const& problem) {
    say(false, problem.what());
  }
  MPI_Finalize();

  char const* const sentence = "after MPI_Finalize";
  try {
    if (pending && size > 1)
      expect_sentence<comm_error>("a request", "under way when MPI was finalised", [&] { pending->wait(); });
    else if (pending)
      pending->wait();
    pending.reset();
    expect_sentence<comm_error>("all_reduce", sentence, [&] { messages->all_reduce(values); });
    expect_sentence<comm_error>("start", sentence, [&] { static_cast<void>(messages->all_reduce_async(values)); });
    expect_sentence<comm_error>("barrier", sentence, [&] { messages->barrier(); });
    expect_sentence<comm_error>("exchange", sentence, [&] { messages->exchange({send_to(0, values)}); });
    expect_sentence<comm_error>("poll", sentence, [&] { messages->poll(); });
    expect_sentence<comm_error>("split", sentence, [&] { static_cast<void>(messages->split(0, 0)); });
    expect_sentence<comm_error>("duplicate", sentence, [&] { static_cast<void>(messages->duplicate()); });
    messages->abandon("nobody hears this");
    messages.reset();
    std::fill(values.begin(), values.end(), 1.0F);
    shared->all_reduce(values);  // needs no MPI
    say(values.back() == static_cast<float>(size), "shared memory goes on without MPI");
    shared.reset();
    expect_sentence<config_error>("borrow", "MPI has been finalised already",
                                  [] { static_cast<void>(comm::mpi::borrow(MPI_COMM_WORLD)); });
    expect_sentence<config_error>("launch", "MPI has been finalised already",
                                  [] { launch(comm::mpi{}, [](auto&) {}); });
  } catch (std::exception const& problem) {
    say(false, problem.what());
  }
  std::printf("right ended rank %d\n", own_rank);
  return 0;
}
