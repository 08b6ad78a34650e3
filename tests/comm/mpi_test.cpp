// test-ranks: 1 2 3
// test-timeout: 120
// test-mpich: 2
#include "trireme/comm/mpi.hpp"

#include <sys/resource.h>

#include <atomic>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"

using namespace std::chrono_literals;
using namespace trireme;

static_assert(communicator<comm::mpi_world>);
static_assert(has_all_reduce<comm::mpi_world, bfloat16> && has_reduce_scatter<comm::mpi_world, double>);
static_assert(has_all_reduce<comm::mpi_world, float, reduction::mean> && has_reduce<comm::mpi_world, float>);
static_assert(has_all_gather<comm::mpi_world, std::uint8_t> && has_all_to_all<comm::mpi_world, float>);
static_assert(has_ragged_all_gather<comm::mpi_world, float> && has_ragged_all_to_all<comm::mpi_world, float>);
static_assert(has_gather<comm::mpi_world, float> && has_scatter<comm::mpi_world, float>);
static_assert(has_broadcast<comm::mpi_world, std::uint64_t> && has_exchange<comm::mpi_world>);
static_assert(has_allocate<comm::mpi_world, float>);
static_assert(has_all_reduce<comm::mpi_world, float, reduction::sum, phantom>);
static_assert(!has_peers<comm::mpi_world, float>);

// Calls of MPI's that move messages, counted on their way to the library.
namespace {
std::atomic<long> calls{0};
std::atomic<long> sums{0};  // MPI's own
}  // namespace
extern "C" int MPI_Isend(void const* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm group,
                         MPI_Request* request) {
  ++calls;
  return PMPI_Isend(buffer, count, type, to, tag, group, request);
}
extern "C" int MPI_Iallreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm group,
                              MPI_Request* request) {
  ++sums;
  return PMPI_Iallreduce(from, to, count, type, op, group, request);
}
extern "C" int MPI_Testall(int count, MPI_Request* requests, int* flag, MPI_Status* statuses) {
  ++calls;
  return PMPI_Testall(count, requests, flag, statuses);
}
extern "C" int MPI_Iprobe(int from, int tag, MPI_Comm group, int* flag, MPI_Status* status) {
  ++calls;
  return PMPI_Iprobe(from, tag, group, flag, status);
}

