// test-sanitize: none
#include <atomic>
#include <vector>

#include "../support/counted_allocations.hpp"
#include "../support/spline.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/parallel/context.hpp"

using namespace trireme;

namespace {

/// Allocations of all ranks and their readers from step 8 of fit() to step 20; with 45 samples some batches are short.
template <class Model, class Data, class... Policies>
long allocations_of_steps(int ranks, Model const& model, Data const& data, Policies... policies) {
  watchdog dog("counting allocations");
  std::atomic<long> counted{-1};
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto mine = model;
    auto trainer = make_trainer(mine, toy::adaptive, world, policies...);
    long before = 0;
    trainer.on_step([&](step_report const& done) {
      world.barrier();  // no rank is in a step
      if (done.step == 8) before = allocations.load();
      if (done.step == 19 && world.rank() == 0) counted = allocations.load() - before;
      world.barrier();
    });
    trainer.fit(data, {.steps = 20, .batch = 10, .micro_batches = 6});
  });
  return counted;
}

}  // namespace

TEST_CASE("after the first steps of a training no step allocates", "[train][allocation]") {
  compression::error_feedback<compression::top_k> const sparse{.inner = {.ratio = 0.1F}};
  auto const of_gpt = [](int ranks, auto... policies) {
    return allocations_of_steps(ranks, toy::gpt, toy::text{}, policies...);
  };
  CHECK(of_gpt(1) == 0);
  CHECK(of_gpt(2) == 0);
  CHECK(of_gpt(2, parallel::zero<1>{.bucket_bytes = 8192}) == 0);
  CHECK(of_gpt(3, parallel::zero<1>{.bucket_bytes = 8192}, compression::cast<bf16>{}) == 0);
  CHECK(of_gpt(2, precision::bf16{}, sparse) == 0);
  CHECK(of_gpt(3, parallel::context{}) == 0);
  CHECK(of_gpt(2, parallel::context{.method = parallel::context_method::all_to_all}) == 0);
}

TEST_CASE("a plain model's steps allocate nothing either", "[train][allocation]") {
  auto const data = data::function([](float x) { return x * x; }, {.samples = 45, .low = -1, .high = 1});
  CHECK(allocations_of_steps(2, toy::spline(), data) == 0);
  CHECK(allocations_of_steps(2, toy::spline(), data, parallel::zero<1>{}) == 0);
}
