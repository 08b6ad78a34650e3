// This library's collectives between machines, compared with MPI's own non-blocking ones, alternating in one process:
// the basis of the choice in comm/mpi/native.hpp. For each call and size: milliseconds, median [minimum - maximum] of
// the rounds.
//   scripts/two-hosts mpirun --map-by ppr:2:node -n 4 collectives_mpi_native [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "trireme/comm/mpi.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

struct timing {
  std::vector<double> all;
  void add(double ms) { all.push_back(ms); }
  void print(char const* name) {
    std::sort(all.begin(), all.end());
    std::printf("  %s %9.3f [%.3f - %.3f]", name, all[all.size() / 2], all.front(), all.back());
  }
};

void finish(MPI_Request& request) {
  for (int done = 0, round = 1; done == 0; ++round) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (round % 32 == 0) std::this_thread::yield();  // as this library does
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace trireme;
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  launch(comm::mpi{}, [](auto&) {});  // initialises MPI
  auto ours = comm::mpi::borrow(MPI_COMM_WORLD, std::chrono::seconds(60), false);
  int const p = ours.size();
  bool const speaks = ours.rank() == 0;

  for (std::size_t const bytes : {std::size_t{67 * 8}, std::size_t{16} << 10, std::size_t{256} << 10,
                                  std::size_t{4} << 20, std::size_t{64} << 20}) {
    bool const is_vote = bytes < 1024;
    auto const count = is_vote ? static_cast<std::int64_t>(bytes / 8) : static_cast<std::int64_t>(bytes / 8) / p * p;
    auto const each = static_cast<int>(count / p);
    std::vector<std::int64_t> a(static_cast<std::size_t>(count), 1), b(a.size());
    std::vector<float> x(2 * a.size(), 1.0F), y(x.size());
    struct row {
      char const* name;
      std::function<void()> own;
      std::function<void(MPI_Request*)> native;
    };
    row const rows[] = {
        {"all_reduce i64", [&] { ours.all_reduce(a); },
         [&](MPI_Request* it) {
           MPI_Iallreduce(a.data(), b.data(), static_cast<int>(count), MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD, it);
         }},
        {"all_reduce f32", [&] { ours.all_reduce(x); },
         [&](MPI_Request* it) {
           MPI_Iallreduce(x.data(), y.data(), static_cast<int>(2 * count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, it);
         }},
        {"reduce_scatter f32", [&] { ours.reduce_scatter(x); },
         [&](MPI_Request* it) {
           MPI_Ireduce_scatter_block(x.data(), y.data(), 2 * each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, it);
         }},
        {"all_gather", [&] { ours.all_gather(a); },
         [&](MPI_Request* it) {
           MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a.data(), each, MPI_UINT64_T, MPI_COMM_WORLD, it);
         }},
        {"broadcast", [&] { ours.broadcast(a, 0); },
         [&](MPI_Request* it) { MPI_Ibcast(a.data(), static_cast<int>(count), MPI_UINT64_T, 0, MPI_COMM_WORLD, it); }},
        {"all_to_all", [&] { ours.all_to_all(a, b); },
         [&](MPI_Request* it) {
           MPI_Ialltoall(a.data(), each, MPI_UINT64_T, b.data(), each, MPI_UINT64_T, MPI_COMM_WORLD, it);
         }},
    };
    for (auto const& it : rows) {
      if (is_vote && &it != &rows[0]) break;
      timing own, native;
      int const calls = is_vote ? 200 : bytes < (1U << 20) ? 10 : 1;
      for (int round = -1; round < rounds; ++round)
        for (int turn = 0; turn < 2; ++turn) {
          bool const mine = (turn + round) % 2 == 0;
          ours.barrier();
          auto const begin = clock_type::now();
          for (int call = 0; call < calls; ++call) {
            if (mine) {
              it.own();
            } else {
              MPI_Request request = MPI_REQUEST_NULL;
              it.native(&request);
              finish(request);
            }
          }
          std::chrono::duration<double, std::milli> const took = clock_type::now() - begin;
          std::vector<double> longest{took.count() / calls};
          ours.all_reduce(longest, reduction::max{});
          if (round >= 0) (mine ? own : native).add(longest[0]);
          std::fill(x.begin(), x.end(), 1.0F);
        }
      if (!speaks) continue;
      std::printf("%-20s %9zu B", it.name, bytes);
      own.print("own");
      native.print("native");
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}