namespace {

void for_both(auto body) {
  for (bool const shared_memory : {true, false}) {
    INFO((shared_memory ? "in shared memory" : "by messages"));
    body(comm::mpi{.shared_memory = shared_memory});
  }
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto const seconds = [](timeval time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

TEST_CASE("a description of MPI is printed as its source", "[comm][mpi]") {
  CHECK(to_string(comm::mpi{.deadline = 1500ms}) == "comm::mpi{.deadline = 1500ms}");
  CHECK(to_string(comm::mpi{.shared_memory = false}) == "comm::mpi{.deadline = 60s, .shared_memory = false}");
  CHECK(to_string(comm::mpi{.order = comm::sum_order::any}) == "comm::mpi{.deadline = 60s, .order = sum_order::any}");
}

TEST_CASE("collectives in phantom memory synchronise and touch nothing", "[comm][mpi][phantom]") {
  watchdog dog("phantom");
  for_both([](comm::mpi const& description) {
    launch(description, [](auto& world) {
      auto const n = 3000 * world.size();
      tensor<float, phantom> values(shape{n});
      tensor<float, phantom> more(shape{n});
      world.all_reduce(values.view());
      world.reduce_scatter(values.view());
      world.all_gather(more.view());
      world.all_to_all(values.view(), more.view());
      world.broadcast_async(values.view(), 0).wait();
      std::vector<std::int64_t> const counts(static_cast<std::size_t>(world.size()), 3000);
      world.all_to_all(values.view(), counts, more.view(), counts);
      int const next = (world.rank() + 1) % world.size();
      int const previous = (world.rank() - 1 + world.size()) % world.size();
      world.exchange({send_to(next, values.view()), receive_from(previous, more.view())});
    });
  });
}

TEST_CASE("every launch returns the result of this process's body", "[comm][mpi]") {
  watchdog dog("launch");
  for (int i = 0; i < 3; ++i)
    for_both([](comm::mpi const& description) {
      int rank = -1;
      auto const got = launch(description, [&](auto& world) {
        rank = world.rank();
        return world.rank();
      });
      CHECK(got == rank);
    });
}

TEST_CASE("MPI handles that are not groups of ranks cannot be borrowed, and the program goes on", "[comm][mpi]") {
  watchdog dog("borrow");
  launch(comm::mpi{}, [](auto&) {});  // MPI is initialised now
  auto const refusal = [](MPI_Comm lent) {
    std::string said;
    try {
      static_cast<void>(comm::mpi::borrow(lent));
    } catch (config_error const& problem) {
      said = problem.what();
    }
    return said;
  };
  auto const says = [](std::string const& said, char const* part) { return said.find(part) != said.npos; };
  CHECK(says(refusal(MPI_COMM_NULL), "borrow got MPI_COMM_NULL"));

  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : MPI_UNDEFINED, rank, &mine);
  if (rank > 0) CHECK(says(refusal(mine), "borrow got MPI_COMM_NULL"));  // not one of its members
  if (rank == 0) {
    CHECK(comm::mpi::borrow(mine).size() == 1);
    MPI_Comm_free(&mine);
    CHECK(says(refusal(mine), "borrow got MPI_COMM_NULL"));
  }
  if (size > 1) {
    MPI_Comm half = MPI_COMM_NULL, both = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0 ? 1 : 0, 0, &both);
    CHECK(says(refusal(both), "an intercommunicator"));
    MPI_Comm merged = MPI_COMM_NULL;
    MPI_Intercomm_merge(both, rank == 0 ? 0 : 1, &merged);
    CHECK(comm::mpi::borrow(merged).size() == size);
    for (auto* each : {&half, &both, &merged}) MPI_Comm_free(each);
  }
  CHECK(comm::mpi::borrow(MPI_COMM_SELF).size() == 1);
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;  // of the program, as it was
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  CHECK(handler == MPI_ERRORS_ARE_FATAL);
}

TEST_CASE("requests outlive the world that they came from", "[comm][mpi]") {
  watchdog dog("requests");
  for_both([](comm::mpi const& description) {
    launch(description, [](auto& world) {
      std::vector<float> values(100000, 1.0F);
      auto pending = world.split(0, 0).all_reduce_async(tensor_view{values});
      pending.wait();
      if (values.back() != static_cast<float>(world.size())) throw std::runtime_error("another sum");
    });
  });
}

TEST_CASE("collectives in shared memory make no call of MPI", "[comm][mpi]") {
  watchdog dog("without MPI");
  auto const calls_of = [](comm::mpi const& description) {
    return launch(description, [](auto& world) {
      std::vector<float> values(50000, 1.0F);
      auto part = world.split(0, 0);
      long const before = calls.load();
      world.all_reduce(tensor_view{values});
      part.all_reduce_async(tensor_view{values}).wait();
      world.barrier();
      return calls.load() - before;
    });
  };
  CHECK(calls_of({}) == 0);
  bool const alone = launch(comm::mpi{}, [](auto& world) { return world.size() == 1; });
  CHECK((calls_of({.shared_memory = false}) > 0) == !alone);
}

TEST_CASE("only large sums in any order use MPI's own collectives", "[comm][mpi]") {
  watchdog dog("any order");
  auto const sums_of = [](comm::sum_order order, auto values, auto op) {
    return launch(comm::mpi{.shared_memory = false, .order = order}, [&](auto& world) {
      auto mine = values;
      long const before = sums.load();
      world.all_reduce(mine, op);
      return world.size() == 1 ? -1 : sums.load() - before;
    });
  };
  using comm::sum_order;
  std::vector<float> const large(1 << 20, 1.0F);
  auto const several = sums_of(sum_order::any, large, reduction::sum{});
  CHECK((several == -1 || several >= 1));
  CHECK(sums_of(sum_order::any, large, reduction::mean{}) == several);
  CHECK(sums_of(sum_order::ranks, large, reduction::sum{}) <= 0);
  CHECK(sums_of(sum_order::any, large, reduction::max{}) <= 0);       // of NaN MPI promises nothing
  CHECK(sums_of(sum_order::any, large, reduction::pairwise{}) <= 0);  // its order is its meaning
  CHECK(sums_of(sum_order::any, std::vector<float>(1000, 1.0F), reduction::sum{}) <= 0);
  CHECK(sums_of(sum_order::any, std::vector<bfloat16>(1 << 20), reduction::sum{}) <= 0);
  CHECK(sums_of(sum_order::any, std::vector<std::int8_t>(1 << 20), reduction::sum{}) <= 0);  // not right in MPIs
  // Groups of some of the ranks have no communicator of their own.
  auto const in_part = launch(comm::mpi{.shared_memory = false, .order = sum_order::any}, [&](auto& world) {
    auto part = world.split(world.rank() == 0 ? 0 : 1, 0);
    auto mine = large;
    long const before = sums.load();
    part.all_reduce(mine);
    return world.size() < 3 ? 0 : sums.load() - before;
  });
  CHECK(in_part == 0);
}

TEST_CASE("a rank without requests in flight uses no processor time", "[comm][mpi]") {
  watchdog dog("idle");
  for_both([](comm::mpi const& description) {
    auto const used = launch(description, [](auto& world) {
      std::vector<float> values(50000, 1.0F);
      world.all_reduce_async(tensor_view{values}).wait();  // starts the helper
      std::this_thread::sleep_for(50ms);
      auto const before = processor_seconds();
      std::this_thread::sleep_for(300ms);
      auto const after = processor_seconds();
      world.barrier();
      return after - before;
    });
    CHECK(used < 0.1);
  });
}

TEST_CASE("a request proceeds while its rank computes", "[comm][mpi]") {
  watchdog dog("progress");
  for_both([](comm::mpi const& description) {
    launch(description, [](auto& world) {
      // Several steps of messages, which only a helper takes while nobody calls: the first test finds all done.
      std::vector<double> values(300000, 1.0);
      std::vector<std::int32_t> done{0};
      for (int attempt = 1; attempt <= 12 && done[0] == 0; ++attempt) {
        auto pending = world.all_reduce_async(tensor_view{values});
        std::this_thread::sleep_for(attempt * 50ms);
        done[0] = pending.test() ? 1 : 0;
        pending.wait();
        world.all_reduce(tensor_view{done}, reduction::min{});
      }
      if (done[0] == 0) throw std::runtime_error("requests wait for their ranks");
    });
  });
}
