// test-timeout: 300
// Whole trainings in memory that notes what kernels and collectives use: no strategy, axis, compressor or optimizer
// touches memory that a collective is working on, and the host reads once a step.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/recording.hpp"
#include "../support/small_gpt.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

struct outcome {
  std::vector<std::string> findings;            ///< of all ranks
  std::int64_t orders = 0;                      ///< of rank 0
  std::int64_t waits = 0;                       ///< of rank 0
  std::vector<std::vector<std::string>> reads;  ///< of rank 0, in each step
};

/// Four steps of two micro-batches on some ranks, one of whose order() may be left out.
template <class Model, class Optimizer, class... Policies>
outcome record(std::string const& name, int ranks, Model const& what, Optimizer const& optimizer, std::int64_t left_out,
               Policies const&... policies) {
  watchdog const guard(name);
  outcome all;
  std::mutex lock;
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](auto& threads) {
    recording::log log;
    log.left_out = threads.rank() == 0 ? left_out : -1;
    recording::current = &log;
    {
      recording::world world(threads.duplicate());
      auto trainer = make_trainer(what, optimizer, world, policies...);
      log.reads.clear();
      trainer.on_step([&](auto const&) {
        if (world.rank() == 0) all.reads.push_back(log.reads);
        log.reads.clear();
      });
      static_cast<void>(trainer.fit(toy::text_for(toy::gpt, 64), {.steps = 4, .batch = 8, .micro_batches = 2}));
    }
    recording::current = nullptr;
    std::lock_guard const one(lock);
    all.findings.insert(all.findings.end(), log.findings.begin(), log.findings.end());
    if (threads.rank() != 0) return;
    all.orders = log.orders;
    all.waits = log.waits;
  });
  return all;
}

std::string lines(std::vector<std::string> const& all) {
  std::string out;
  for (auto const& each : all) out += each + "\n";
  return out;
}

/// Nothing is found, and the host reads once a step. Then some orders are left out, one in each training: each of them
/// is found.
template <class Model, class Optimizer, class... Policies>
void expect_ordered(std::string const& name, int ranks, Model const& what, Optimizer const& optimizer,
                    Policies const&... policies) {
  INFO(name);
  auto const done = record(name, ranks, what, optimizer, -1, policies...);
  INFO(lines(done.findings));
  CHECK(done.findings.empty());
  CHECK(done.orders > 0);
  CHECK(done.waits == 0);
  for (auto const& step : done.reads) CHECK(lines(step) == "squares\n");
  for (auto const left_out : {std::int64_t{0}, done.orders / 2}) {
    INFO("without order() number " << left_out << " of " << done.orders);
    auto const less = record(name, ranks, what, optimizer, left_out, policies...);
    CHECK_FALSE(less.findings.empty());
  }
}

}  // namespace

TEST_CASE("an order() that is left out is found, with the kernel and the collective", "[recording]") {
  auto const less = record("zero1", 2, toy::gpt, toy::adaptive, 0, parallel::zero<1>{.bucket_bytes = 4096});
  REQUIRE_FALSE(less.findings.empty());
  CHECK(less.findings.front() ==
        "squares reads what reduce_scatter(F32, 2048 elements, sum) writes, without order() between them");
}

TEST_CASE("kernels are ordered after collectives under data, zero and similar strategies", "[recording]") {
  expect_ordered("data", 2, toy::gpt, toy::adaptive);
  expect_ordered("data, many buckets", 3, toy::gpt, toy::steady, parallel::data{.bucket_bytes = 4096});
  expect_ordered("zero1", 2, toy::gpt, toy::adaptive, parallel::zero<1>{.bucket_bytes = 4096});
  expect_ordered("zero2", 2, toy::gpt, toy::adaptive, parallel::zero<2>{});
  expect_ordered("zero3", 2, toy::gpt, toy::adaptive, parallel::zero<3>{});
  expect_ordered("diloco", 2, toy::gpt, toy::adaptive, parallel::diloco{.period = 2});
  expect_ordered("parameter_server", 2, toy::gpt, toy::adaptive, parallel::parameter_server{.staleness = 2});
}

TEST_CASE("kernels are ordered after collectives under the axes of a mesh", "[recording]") {
  expect_ordered("tensor", 2, toy::gpt, toy::adaptive, parallel::tensor{});
  expect_ordered("pipeline", 2, toy::gpt, toy::adaptive, parallel::pipeline<>{});
  expect_ordered("context", 2, toy::gpt, toy::adaptive, parallel::context{});
  expect_ordered("mesh", 4, toy::gpt, toy::adaptive, parallel::mesh{parallel::zero<1>{}, parallel::tensor{.ways = 2}});
}

TEST_CASE("kernels are ordered after collectives with compressors", "[recording]") {
  using compression::error_feedback;
  expect_ordered("cast", 2, toy::gpt, toy::adaptive, compression::cast<bf16>{});
  expect_ordered("top_k", 2, toy::gpt, toy::adaptive, error_feedback<compression::top_k>{});
  expect_ordered("zero1 top_k", 2, toy::gpt, toy::adaptive, parallel::zero<1>{}, compression::top_k{.ratio = 0.5F});
  expect_ordered("power_sgd", 2, toy::gpt, toy::adaptive, compression::power_sgd{.rank = 2});
  expect_ordered("int8", 2, toy::gpt, toy::adaptive, error_feedback<compression::quantise<8>>{});
  expect_ordered("random_k", 2, toy::gpt, toy::adaptive, compression::random_k{});
  expect_ordered("sign", 2, toy::gpt, toy::adaptive, error_feedback<compression::sign>{});
  expect_ordered("dgc", 2, toy::gpt, optim::sgd{.learning_rate = 0.1, .momentum = 0}, compression::dgc{});
}

TEST_CASE("kernels are ordered after collectives with each optimizer", "[recording]") {
  expect_ordered("muon", 2, toy::gpt, optim::muon{});
  expect_ordered("lamb", 2, toy::gpt, optim::lamb{});
  expect_ordered("adafactor", 2, toy::gpt, optim::adafactor{});
}

TEST_CASE("the host reads how many rows each expert gets, and nothing else", "[recording]") {
  auto experts = toy::gpt;
  experts.experts = 2;
  auto const done = record("expert", 2, experts, toy::adaptive, -1, parallel::expert{});
  INFO(lines(done.findings));
  CHECK(done.findings.empty());
  for (auto const& step : done.reads) {
    REQUIRE_FALSE(step.empty());
    CHECK(step.back() == "squares");
    CHECK(std::count(step.begin(), step.end(), "sort_by_expert") == std::ssize(step) - 1);
  }
}
