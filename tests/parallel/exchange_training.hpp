#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "../support/toy_training.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/staged_engine.hpp"

/// A training loop of one's own on an engine and an exchange, for strategies at every stage.
namespace exchange_training {

using namespace trireme;

struct plan {
  int steps = 20;
  data::loader_options batches{.batch = 10, .micro_batches = 6, .seed = 7, .prefetch = 0};
  nn::gpt model = toy::gpt;
};

struct outcome {
  std::vector<double> weights;
  std::vector<double> norms;
  std::vector<double> losses;
  exchange_memory memory;
  std::uint64_t hash = 0;
  traffic_counters traffic;  // of the last step
};

template <class Precision, class Comm, class Strategy, class Optimizer>
class run {
 public:
  using env = environment<Precision>;
  using exchange_type = basic_exchange<env, Comm, Strategy, compression::none>;

  run(Comm& world, Strategy const& strategy, Optimizer const& optimizer, plan const& what)
      : what_(what),
        optimizer_(optimizer),
        engine_(what.model),
        exchange_(engine_.uses(), world, strategy, compression::none{}, engine_.unit_ends()),
        moments_(exchange_),
        loader_(text_, what.batches, world.rank(), world.size()) {
    if constexpr (Strategy::parameters == distribution::shard) engine_.values_pass();
    exchange_.initialise(7);
    engine_.invalidate();
    exchange_.verify_replicas();
  }

  outcome train() {
    outcome out;
    auto& world = exchange_.world();
    for (int step = 0; step < what_.steps; ++step) {
      auto const before = world.traffic();
      auto sum = one_step(step);
      auto const result = exchange_.finish();
      double const clip = optimizer_.clip > 0 && result.norm > optimizer_.clip ? optimizer_.clip / result.norm : 1.0;
      moments_.update(exchange_, optimizer_, step, clip);
      exchange_.publish();
      engine_.invalidate();
      out.traffic = world.traffic();
      out.traffic.bytes_sent -= before.bytes_sent;
      double both[2] = {sum.sum, static_cast<double>(sum.count)};
      world.all_reduce(tensor_view<double>(both, shape{2}));
      out.losses.push_back(both[0] / both[1]);
      out.norms.push_back(result.norm);
    }
    exchange_.for_each_master([&](parallel::layout::entry const&, auto values) {
      for (auto const value : values.span()) out.weights.push_back(static_cast<double>(value));
    });
    out.memory = exchange_.memory();
    out.hash = exchange_.hash_of_parameters();
    return out;
  }
  [[nodiscard]] exchange_type& exchange() noexcept { return exchange_; }
  [[nodiscard]] staged_engine<env>& engine() noexcept { return engine_; }

 private:
  loss_sum one_step(int step) {
    auto const& batch = loader_.next();
    auto const parts = loader_.parts();
    exchange_.begin({.micro_batches = parts.count, .places = batch.parts, .first = parts.first});
    bool const each = exchange_.reports_every_micro_batch();
    loss_sum sum;
    for (auto const& micro_batch : batch.micro_batches) {
      bool const last = &micro_batch == &batch.micro_batches.back();
      sum += engine_.train(
          micro_batch, 1.0 / static_cast<double>(batch.samples), {7, static_cast<std::uint64_t>(step)},
          [&](int use) {
            if (each || last) exchange_.ready(use);
          },
          exchange_);
    }
    return sum;
  }

  plan what_;
  Optimizer optimizer_;
  toy::text text_;
  staged_engine<env> engine_;
  exchange_type exchange_;
  optimizer_state<env, Optimizer> moments_;
  data::loader<toy::text> loader_;
};

template <class Precision = precision::fp32, class Comm, class Strategy, class Optimizer>
outcome train(Comm& world, Strategy const& strategy, Optimizer const& optimizer, plan const& what = {}) {
  return run<Precision, Comm, Strategy, Optimizer>(world, strategy, optimizer, what).train();
}

/// What each of some threads has in the end.
template <class Precision = precision::fp32, class Strategy, class Optimizer>
std::vector<outcome> train_on(int ranks, Strategy const& strategy, Optimizer const& optimizer, plan const& what = {}) {
  std::vector<outcome> all(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    all[static_cast<std::size_t>(world.rank())] = train<Precision>(world, strategy, optimizer, what);
  });
  return all;
}

}  // namespace exchange_training
