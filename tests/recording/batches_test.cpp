// test-timeout: 120
// How batches come to a device: a loader fills memory of the host that they are copied from on a queue of their own,
// one micro-batch ahead of the kernels. Each order between copies, kernels and the loader is needed, and found if left
// out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/recording.hpp"
#include "../support/small_gpt.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

using source = decltype(toy::text_for(toy::gpt, 64));

/// A dataset that notes where the loader's threads write.
struct noted {
  source const& data;
  recording::log& log;
  [[nodiscard]] std::int64_t size() const { return data.size(); }
  [[nodiscard]] dtype input_type() const { return data.input_type(); }
  [[nodiscard]] dtype target_type() const { return data.target_type(); }
  [[nodiscard]] shape input_shape() const { return data.input_shape(); }
  [[nodiscard]] shape target_shape() const { return data.target_shape(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto const bytes = [&](dtype type, shape const& one) {
      return ids.size() * static_cast<std::size_t>(one.size()) * size_of(type);
    };
    log.host_writes(ids.data(), ids.size_bytes());
    log.host_writes(inputs, bytes(input_type(), input_shape()));
    log.host_writes(targets, bytes(target_type(), target_shape()));
    data.read(ids, inputs, targets);
  }
};

struct outcome {
  std::vector<std::string> findings;                               ///< of all ranks
  std::int64_t copies = 0, orders = 0, follows = 0, finishes = 0;  ///< of rank 0
};

/// Six steps, in the middle of which the loss over the dataset is computed.
template <class... Policies>
outcome record(int ranks, std::int64_t micro_batches, recording::omissions const& without,
               Policies const&... policies) {
  watchdog const guard("a training whose batches are copied ahead");
  outcome all;
  std::mutex lock;
  auto const text = toy::text_for(toy::gpt, 64);
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](auto& threads) {
    recording::log log;
    if (threads.rank() == 0) log.without = without;
    recording::current = &log;
    {
      recording::world world(threads.duplicate());
      auto trainer = make_trainer(toy::gpt, toy::adaptive, world, policies...);
      noted const data{text, log};
      trainer.on_step([&](step_report const& done) {
        if (done.step == 2) static_cast<void>(trainer.evaluate(text));
      });
      static_cast<void>(trainer.fit(data, {.steps = 6, .batch = 8, .micro_batches = micro_batches}));
    }
    recording::current = nullptr;
    std::lock_guard const one(lock);
    for (auto const* some : {&log.findings, &log.late})
      all.findings.insert(all.findings.end(), some->begin(), some->end());
    if (threads.rank() == 0) {
      all.copies = log.copies;
      all.orders = log.copy_orders;
      all.follows = log.follows;
      all.finishes = log.finishes;
    }
  });
  return all;
}

std::string lines(std::vector<std::string> const& all) {
  std::string out;
  for (auto const& each : all) out += each + "\n";
  return out;
}
bool has(outcome const& of, std::string const& line) {
  return std::find(of.findings.begin(), of.findings.end(), line) != of.findings.end();
}

}  // namespace

TEST_CASE("batches are copied in order with kernels and loader", "[recording]") {
  auto const check = [](std::string const& name, std::int64_t batches, outcome const& done) {
    INFO(name << "\n" << lines(done.findings));
    CHECK(done.findings.empty());
    CHECK(done.copies >= 3 * batches);  // inputs, targets and ids
    CHECK(done.copies <= 3 * (batches + 1));
    CHECK(done.orders >= batches);
    CHECK(done.finishes > 0);
  };
  check("one micro-batch", 6, record(1, 1, {}));
  check("three micro-batches", 18, record(1, 3, {}));
  check("two ranks", 12, record(2, 4, {}, parallel::zero<2>{}));
  check("a pipeline", 12, record(2, 2, {}, parallel::pipeline<>{}));
}

TEST_CASE("an order of a batch that is left out is found", "[recording]") {
  auto const done = record(1, 2, {});
  REQUIRE(done.follows > 1);
  for (auto const number : {std::int64_t{0}, done.orders - 1}) {
    auto const less = record(1, 2, {.order = number});
    INFO(lines(less.findings));
    CHECK(has(less, "embed reads what the copy of a batch writes, without order() between them"));
  }
  // The second one: a run may need one follow() less at its end, where a copy that is late has nothing to wait for.
  auto const early = record(1, 2, {.follow = 1});
  INFO(lines(early.findings));
  CHECK(has(early, "the copy of a batch writes what embed_backward uses, without follow() between them"));
  auto const late = record(1, 2, {.finish = 0});
  CHECK(has(late, "the loader writes what the copy of a batch reads, without finish() between them"));
}
