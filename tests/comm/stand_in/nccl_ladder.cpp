// comm::nccl on the stand-in for CUDA and NCCL: 1 to 4 ranks, which are threads of this process.
#include <atomic>
#include <thread>

#include "../../gpu/nccl_cases.hpp"
#include "ranks.hpp"
#include "routes.hpp"

namespace comm = trireme::comm;
using namespace std::chrono_literals;
using stand_in::on_ranks;
using trireme::cuda;

int main() {
  gpu::cases cases;
  for (int const size : {1, 2, 3, 4})
    for (bool const ordered : {false, true}) {
      comm::nccl const description{.deadline = 60s, .order = ordered ? comm::sum_order::ranks : comm::sum_order::any};
      auto const on = trireme::text(" on ", size, ordered ? " ranks, in order" : " ranks");
      ladder::for_each_rung([&](char const* name, auto rung) {
        cases.run(name + on, [&] {
          on_ranks(size, description, [&](comm::nccl_world& world) {
            if (ordered) {
              gpu::in_order view(world.duplicate());
              rung(view);
            } else {
              rung(world);
            }
          });
        });
      });
      cases.run("votes in host memory" + on,
                [&] { on_ranks(size, description, [](comm::nccl_world& world) { gpu::votes(world); }); });
    }

  cases.run("a rank that does not call ends the others' waits at the deadline", [] {
    std::string said[2];
    on_ranks(2, {.deadline = 300ms}, [&](comm::nccl_world& world) {
      if (world.rank() == 1) return;
      trireme::tensor<float, cuda> values({1000});
      said[0] = sentence_of<trireme::comm_error>(
          [&] { world.all_reduce_async(values.view(), trireme::reduction::sum{}).wait(); });
      said[1] = sentence_of<trireme::comm_error>([&] { world.barrier(); });
    });
    ladder::expect(
        said[0].starts_with("trireme::comm::nccl: all_reduce(F32, 1000 elements, sum) number 1 waited 300ms"), said[0]);
    ladder::expect(said[1] == said[0], "a later call says: ", said[1]);
  });
  // Rank 1 calls only when rank 0 has gone on, so rank 0 cannot have waited for the result.
  enum class how { ordered, dropped, blocking };
  for (auto const way : {how::ordered, how::dropped, how::blocking})
    cases.run(way == how::ordered   ? "order() lets the host go on, and what is queued sees the result"
              : way == how::dropped ? "a request that is dropped orders"
                                    : "a blocking collective orders",
              [&] {
                std::atomic<bool> gone_on{false};
                on_ranks(2, {.deadline = 60s}, [&](comm::nccl_world& world) {
                  static_assert(trireme::has_order<comm::nccl_request>);
                  std::vector<float> own(1000, static_cast<float>(world.rank() + 1)), out(1000);
                  trireme::tensor<float, cuda> values({1000}), copy({1000});
                  cudaMemcpyAsync(values.view().address(), own.data(), 4000, cudaMemcpyHostToDevice, cuda::stream());
                  if (world.rank() == 1)
                    while (!gone_on) std::this_thread::yield();
                  if (way == how::blocking) {
                    world.all_reduce(values.view());
                  } else {
                    auto pending = world.all_reduce_async(values.view(), trireme::reduction::sum{});
                    if (way == how::ordered) trireme::order(pending);
                  }
                  if (world.rank() == 0) gone_on = true;
                  comm::space_kernels<cuda>::copy(copy.view().address(), values.view().address(), 4000);
                  cudaMemcpyAsync(out.data(), copy.view().address(), 4000, cudaMemcpyDeviceToHost, cuda::stream());
                  cuda::finish();
                  ladder::expect(out == std::vector<float>(1000, 3), "the copy has ", out[0]);
                  for (int i = 0; i < 100; ++i) world.all_reduce(values.view());  // operations are used again
                  world.barrier();
                });
              });
  cases.run("what is ordered and late ends the wait for the stream at the deadline, and later calls", [] {
    std::string said[3];
    on_ranks(2, {.deadline = 300ms}, [&](comm::nccl_world& world) {
      if (world.rank() == 1) return;
      trireme::tensor<float, cuda> values({1000});
      world.all_reduce(values.view());
      world.all_reduce(values.view());
      said[0] = sentence_of<trireme::comm_error>([&] { cuda::finish(); });
      said[1] = sentence_of<trireme::comm_error>([&] { world.barrier(); });
    });
    on_ranks(2, {.deadline = 300ms}, [&](comm::nccl_world& world) {
      if (world.rank() == 1) return;
      trireme::tensor<float, cuda> values({1000});
      world.all_reduce(values.view());
      said[2] = sentence_of<trireme::comm_error>([&] { world.barrier(); });
    });
    for (auto const& each : said)
      ladder::expect(each.starts_with("trireme::comm::nccl: all_reduce(F32, 1000 elements, sum) number 1 waited 300ms"),
                     each);
  });
  cases.run("who is missing is asked for after a failure", [] {
    comm::gathering const two{.size = 2,
                              .all_gather =
                                  [](std::string const& own) {
                                    return std::vector<std::string>{own, "another device"};
                                  },
                              .who_is_missing = [] { return std::string("rank 1 has died"); }};
    auto const sentence =
        sentence_of<trireme::comm_error>([&] { comm::nccl_world const world(comm::nccl{.deadline = 200ms}, two); });
    ladder::expect(sentence.ends_with("; rank 1 has died"), sentence);
  });
  cases.run("without a launcher each device has a rank, which is a thread", [] {
    std::atomic<int> sum{0};
    auto const size = trireme::launch(comm::nccl{}, [&](comm::nccl_world& world) {
      std::vector<std::int32_t> ranks{world.rank()};
      world.all_reduce(trireme::tensor_view<std::int32_t>(ranks), trireme::reduction::sum{});
      sum += ranks[0];
      return world.size();
    });
    ladder::expect(size == stand_in::devices && sum == 4 * 6, size, " ranks, whose sums are ", sum.load());
    auto const sentence = sentence_of<trireme::error>([] {
      trireme::launch(comm::nccl{}, [](comm::nccl_world& world) {
        if (world.rank() == 2) throw trireme::config_error("this rank has had enough");
        world.barrier();
      });
    });
    ladder::expect(sentence.find("this rank has had enough") != std::string::npos, sentence);
    stand_in::devices = 1;
    auto const alone = trireme::launch(comm::nccl{}, [](comm::nccl_world& world) { return world.size(); });
    stand_in::devices = 4;
    ladder::expect(alone == 1, alone, " ranks on one device");
  });
  cases.run("two ranks on one device are refused in one sentence; a process takes the only device it sees", [] {
    comm::gathering const two{.rank = 1, .size = 2, .local_rank = 1, .all_gather = [](std::string const& own) {
                                return std::vector<std::string>{std::string(129, 'y') + own, own};
                              }};
    auto const sentence =
        sentence_of<trireme::config_error>([&] { comm::nccl_world const world(comm::nccl{.deadline = 200ms}, two); });
    ladder::expect(
        sentence.starts_with("trireme::comm::nccl: ranks 0 and 1 have the same device (") &&
            sentence.ends_with("or use comm::threads with comm::in_space<cuda>(world), whose ranks share one"),
        sentence);
    stand_in::devices = 1;
    int device = -1;
    (void)sentence_of<trireme::config_error>([&] { comm::nccl_world const world(comm::nccl{.deadline = 200ms}, two); });
    (void)cudaGetDevice(&device);
    stand_in::devices = 4;
    ladder::expect(device == 0, "device ", device);
    auto const asked = sentence_of<trireme::config_error>(
        [&] { comm::nccl_world const world(comm::nccl{.deadline = 200ms, .device = 7}, two); });
    ladder::expect(asked.starts_with("trireme::comm::nccl: this rank asks for device 7 of 4; give every rank a device"),
                   asked);
  });
  stand_in::try_routes(cases);
  return cases.exit_code();
}
