// Memory of CUDA devices: scratch of kernels in a stream's order, what is said when a device has no memory left, and
// how often a training asks for memory and waits. The stand-in for CUDA's runtime counts. And what is said when a
// kernel fails.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "../../comm/stand_in/ranks.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "training.hpp"
#include "trireme/train/plan.hpp"

using namespace on_device;

namespace {

nn::gpt const model{.vocabulary = 23, .context = 8, .layers = 1, .heads = 2, .channels = 16};
ordered_words const words{model.context, model.vocabulary};
optim::adamw const moving{.learning_rate = 1e-3, .epsilon = 1e-4, .clip = 1.0};

/// The most waits of the host in a step after the first, of one rank: for the norm of the gradient, and with it for the
/// loss.
constexpr std::int64_t most_waits_of_a_step = 1;

/// What a step asked of CUDA, over all ranks.
struct asked {
  std::int64_t device_allocations = 0, pinned_allocations = 0, host_waits = 0;
};
asked now() {
  auto const& all = stand_in::counts();
  return {all.device_allocations, all.pinned_allocations, all.host_waits};
}
asked operator-(asked const& a, asked const& b) {
  return {a.device_allocations - b.device_allocations, a.pinned_allocations - b.pinned_allocations,
          a.host_waits - b.host_waits};
}
/// Three steps of a training, and what each of them asked, as rank 0 sees it. With several ranks the steps of others
/// overlap with them.
template <class World, class Parallel, class Precision>
void count_steps(std::vector<asked>& all, World& world, Parallel const& parallel, Precision const& precision,
                 std::int64_t micro_batches = 0) {
  auto trainer = make_trainer(model, moving, world, parallel, precision);
  asked before = now();
  trainer.on_step([&](step_report const&) {
    if (world.rank() != 0) return;
    auto const here = now();
    all.push_back(here - before);
    before = here;
  });
  trainer.fit(words, {.steps = 3, .batch = 4, .micro_batches = micro_batches});
}
template <class Parallel, class Precision>
std::vector<asked> steps_of(int ranks, Parallel const& parallel, Precision const& precision,
                            std::int64_t micro_batches = 0) {
  watchdog const guard("a training that is counted", std::chrono::seconds(280));
  std::vector<asked> all;
  launch_in<cuda>(ranks, std::chrono::seconds(120),
                  [&](auto& world) { count_steps(all, world, parallel, precision, micro_batches); });
  return all;
}
/// Changes the memory of the stand-in's devices.
struct limited_memory {
  explicit limited_memory(std::size_t bytes) : before(stand_in::device_bytes()) { stand_in::device_bytes() = bytes; }
  limited_memory(limited_memory const&) = delete;
  limited_memory& operator=(limited_memory const&) = delete;
  ~limited_memory() { stand_in::device_bytes() = before; }
  std::size_t before;
};
std::size_t used_bytes() {
  std::size_t free = 0, total = 0;
  REQUIRE(::cudaMemGetInfo(&free, &total) == cudaSuccess);
  return total - free;
}

}  // namespace

TEST_CASE("a step after the first takes no memory of the device, and waits once", "[memory]") {
  auto const check = [](std::string const& what, std::vector<asked> const& steps, std::int64_t most_waits,
                        std::size_t first = 1) {
    INFO(what);
    REQUIRE(steps.size() == 3);
    CHECK(steps[0].device_allocations > 0);
    for (std::size_t k = first; k < steps.size(); ++k) {
      INFO("step " << k + 1);
      CHECK(steps[k].device_allocations == 0);
      CHECK(steps[k].pinned_allocations == 0);
      CHECK(steps[k].host_waits <= most_waits);
    }
  };
  check("fp32", steps_of(1, parallel::data{}, precision::fp32{}), most_waits_of_a_step);
  check("bf16", steps_of(1, parallel::data{}, precision::bf16{}), most_waits_of_a_step);
  check("two micro-batches", steps_of(1, parallel::data{}, precision::fp32{}, 2), most_waits_of_a_step);
  constexpr std::int64_t any = 1'000'000;
  std::vector<asked> over_nccl;
  stand_in::on_ranks(2, {.deadline = std::chrono::seconds(120)},
                     [&](auto& world) { count_steps(over_nccl, world, parallel::data{}, precision::fp32{}); });
  check("two ranks of NCCL", over_nccl, any, 2);
}

