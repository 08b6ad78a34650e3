// test-alone: scripts/two_hosts_test.sh runs it
// test-ranks: 1 2 3 4
// test-timeout: 300
// test-mpich: 2 3
#include "trireme/comm/mpi.hpp"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../comm/message_engine.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

namespace {
struct in_any_order : comm::mpi_world {
  using below = comm::mpi_world;
  static constexpr bool ordered = false;
  explicit in_any_order(below&& it) noexcept : below(std::move(it)) {}
  in_any_order split(int color, int key) { return in_any_order(below::split(color, key)); }
  in_any_order duplicate() { return in_any_order(below::duplicate()); }
};

void climb(char const* how, comm::mpi const& description) {
  watchdog dog(how, 280s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(how << ": " << name);
    CHECK_NOTHROW(trireme::launch(description, rung));
  });
}
}  // namespace

TEST_CASE("every rung holds on the processes of mpirun in shared memory", "[ladder][mpi]") {
  climb("in shared memory", {.deadline = 60s});
}

TEST_CASE("every rung holds on MPI's messages", "[ladder][mpi]") {
  climb("by messages", {.deadline = 60s, .shared_memory = false});
}

TEST_CASE("every rung holds on sums of MPI's own", "[ladder][mpi]") {
  watchdog dog("in any order", 280s);
  trireme::launch(comm::mpi{.deadline = 60s, .shared_memory = false, .order = comm::sum_order::any}, [&](auto& world) {
    in_any_order view(world.duplicate());
    ladder::for_each_rung([&](char const* name, auto rung) {
      dog.now(name);
      INFO("in any order: " << name);
      CHECK_NOTHROW(rung(view));
    });
    // They begin in one order, whichever has been compared first, and beside ours.
    std::vector<std::vector<double>> many(6, std::vector<double>(200'000, world.rank() + 1.0));
    std::vector<std::int64_t> counts(900'001, -1);
    {
      auto sums = world.all_reduce_async(counts);
      auto mean = world.all_reduce_async(many[0], trireme::reduction::mean{});
      auto least = world.all_reduce_async(many[1], trireme::reduction::min{});  // ours
      auto last = world.all_reduce_async(many[2]);
      world.all_reduce(many[3]);
    }
    int const p = world.size();
    CHECK(counts.back() == -p);
    CHECK(many[0].back() == (p + 1) / 2.0);
    CHECK(many[1].back() == 1);
    CHECK(many[2].front() == p * (p + 1) / 2.0);
    CHECK(many[3].front() == p * (p + 1) / 2.0);
  });
}

TEST_CASE("every rung holds on partial sums that go from machine to machine", "[ladder][mpi]") {
  watchdog dog("carried", 280s);
  trireme::launch(comm::mpi{}, [](auto&) {});  // initialises MPI
  auto const engine = comm::detail::message_engine::on_duplicate(MPI_COMM_WORLD, 60s);
  if (engine->size() % 2 != 0 || engine->size() < 4) return;
  std::vector<int> machines;
  for (int rank = 0; rank < engine->size(); ++rank) machines.push_back(rank / 2);
  engine->stand_on(machines);
  comm::mpi_world world(engine);
  CHECK_NOTHROW(ladder::async_overlap(world));
  CHECK_NOTHROW(ladder::large(world));
  // Several at a time, of other types, and in groups that inherit where their ranks are.
  auto pairs = world.split(0, world.rank());
  std::vector<trireme::bfloat16> a(500'001), b(a.size());
  std::vector<double> c(300'001);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = b[i] = ladder::value<trireme::bfloat16>(world.rank(), static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = ladder::value<double>(world.rank(), static_cast<std::int64_t>(i));
  auto const d = c;
  auto first = world.all_reduce_async(a, trireme::reduction::mean{});
  auto second = pairs.all_reduce_async(c);
  second.wait();
  first.wait();
  auto flat = comm::mpi::borrow(MPI_COMM_WORLD, 60s, false);
  flat.all_reduce(b, trireme::reduction::mean{});
  auto e = d;
  flat.all_reduce(e);
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
  CHECK(std::memcmp(c.data(), e.data(), c.size() * sizeof(c[0])) == 0);
}

TEST_CASE("sums between the hosts of mpirun have the bits of flat sums", "[ladder][mpi]") {
  watchdog dog("hosts", 280s);
  trireme::launch(comm::mpi{}, [](auto&) {});                                             // initialises MPI
  comm::mpi_world flat(comm::detail::message_engine::on_duplicate(MPI_COMM_WORLD, 60s));  // knows no machines
  auto world = comm::mpi::borrow(MPI_COMM_WORLD, 60s, false);
  auto const same = [&]<class T>(T, auto op, std::int64_t count) {
    std::vector<T> a(static_cast<std::size_t>(count * world.size()));
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = ladder::value<T>(world.rank(), static_cast<std::int64_t>(i));
    auto b = a, c = a, d = a;
    world.all_reduce(a, op);
    flat.all_reduce(b, op);
    CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
    world.reduce_scatter(c, op);
    flat.reduce_scatter(d, op);
    auto const own = static_cast<std::size_t>(count * world.rank());
    CHECK(std::memcmp(&c[own], &d[own], static_cast<std::size_t>(count) * sizeof(T)) == 0);
  };
  for (std::int64_t const count : {1, 1000, 100'003}) {
    same(float{}, trireme::reduction::sum{}, count);
    same(double{}, trireme::reduction::mean{}, count);
    same(trireme::bfloat16{}, trireme::reduction::mean{}, count);
  }
}

TEST_CASE("borrowing does not change a communicator", "[mpi]") {
  watchdog dog("borrow", 60s);
  trireme::launch(comm::mpi{}, [](auto&) {});  // initialises MPI
  for (bool const shared_memory : {true, false}) {
    auto world = comm::mpi::borrow(MPI_COMM_SELF, 60s, shared_memory);
    CHECK(world.size() == 1);
    auto wide = comm::mpi::borrow(MPI_COMM_WORLD, 60s, shared_memory);
    CHECK_NOTHROW(ladder::all_gather(wide));
  }
  int size = 0;
  CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
  CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
}
