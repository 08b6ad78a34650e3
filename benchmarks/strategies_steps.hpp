#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "random_tokens.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

// Steps of one GPT under each strategy, alternating with serial training of the same samples.
namespace strategies_benchmark {

using namespace trireme;

struct setting {
  nn::gpt model{.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384};
  std::int64_t ranks = 2;
  std::int64_t batch = 8;  // over all ranks
  std::int64_t micro_batches = 4;
  std::int64_t rounds = 5;
  std::int64_t steps = 6;  // timed steps of each round
};

inline setting parse(int count, char** arguments) {
  setting what;
  for (int i = 1; i < count; i += 2) {
    std::string const name = arguments[i];
    auto& model = what.model;
    std::pair<char const*, std::int64_t*> const all[] = {
        {"--ranks", &what.ranks},           {"--batch", &what.batch},        {"--rounds", &what.rounds},
        {"--steps", &what.steps},           {"--layers", &model.layers},     {"--micro-batches", &what.micro_batches},
        {"--heads", &model.heads},          {"--channels", &model.channels}, {"--context", &model.context},
        {"--vocabulary", &model.vocabulary}};
    auto const* const found =
        std::find_if(std::begin(all), std::end(all), [&](auto& each) { return name == each.first; });
    if (found == std::end(all)) throw config_error("strategies: unknown option \"" + name + "\"");
    char const* const word = i + 1 < count ? arguments[i + 1] : "";
    auto const* const end = word + std::strlen(word);
    auto const read = std::from_chars(word, end, *found->second);
    if (read.ptr != end || read.ec != std::errc{} || *found->second < 1)
      throw config_error(text("strategies: ", name, " is \"", word, "\", not a whole number from 1 on"));
  }
  return what;
}

struct row {
  std::string name;
  std::vector<double> seconds;  // the median step of each round
  double hidden = 0;            // share of the exchange that overlapped with backward
  planned_memory memory;        // of each kind, the maximum over the ranks
  std::uint64_t sent = 0;       // bytes per step
};

/// Trains for some steps, and adds their time and memory to the row.
template <class World, class Parallel>
void train(row& into, World& world, Parallel const& parallel, setting const& what, std::int64_t batch,
           std::int64_t micro_batches) {
  auto trainer = make_trainer(what.model, optim::adamw{.learning_rate = 1e-4}, world, parallel);
  random_tokens const data{what.model.context, what.model.vocabulary};
  constexpr std::int64_t warm = 2;
  std::vector<double> seconds;
  std::uint64_t sent_before = 0;
  trainer.on_step([&](step_report const& done) {
    if (done.step == warm - 1) sent_before = trainer.grid().bytes_sent();
    if (done.step >= warm) seconds.push_back(done.seconds);
  });
  trainer.fit(data, {.steps = warm + what.steps, .batch = batch, .micro_batches = micro_batches});
  auto const sent = trainer.grid().bytes_sent() - sent_before;
  std::sort(seconds.begin(), seconds.end());
  double times[] = {seconds[seconds.size() / 2], trainer.exchange().times().hidden()};
  world.all_reduce(tensor_view<double>(times, shape{2}), reduction::max{});
  auto const held = memory_of(trainer);
  std::int64_t bytes[] = {held.parameters,  held.gradients, held.optimizer,
                          held.activations, held.buffers,   static_cast<std::int64_t>(sent) / what.steps};
  world.all_reduce(tensor_view<std::int64_t>(bytes, shape{6}), reduction::max{});
  into.seconds.push_back(times[0]);
  into.hidden = times[1];
  into.memory = {bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]};
  into.sent = static_cast<std::uint64_t>(bytes[5]);
}

inline double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

/// One JSON object per row; none if the sizes do not fit the number of ranks. `ratio` is per round, relative to serial
/// training of the same samples divided by the number of ranks.
inline void print(std::vector<row> const& rows, char const* communicator, setting const& what) {
  auto const& serial = rows.front().seconds;
  for (auto const& each : rows) {
    if (each.seconds.empty()) continue;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < serial.size(); ++round)
      ratios.push_back(each.seconds[round] * static_cast<double>(&each == &rows.front() ? 1 : what.ranks) /
                       serial[round]);
    auto const mb = [](auto bytes) { return 1e-6 * static_cast<double>(bytes); };
    std::printf(
        "{\"strategy\":\"%s\",\"communicator\":\"%s\",\"ranks\":%d,\"rounds\":%zu,\"step_ms\":%.2f,\"ratio\":%.3f,"
        "\"ratio_lowest\":%.3f,\"ratio_highest\":%.3f,\"exchange_hidden\":%.2f,\"sent_mb\":%.2f,\"parameters_mb\":%.2f,"
        "\"gradients_mb\":%.2f,\"optimizer_mb\":%.2f,\"activations_mb\":%.2f,\"buffers_mb\":%.2f}\n",
        each.name.c_str(), communicator, &each == &rows.front() ? 1 : static_cast<int>(what.ranks), serial.size(),
        1e3 * median(each.seconds), median(ratios), *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()), each.hidden, mb(each.sent), mb(each.memory.parameters),
        mb(each.memory.gradients), mb(each.memory.optimizer), mb(each.memory.activations), mb(each.memory.buffers));
  }
}

/// All strategies in turn; the first one changes from round to round.
template <class World>
void measure(World& world, char const* communicator, setting const& what) {
  namespace p = parallel;
  std::vector<std::pair<std::string, std::function<void(row&)>>> turns;
  comm::self_world self;
  auto const add = [&](std::string name, auto parallel) {
    turns.emplace_back(std::move(name), [&, parallel](row& into) {
      train(into, world, parallel, what, what.batch, what.micro_batches);
    });
  };
  turns.emplace_back("serial", [&](row& into) {
    row unseen;
    if (world.rank() == 0) train(into, self, p::data{}, what, what.batch, what.micro_batches);
    world.barrier();
  });
  // The machine's own limit for independent ranks: the same work, with nothing sent.
  turns.emplace_back("alone, side by side", [&](row& into) {
    train(into, self, p::data{}, what, what.batch / what.ranks,
          std::max<std::int64_t>(1, what.micro_batches / what.ranks));
    double slowest[] = {into.seconds.back()};
    world.all_reduce(tensor_view<double>(slowest, shape{1}), reduction::max{});
    into.seconds.back() = slowest[0];
  });
  add("data", p::data{});
  add("data, reproducible", p::data{.reproducible = true});
  add("zero1", p::zero<1>{});
  add("zero2", p::zero<2>{});
  add("zero3", p::zero<3>{});
  add("tensor", p::mesh{p::tensor{}, p::sequence{.ways = 1}});
  add("tensor, sequence", p::mesh{p::tensor{}, p::sequence{}});
  add("context:ring", p::context{});
  add("context:all_to_all", p::context{.method = p::context_method::all_to_all});
  for (char const* schedule : {"gpipe", "1f1b", "interleaved", "zbh1", "zbv"})
    add(text("pipeline:", schedule), p::any_pipeline{.schedule = schedule});

  std::vector<row> rows;
  for (auto const& [name, turn] : turns) rows.emplace_back().name = name;
  for (std::size_t round = 0; round < static_cast<std::size_t>(what.rounds); ++round) {
    for (std::size_t i = 0; i < turns.size(); ++i) {
      auto const which = (i + round) % turns.size();
      world.barrier();
      try {
        turns[which].second(rows[which]);
      } catch (config_error const&) {  // on every rank: sizes do not fit the number of ranks
      }
    }
  }
  if (world.rank() == 0) print(rows, communicator, what);
}

}  // namespace strategies_benchmark
