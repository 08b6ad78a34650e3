// options_step: one rank of a row of options.py, which starts it with mpirun, on one host or on two.
//
// Ranks    are processes: mpirun -n N options_step ROW STEPS WARM READ_MS LAYERS HEADS CHANNELS CONTEXT BATCH
//          BATCH is the number of samples in a step, over all ranks. Rank 0 prints a JSON object: seconds_per_step,
//          utilisation, network_bytes and plan_bytes of a step, and loss.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/mpi.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

namespace {

using namespace trireme;
namespace c = compression;

/// Text in which each byte is followed by one of four, in a store that answers some milliseconds after each question.
struct stored_text {
  std::int64_t context;
  double milliseconds;
  std::vector<std::int32_t> bytes = drawn();

  static std::vector<std::int32_t> drawn() {
    std::vector<std::int32_t> out(1 << 20);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      auto const draw = mix(i) % 20;
      at = mix(at * 4 + (draw < 11 ? 0 : draw < 16 ? 1 : draw < 19 ? 2 : 3)) % 256;
      out[i] = static_cast<std::int32_t>(at);
    }
    return out;
  }
  [[nodiscard]] std::int64_t size() const { return (static_cast<std::int64_t>(bytes.size()) - 1) / context; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context}; }
  [[nodiscard]] shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
      auto const* const from = bytes.data() + id * context;
      in = std::copy(from, from + context, in);
      out = std::copy(from + 1, from + context + 1, out);
    }
  }
};

struct setting {
  std::string row;
  std::int64_t steps = 20, warm = 3, batch = 8;
  double milliseconds = 2;
  nn::gpt model;
};

/// Bytes that the network interface of this host has sent; 0 without one.
double sent_by_interface() {
  std::ifstream all("/proc/self/net/dev");
  for (std::string line; std::getline(all, line);) {
    auto const colon = line.find("eth0:");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + 5));
    double number = 0;
    for (int i = 0; i < 9; ++i) numbers >> number;  // received: eight of them
    return number;
  }
  return 0;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Trains and prints the row. Without the loader, one loop reads samples and computes, in turns.
template <class World, class... Policies>
void train(World& world, setting const& what, bool with_loader, Policies const&... policies) {
  stored_text const data{what.model.context, what.milliseconds};
  auto trainer = make_trainer(what.model, optim::adamw{.learning_rate = 1e-3}, world, policies...);
  auto const planned = plan(trainer, data, {.samples = what.batch});
  observe::timeline timeline(world.rank(), 1 << 16);
  trainer.record(timeline);
  double begin = 0, end = 0, sent = 0, last = 0;
  auto const count = [&](step_report const& done) {
    last += done.step >= what.warm + what.steps - 5 ? done.loss / 5 : 0;
    if (done.step == what.warm - 1) timeline.clear(), sent = sent_by_interface(), begin = seconds();
    if (done.step == what.warm + what.steps - 1) end = seconds(), sent = sent_by_interface() - sent;
  };
  if (with_loader) {
    trainer.on_step(count);
    trainer.fit(data, {.steps = what.warm + what.steps, .batch = what.batch, .check_every = 0});
  } else {
    data::sampler const order{.samples = data.size()};
    tensor<std::int32_t> x({what.batch, data.context}), y({what.batch, data.context});
    std::vector<std::int64_t> ids(static_cast<std::size_t>(what.batch));
    std::int64_t position = 0;
    for (std::int64_t step = 0; step < what.warm + what.steps; ++step) {
      for (auto& id : ids) id = order.id(0, position++);
      data.read(ids, x.span().data(), y.span().data());
      count(trainer.step(make_samples(x.view(), y.view())));
    }
  }
  double computing = 0;
  for (auto const& each : timeline.events()) {
    if (each.name == "forward, backward" || each.name == "update")
      computing += 1e-9 * static_cast<double>(each.end_ns - each.begin_ns);
  }
  if (world.rank() != 0) return;
  auto const steps = static_cast<double>(what.steps);
  std::printf(
      "{\"seconds_per_step\": %.6f, \"utilisation\": %.4f, \"network_bytes\": %.0f, \"plan_bytes\": %.0f, "
      "\"loss\": %.4f}\n",
      (end - begin) / steps, computing / (end - begin), sent / steps,
      static_cast<double>(planned.bytes_sent()) / static_cast<double>(planned.steps), last);
}

template <class World>
void run(World& world, setting const& what) {
  auto const& row = what.row;
  parallel::data const at_once{.bucket_bytes = std::int64_t{1} << 40}, early{.bucket_bytes = std::int64_t{1} << 20};
  parallel::zero<1> const sharded{.bucket_bytes = std::int64_t{1} << 20};
  if (row == "serial") return train(world, what, false, early);
  if (row == "loader") return train(world, what, true, early);
  if (row == "ranks") return train(world, what, true, at_once);
  if (row == "overlap") return train(world, what, true, early);
  if (row == "bf16") return train(world, what, true, early, precision::bf16{});
  if (row == "zero1") return train(world, what, true, sharded, precision::bf16{});
  if (row == "cast_bf16") return train(world, what, true, sharded, precision::bf16{}, c::cast<bf16>{});
  if (row == "int8") return train(world, what, true, sharded, precision::bf16{}, c::quantise<8>{});
  if (row != "top_k") throw config_error("options_step: there is no row " + row);
  c::error_feedback<c::top_k> const largest{.inner = {.ratio = 0.01F}};
  train(world, what, true, sharded, precision::bf16{}, largest);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 10) {
    std::fprintf(stderr, "options_step is started by benchmarks/options.py\n");
    return 2;
  }
  auto const number = [&](int i) { return std::atoll(arguments[i]); };
  setting const what{
      .row = arguments[1],
      .steps = number(2),
      .warm = number(3),
      .batch = number(9),
      .milliseconds = std::atof(arguments[4]),
      .model = {
          .vocabulary = 256, .context = number(8), .layers = number(5), .heads = number(6), .channels = number(7)}};
  launch(comm::mpi{.deadline = std::chrono::minutes(10)}, [&](auto& world) { run(world, what); });
  return 0;
} catch (std::exception const& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