TEST_CASE("scratch memory of kernels grows in the order of the stream, without a wait", "[memory]") {
  std::thread([] {  // whose scratch memory is new
    auto const used = used_bytes();
    tensor<float, cuda> first(shape{64}), second(shape{1024});
    auto const grow_and_copy = [](tensor_view<float, cuda> to, double number) {
      tensor_view<float, cuda> const scratch(static_cast<float*>(ops::detail::cuda_scratch("test", to.bytes())),
                                             to.extents());
      kernels::fill(scratch, number);
      kernels::copy(to, tensor_view<float const, cuda>(scratch));
    };
    auto const before = now();
    grow_and_copy(first, 3);
    grow_and_copy(second, 5);  // gives back what the first copy may not yet have read
    auto const done = now() - before;
    CHECK(done.device_allocations == 2);
    CHECK(done.host_waits == 0);
    CHECK(kernels::read(first.view(), 63) == 3);
    CHECK(kernels::read(second.view(), 1023) == 5);
    CHECK(used_bytes() >= used + second.view().bytes());
    CHECK(ops::detail::cuda_scratch("test", 64) == ops::detail::cuda_scratch("test", 4096));
  })
      .join();

  stand_in::has_pools = false;  // asked once for each device; no other test uses this one
  std::thread([] {
    REQUIRE(::cudaSetDevice(63) == cudaSuccess);
    auto const used = used_bytes();
    for (std::size_t const bytes : {std::size_t{256}, std::size_t{512}}) {
      CHECK(ops::detail::cuda_scratch("test", bytes) != nullptr);
      CHECK(used_bytes() == used + bytes);
    }
  }).join();
  stand_in::has_pools = true;
}

TEST_CASE("a device without memory left is named with the numbers", "[memory]") {
  auto const used = used_bytes();
  {
    limited_memory const limit(used + 1024);
    auto const said = [](auto&& action) { return sentence_of<device_memory_error>(action); };
    auto const sizes = text("on device 0, which has 1024 of ", used + 1024, " bytes free");
    std::string const advice =
        "; take a smaller batch, more micro-batches or nn::checkpointed, or shard by "
        "parallel::zero";
    auto const large = [] { tensor<float, cuda> const too_large(shape{1 << 20}); };
    CHECK(said(large) == text("trireme::cuda: no memory for 4194304 bytes ", sizes, advice));
    cuda::remember_plan(123456);
    CHECK(said(large) == text("trireme::cuda: no memory for 4194304 bytes ", sizes,
                              " (the plan of this rank foresaw at least 123456 bytes)", advice));
    cuda::remember_plan(0);
    CHECK(said([] { (void)ops::detail::cuda_scratch("muon_normalise", 1 << 20); }) ==
          text("trireme::ops::muon_normalise in CUDA memory: no memory for 1048576 bytes ", sizes, advice));
    CHECK_THROWS_AS(large(), std::bad_alloc);
    try {
      large();
    } catch (device_memory_error const& problem) {
      CHECK(problem.state().asked == std::size_t{4} << 20);
      CHECK(problem.state().planned == 0);
      CHECK(problem.state().free == 1024);
      CHECK(problem.state().total == used + 1024);
    }
    tensor<float, cuda> const small(shape{256});
  }
  tensor<float, cuda> const fits_now(shape{1 << 20});
}

