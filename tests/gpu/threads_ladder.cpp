// comm::threads on CUDA memory: 1, 2, 3 and 4 ranks of this process share one device.
#include "support.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/launch.hpp"

namespace comm = trireme::comm;
using trireme::cuda;

int main() {
  if (auto const reason = gpu::reason_to_skip(); !reason.empty()) {
    std::printf("skipped: comm::threads on CUDA memory: %s\n", reason.c_str());
    return 77;
  }
  gpu::cases cases;
  for (int const ranks : {1, 2, 3, 4}) {
    comm::threads const description{.ranks = ranks};
    ladder::for_each_rung([&](char const* name, auto rung) {
      cases.run(trireme::text(name, " on ", ranks, " threads in CUDA memory"), [&] {
        trireme::launch(description, [&](auto& world) {
          auto on_device = comm::in_space<cuda>(world);
          rung(on_device);
        });
      });
    });
  }

  cases.run("sums follow what a rank has queued on its stream", [] {
    trireme::launch(comm::threads{.ranks = 2}, [](auto& world) {
      constexpr std::int64_t count = std::int64_t{1} << 24;
      trireme::tensor<float, cuda> values({count});
      for (int round = 0; round < 8; ++round) {
        // Queued, not waited for: zeros first, so that a sum that comes too early shows.
        auto const bytes = static_cast<std::size_t>(count) * sizeof(float);
        trireme::detail::expect_cuda(cudaMemsetAsync(values.view().address(), 0, bytes, cuda::stream()), "memset");
        trireme::detail::expect_cuda(cudaMemsetAsync(values.view().address(), 1, bytes, cuda::stream()), "memset");
        world.all_reduce(values.view());
        auto const got = ladder::memory<cuda>::get(values.view());
        std::uint32_t const bits = 0x01010101U;
        float one = 0;
        std::memcpy(&one, &bits, sizeof one);
        for (auto const at : {std::int64_t{0}, count / 2, count - 1})
          ladder::expect(got[static_cast<std::size_t>(at)] == one + one, "round ", round, ", element ", at);
      }
    });
  });

  cases.run("an error of the device ends the launch and names the rank", [] {
    auto const sentence = sentence_of<trireme::comm_error>([] {
      trireme::launch(comm::threads{.ranks = 2, .deadline = std::chrono::seconds(10)}, [](auto& world) {
        // Far more than there is: a copy that is refused when it is queued.
        trireme::tensor<float, cuda> const values({1024});
        trireme::tensor_view<float, cuda> const beyond(values.view().address(), trireme::shape{std::int64_t{1} << 40});
        world.all_gather(beyond);
      });
    });
    ladder::expect(sentence.find("CUDA reports") != std::string::npos, sentence);
  });
  return cases.exit_code();
}
