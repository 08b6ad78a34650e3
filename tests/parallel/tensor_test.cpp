// test-sanitize: thread
#include "trireme/parallel/tensor.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;

namespace {

constexpr std::int64_t context = 11;

/// Tokens that follow from the number of a sample.
struct sentences {
  std::int64_t vocabulary;
  [[nodiscard]] std::int64_t size() const { return 45; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context}; }
  [[nodiscard]] shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      for (std::int64_t t = 0; t < context; ++t) {
        *in++ = static_cast<std::int32_t>((id * 7 + t * (1 + id % 3)) % vocabulary);
        *out++ = static_cast<std::int32_t>(t == 3 ? -1 : (id * 7 + (t + 1) * (1 + id % 3)) % vocabulary);
      }
    }
  }
};

nn::gpt const odd{.vocabulary = 259, .context = context, .layers = 2, .heads = 6, .channels = 18, .dropout = 0.1};
nn::gpt const odder{.vocabulary = 61, .context = context, .layers = 2, .heads = 5, .channels = 25, .dropout = 0.1};

/// What a training leaves: whole tensors put together from their parts, and what each step has said.
struct outcome {
  std::map<std::string, std::vector<double>> weights;
  std::vector<double> norms;
  std::vector<double> losses;
  std::vector<double> answer;  // of predict, before the training
  int different = 0;           // numbers that ranks hold alike, but that are not equal
};

/// Trains with one model replica on all ranks of a world.
template <class Precision, class Optimizer, class Comm>
void train(Comm& world, nn::gpt const& model, Optimizer const& optimizer, bool cuts_rows, outcome& out) {
  using env = environment<Precision>;
  parallel::communicator_group<env, Comm> group(world, cuts_rows);
  staged_engine<env> engine(model, group);
  comm::self_world replicas;
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange(
      engine.uses(), replicas, parallel::data{.bucket_bytes = 8192}, compression::none{});
  exchange.initialise(7);
  engine.invalidate();
  optimizer_state<env, Optimizer> moments(exchange);
  sentences const data{model.vocabulary};
  data::loader loader(data, data::loader_options{.batch = 5, .micro_batches = 2}, 0, 1);
  auto const answer = engine.predict(loader.next().micro_batches[0]);
  if (world.rank() == 0) {
    for (auto const each : answer.span()) out.answer.push_back(static_cast<double>(each));
  }
  for (int step = 0; step < 20; ++step) {
    auto const& batch = loader.next();
    exchange.begin();
    loss_sum loss;
    for (auto const& part : batch.micro_batches) {
      bool const last = &part == &batch.micro_batches.back();
      loss += engine.train(part, 1.0 / static_cast<double>(batch.samples), {3, static_cast<std::uint64_t>(step)},
                           [&](int use) {
                             if (last) exchange.ready(use);
                           });
    }
    static_cast<void>(exchange.finish());
    double squares = 0;  // of the tensors that this rank answers for: a sum over the group
    exchange.for_each_segment([&](int, parallel::layout::piece const& piece, update_segment<env>& segment) {
      if (!exchange.plan().at(piece.entry).info.answers) return;
      for (auto const each : segment.gradient.terms[0].span()) squares += static_cast<double>(each) * each;
    });
    world.all_reduce(tensor_view<double>(&squares, shape{1}), reduction::sum{});
    auto const norm = std::sqrt(squares);
    moments.update(exchange, optimizer, step, norm > optimizer.clip ? optimizer.clip / (norm + 1e-6) : 1.0);
    exchange.publish();
    engine.invalidate();
    if (world.rank() != 0) continue;
    out.norms.push_back(norm);
    out.losses.push_back(loss.mean());
  }
  static std::mutex one_at_a_time;
  for (int rank = 0; rank < world.size(); ++rank, world.barrier()) {
    if (rank != world.rank()) continue;
    std::lock_guard const lock(one_at_a_time);
    exchange.for_each_master([&](parallel::layout::entry const& entry, auto values) {
      auto& whole = out.weights[entry.info.name];
      bool const known = !entry.info.is_part() && !whole.empty();
      whole.resize(static_cast<std::size_t>(entry.info.whole_extents().size()));
      for_each_run(entry.info, 0, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          auto& number = whole[static_cast<std::size_t>(first + i)];
          auto const mine = static_cast<double>(values[here + i]);
          if (known && number != mine) ++out.different;
          number = mine;
        }
      });
    });
  }
}