TEST_CASE("a plan in CUDA memory says what the device has, and so does the error if that is not enough", "[memory]") {
  auto const used = used_bytes();
  auto const train_within = [&](int ranks, std::size_t bytes, training_plan& planned) {
    limited_memory const limit(used + bytes);
    launch_in<cuda>(ranks, std::chrono::seconds(60), [&](auto& world) {
      auto trainer = make_trainer(model, moving, world);
      auto const made = plan(trainer, {.samples = 4});
      if (world.rank() == 0) planned = made;
      trainer.fit(words, {.steps = 1, .batch = 4});
    });
    cuda::remember_plan(0);
  };
  training_plan planned;
  constexpr std::size_t enough = std::size_t{64} << 20;
  train_within(2, enough, planned);
  CHECK(planned.device_bytes == static_cast<std::int64_t>(used + enough));
  CHECK(planned.ranks_on_device == 2);
  CHECK(planned.bytes_on_device() == 2 * planned.memory.total());
  CHECK(planned.fits());
  auto const words_of_plan =
      text("  device: ", used + enough, " bytes, planned for 2 ranks on it: ", planned.bytes_on_device(), " bytes\n");
  CHECK(contains(to_string(planned), words_of_plan));
  CHECK(!contains(to_string(planned), "will not fit"));
  CHECK(plan_for({.samples = 4}, model, moving).device_bytes == 0);

  // Rates of an H200, which two ranks share: products of float without tensor cores.
  CHECK(planned.rates.flops == Approx(2.0 * 128 * 132 * 1.98e9));
  CHECK(planned.rates.bandwidth == Approx(2.0 * 3.201e9 * 6144 / 8));
  CHECK(planned.computing == Approx(planned.flops * 2 / planned.rates.flops));
  CHECK(contains(to_string(planned), "  device, at most: 66.9 TFLOP/s, and 4917 GB/s of its memory\n"));
  CHECK(cuda::rates(dtype::bf16).flops == Approx(2.0 * 2048 * 132 * 1.98e9));
  CHECK(cuda::rates(dtype::f32, true).flops == Approx(cuda::rates(dtype::bf16).flops / 2));
  CHECK(detail::products_of_multiprocessor(7, 5, dtype::bf16, false) == 0);
  CHECK(detail::products_of_multiprocessor(99, 0, dtype::f32, false) == 0);

  // The values and gradients fit, all of it does not.
  auto const said = sentence_of<device_memory_error>([&] {
    train_within(
        1,
        static_cast<std::size_t>(planned.memory.parameters + planned.memory.gradients + planned.memory.optimizer) +
            65536,
        planned);
  });
  CHECK(!planned.fits());
  CHECK(contains(to_string(planned), "  the training will not fit into the memory of the device: take a smaller "));
  CHECK(contains(said, text("(the plan of this rank foresaw at least ", planned.memory.total(), " bytes)")));
}

// In a process of its own, because a device that has failed stays so, and the variable is read once.
TEST_CASE("a training one of whose kernels fails", "[.][failing_training]") {
  try {
    (void)steps_of(1, parallel::data{}, precision::fp32{});
    std::puts("nothing has failed");
  } catch (device_error const& problem) {
    std::puts(problem.what());
  }
}

TEST_CASE("a kernel that fails is reported by the next wait, and named with its layer if each is waited for",
          "[memory]") {
  std::array<char, 4096> path{};
  REQUIRE(::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
  auto const said = [&](int kernel, bool checked) {
    auto const command = text("STAND_IN_FAULTY_KERNEL=", kernel, checked ? " TRIREME_CUDA_CHECK=1 '" : " '",
                              path.data(), "' '[failing_training]' 2>&1");
    auto* const pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string all;
    std::array<char, 4096> some{};
    while (auto const n = std::fread(some.data(), 1, some.size(), pipe)) all.append(some.data(), n);
    (void)::pclose(pipe);
    return all;
  };
  std::string const reason =
      "trireme::cuda: waiting for this thread's stream failed: CUDA reports: an illegal memory access was encountered "
      "(cudaErrorIllegalAddress)";
  auto const late = said(30, false);
  INFO(late);
  CHECK(contains(late, reason + ", from something that was queued before; TRIREME_CUDA_CHECK=1 in the environment "
                                "names it"));
  bool forward = false, backward = false, update = false;
  for (int kernel = 40; kernel <= 200 && !(forward && backward && update); ++kernel) {  // the update may be one kernel
    auto const now = said(kernel, true);
    INFO("kernel " << kernel << ": " << now);
    CHECK(contains(now, " in CUDA memory: " + reason));
    forward = forward || contains(now, "trireme::model: forward of ");
    backward = backward || contains(now, "trireme::model: backward of ");
    update = update || contains(now, "trireme::ops::adamw in CUDA memory: ");
  }
  CHECK((forward && backward && update));
}
