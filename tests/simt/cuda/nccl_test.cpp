// A GPT trains in CUDA memory over comm::nccl as in host memory, on the stand-in for NCCL: under each strategy, and in
// several of the orders that streams allow.
#include "trireme/comm/nccl.hpp"

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "../../comm/stand_in/ranks.hpp"
#include "../../support/sentence.hpp"
#include "training.hpp"

using namespace on_device;

namespace {

nn::gpt const model{.vocabulary = 23, .context = 8, .layers = 1, .heads = 2, .channels = 16};
nn::gpt const three_blocks{.vocabulary = 23, .context = 8, .layers = 3, .heads = 2, .channels = 16};
/// Words that take their time.
struct late_words : ordered_words {
  std::chrono::seconds late{0};
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    std::this_thread::sleep_for(late);
    ordered_words::read(ids, inputs, targets);
  }
};
late_words const words{{model.context, model.vocabulary}};
optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

/// The order of streams, until its end.
struct chosen_order {
  explicit chosen_order(int order) { simt::order() = order; }
  chosen_order(chosen_order const&) = delete;
  chosen_order& operator=(chosen_order const&) = delete;
  ~chosen_order() { simt::order() = 0; }
};

/// Frees wait for the device, as those of a device do, until its end.
struct freeing {
  freeing() { stand_in::frees_wait = true; }
  freeing(freeing const&) = delete;
  freeing& operator=(freeing const&) = delete;
  ~freeing() { stand_in::frees_wait = false; }
};

template <class Parallel>
outcome train_over_nccl(int ranks, nn::gpt const& gpt, Parallel const& parallel, comm::sum_order order,
                        settings const& how) {
  watchdog const guard("a training of a GPT over comm::nccl", std::chrono::seconds(280));
  outcome out;
  stand_in::on_ranks(ranks, {.deadline = std::chrono::seconds(120), .order = order}, [&](comm::nccl_world& world) {
    train_in(world, out, gpt, moving, parallel, precision::fp32{}, words, how);
  });
  return out;
}
template <class Parallel>
void compare(std::string const& what, int ranks, Parallel const& parallel, settings const& how = {},
             nn::gpt const& gpt = model, std::vector<int> const& orders = {1, 2, 4}) {
  auto const here = train<host>(ranks, gpt, moving, parallel, precision::fp32{}, words, how);
  for (int const order : orders) {
    INFO(what << " on " << text(ranks, " ranks") << " in order " << order);
    chosen_order const now(order);
    auto const sums = order % 2 == 0 ? comm::sum_order::any : comm::sum_order::ranks;
    CHECK(distance(train_over_nccl(ranks, gpt, parallel, sums, how), here) <= 1e-5);
  }
}
/// One type of mesh, so that trainers are compiled once.
auto mesh_of(int data, int stages, int context, int tensor) {
  return parallel::mesh{parallel::zero<1>{.ways = data}, parallel::any_pipeline{.schedule = "1f1b", .stages = stages},
                        parallel::context{.ways = context}, parallel::tensor{.ways = tensor}};
}

}  // namespace

TEST_CASE("a GPT over comm::nccl: zero<1>, context and tensor", "[nccl]") {
  compare("zero<1>", 3, mesh_of(3, 1, 1, 1));
  compare("context", 2, mesh_of(1, 1, 2, 1));
  compare("tensor", 2, mesh_of(1, 1, 1, 2));
}
TEST_CASE("a GPT over comm::nccl: zero<3>", "[nccl]") { compare("zero<3>", 2, parallel::zero<3>{}); }
TEST_CASE("a GPT over comm::nccl: zero<2>", "[nccl]") { compare("zero<2>", 2, parallel::zero<2>{}); }

// A stage starts its receives before the sends without which they never end, so each direction between two stages is a
// route of its own. Memory that is freed meanwhile waits for no message.
TEST_CASE("a GPT over comm::nccl: a pipeline, alone and beside other axes", "[nccl]") {
  freeing const waits;
  compare("pipeline", 2, mesh_of(1, 2, 1, 1), {.micro_batches = 4});
  compare("pipeline and zero<1>", 4, mesh_of(2, 2, 1, 1), {.batch = 8, .micro_batches = 2});
  compare("pipeline and tensor", 4, mesh_of(1, 2, 1, 2), {.micro_batches = 2});
  CHECK(stand_in::endless_frees == 0);
}
TEST_CASE("a GPT over comm::nccl: all schedules of a pipeline", "[nccl]") {
  freeing const waits;
  schedule::for_each_schedule([](auto const& each) {
    std::string const name(each.name);
    if (name == "1f1b") return;
    auto parallel = mesh_of(1, 2, 1, 1);
    parallel.axes.each([&]<class Axis>(Axis& axis) {
      if constexpr (std::is_same_v<Axis, parallel::any_pipeline>) axis.schedule = name;
    });
    compare(name, 2, parallel, {.steps = 2, .micro_batches = 4}, three_blocks, {4});
  });
  CHECK(stand_in::endless_frees == 0);
}
TEST_CASE("a stage of a pipeline over comm::nccl that is late is named by the message from it", "[nccl]") {
  auto const said = sentence_of<comm_error>([] {
    watchdog const guard("a pipeline over comm::nccl whose stage is late", std::chrono::seconds(120));
    stand_in::on_ranks(2, {.deadline = std::chrono::seconds(1)}, [&](comm::nccl_world& world) {
      late_words of_rank = words;
      of_rank.late = std::chrono::seconds(world.rank() == 1 ? 3 : 0);
      outcome out;
      train_in(world, out, model, moving, mesh_of(1, 2, 1, 1), precision::fp32{}, of_rank, {.micro_batches = 2});
    });
  });
  CHECK(contains(said, "exchange from rank 1 to rank 0, call number "));
  CHECK(contains(said, " waited 1s and is not done"));
}