template <class Precision, class Optimizer>
outcome train_on(int ways, nn::gpt const& model, Optimizer const& optimizer, bool cuts_rows) {
  outcome out;
  launch(comm::threads{.ranks = ways}, [&](auto& world) { train<Precision>(world, model, optimizer, cuts_rows, out); });
  return out;
}
template <class Precision, class Optimizer>
outcome train_alone(nn::gpt const& model, Optimizer const& optimizer) {
  outcome out;
  comm::self_world world;
  train<Precision>(world, model, optimizer, false, out);
  return out;
}

/// The largest difference, relative to the largest number.
double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  double largest = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::isnan(a[i]) ? INFINITY : std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}
double distance(std::map<std::string, std::vector<double>> const& a,
                std::map<std::string, std::vector<double>> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (auto const& [name, values] : b) {
    auto const here = distance(a.at(name), values);
    if (here > most) UNSCOPED_INFO(name << " differs by " << here);
    most = std::max(most, here);
  }
  return most;
}

/// How far trainings on several ranks are from the one on one rank.
template <class Precision, class Optimizer>
void compare(nn::gpt const& model, Optimizer const& optimizer, double losses, double norms, double weights) {
  auto const serial = train_alone<Precision>(model, optimizer);
  REQUIRE(serial.losses.back() < serial.losses.front());
  for (bool const cuts_rows : {false, true}) {
    for (int const ways : {1, 2, 3, 4}) {
      INFO("ways " << ways << (cuts_rows ? ", rows cut" : "") << ", heads " << model.heads);
      auto const ours = train_on<Precision>(ways, model, optimizer, cuts_rows);
      CHECK(ours.different == 0);
      CHECK(distance(ours.answer, serial.answer) < losses);
      CHECK(distance(ours.losses, serial.losses) < losses);
      CHECK(distance(ours.norms, serial.norms) < norms);
      CHECK(distance(ours.weights, serial.weights) < weights);
      if (ways == 1) CHECK(ours.weights == serial.weights);
    }
  }
}

optim::adamw const adaptive{.rate = 1e-2, .decay = 0.1, .clip = 1.0};
// In float, weights are compared under sgd: where a gradient is zero but for rounding (the bias of the keys), adamw
// divides that rounding by its own size.
optim::sgd const steady{.rate = 0.1, .momentum = 0.9, .clip = 1.0};

}  // namespace

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in double", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in double");
  for (auto const& model : {odd, odder}) compare<precision::fp64>(model, adaptive, 1e-10, 1e-10, 1e-10);
}

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in float", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in float");
  for (auto const& model : {odd, odder}) compare<precision::fp32>(model, steady, 1e-5, 1e-5, 1e-5);
  compare<precision::fp32>(odd, adaptive, 1e-4, 1e-3, 1e-1);
}

TEST_CASE("layers shared by 1 to 4 ranks train within the tolerance of bfloat16", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in bfloat16");
  constexpr auto tolerance = precision::bf16::tolerance;
  for (auto const& model : {odd, odder}) compare<precision::bf16>(model, steady, tolerance, tolerance, tolerance);
}

TEST_CASE("more ways than heads or tokens are refused with the numbers", "[parallel][tensor]") {
  auto const sentence = [](nn::gpt const& model) {
    std::string first;
    std::mutex one_at_a_time;
    launch(comm::threads{.ranks = 4}, [&](auto& world) {
      using env = environment<precision::fp32>;
      parallel::communicator_group<env, comm::threads_world> group(world);
      try {
        staged_engine<env> const engine(model, group);
      } catch (config_error const& problem) {
        std::lock_guard const lock(one_at_a_time);
        first = problem.what();
      }
    });
    return first;
  };
  CHECK(
      sentence({.layers = 1, .heads = 3, .channels = 6}) ==
      "trireme::nn::attention: 3 heads cannot be cut into 4 ways; a tensor group has at most as many ranks as a layer "
      "has heads");
  CHECK(sentence({.vocabulary = 3, .layers = 1, .heads = 4, .channels = 8}) ==
        "trireme::nn::gpt: a vocabulary of 3 cannot be cut into 4 ways; a tensor group has at most as many ranks as "
        "there "
        "are tokens");
}

TEST_CASE("the axes print as the source that makes them, and compare", "[parallel][tensor]") {
  CHECK(parallel::to_string(parallel::tensor{.ways = 2}) == "parallel::tensor{.ways = 2}");
  CHECK(parallel::to_string(parallel::sequence{}) == "parallel::sequence{}");
  CHECK(parallel::tensor{} == parallel::tensor{.ways = 0});
  CHECK_FALSE(parallel::tensor{.ways = 2} == parallel::tensor{.ways = 3});
}
