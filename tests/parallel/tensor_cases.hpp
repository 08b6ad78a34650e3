#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/staged_engine.hpp"

/// A GPT whose layers all ranks of a world share, trained on any communicator, and what can be compared of it.
namespace tensor_cases {

using namespace trireme;

inline constexpr std::int64_t context = 11;

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

inline nn::gpt const odd{
    .vocabulary = 259, .context = context, .layers = 2, .heads = 6, .channels = 18, .dropout = 0.1};
inline nn::gpt const odder{
    .vocabulary = 61, .context = context, .layers = 2, .heads = 5, .channels = 25, .dropout = 0.1};

/// What a training leaves: whole tensors put together from their parts, and what each step has said.
struct outcome {
  std::map<std::string, std::vector<double>> weights;
  std::vector<double> norms;
  std::vector<double> losses;
  std::vector<double> answer;  // of predict, before the training
  int different = 0;           // tensors that ranks hold alike, but not with the same bits
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
  for (auto const each : answer.span()) out.answer.push_back(static_cast<double>(each));
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
    out.norms.push_back(norm);
    out.losses.push_back(loss.mean());
  }
  exchange.for_each_master([&](parallel::layout::entry const& entry, auto values) {
    std::vector<double> whole(static_cast<std::size_t>(entry.info.whole_extents().size()));
    for_each_run(entry.info, 0, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        whole[static_cast<std::size_t>(first + i)] = static_cast<double>(values[here + i]);
      }
    });
    if (!entry.info.is_part()) {  // everybody has it, and the same bits of it
      auto const mine = whole;
      world.all_reduce(tensor_view<double>(whole), reduction::max{});
      out.different += mine == whole ? 0 : 1;
      if (!entry.info.answers) std::fill(whole.begin(), whole.end(), 0);
    }
    world.all_reduce(tensor_view<double>(whole), reduction::sum{});
    out.weights[entry.info.name] = std::move(whole);
  });
  double different = out.different;
  world.all_reduce(tensor_view<double>(&different, shape{1}), reduction::sum{});
  out.different = static_cast<int>(different);
}

/// The largest difference, relative to the largest number.
inline double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  double largest = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::isnan(a[i]) ? INFINITY : std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}
inline double distance(std::map<std::string, std::vector<double>> const& a,
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

inline optim::adamw const adaptive{.learning_rate = 1e-2, .weight_decay = 0.1, .clip = 1.0};
// In float, weights are compared under sgd: where a gradient is zero but for rounding (the bias of the keys), adamw
// divides that rounding by its own size.
inline optim::sgd const steady{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

template <class Precision, class Optimizer>
outcome train_alone(nn::gpt const& model, Optimizer const& optimizer) {
  outcome out;
  comm::self_world world;
  train<Precision>(world, model, optimizer, false, out);
  return out;
}

}  // namespace tensor_cases
