// Training steps of GPT-2 124M on one GPU: tokens per second and the share of the device's rate, as one JSON object.
//
//   PROGRAM [--batch 64] [--context 1024] [--precision bf16|fp16|fp32] [--parallel data|zero1] [--ranks N] [--steps 20]
//           [--warmup 5] [--layers 12] [--channels 768] [--heads 12] [--vocabulary 50257] [--curve FILE]
//           [--on cuda|host] [--learning-rate 3e-4]
//
// Tokens are random; a step includes everything: loader, upload, forward, backward, exchange, norm, AdamW. With several
// ranks all of them share one device (comm::threads). `mfu` counts 6 N + 6 L C T operations a token, as attention is
// causal, and 989 TFLOP/s of dense bfloat16 (H100, H200). --curve writes the loss of each step, a line each.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/trireme.hpp"

namespace {

using namespace trireme;

/// Random tokens, made before the clock starts; the target of each is the next one.
struct recorded_tokens {
  std::int64_t context;
  std::int64_t samples;
  std::vector<std::int32_t> all;

  recorded_tokens(std::int64_t context_, std::int64_t vocabulary, std::int64_t samples_)
      : context(context_), samples(samples_), all(static_cast<std::size_t>(context_ * samples_ + 1)) {
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::int32_t>(mix(i) % static_cast<std::uint64_t>(vocabulary));
  }
  [[nodiscard]] std::int64_t size() const { return samples; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context}; }
  [[nodiscard]] shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const* const from = all.data() + id * context;
      in = std::copy_n(from, context, in);
      out = std::copy_n(from + 1, context, out);
    }
  }
};

using named = std::map<std::string, std::string>;

template <class World, class Parallel, class Precision>
void measure(named const& options, World& world, Parallel parallel, Precision precision) {
  auto const number = [&](char const* name) { return std::atoll(options.at(name).c_str()); };
  nn::gpt const model{.vocabulary = number("vocabulary"),
                      .context = number("context"),
                      .layers = number("layers"),
                      .heads = number("heads"),
                      .channels = number("channels")};
  auto const batch = number("batch"), warmup = number("warmup"), steps = number("steps");
  recorded_tokens const data(model.context, model.vocabulary, std::max<std::int64_t>(256, batch));
  auto trainer =
      make_trainer(model, optim::adamw{.learning_rate = std::atof(options.at("learning-rate").c_str()), .clip = 1.0},
                   world, parallel, precision);
  using clock = std::chrono::steady_clock;
  std::vector<double> seconds, losses;
  auto last = clock::now();
  trainer.on_step([&](step_report const& done) {
    auto const now = clock::now();
    if (done.step >= warmup) seconds.push_back(std::chrono::duration<double>(now - last).count());
    losses.push_back(done.loss);
    last = now;
  });
  auto const report = trainer.fit(data, {.steps = warmup + steps, .batch = batch});
  if (world.rank() != 0) return;
  std::sort(seconds.begin(), seconds.end());
  auto const l = static_cast<double>(model.layers), c = static_cast<double>(model.channels);
  auto const t = static_cast<double>(model.context), v = static_cast<double>(model.vocabulary);
  double const parameters = 12 * l * c * c + v * c;
  double const operations = 6 * parameters + 6 * l * c * t;
  double const tokens = static_cast<double>(batch) * t;
  double const median = seconds[seconds.size() / 2];
  std::printf(
      "{\"system\":\"trireme\",\"version\":\"%s\",\"model\":\"gpt\",\"on\":\"%s\",\"precision\":\"%s\","
      "\"parallel\":\"%s\",\"ranks\":%d,\"batch\":%lld,\"context\":%lld,\"steps\":%lld,\"step_ms\":%.2f,"
      "\"step_ms_first_quartile\":%.2f,\"step_ms_third_quartile\":%.2f,\"tokens_per_second\":%.0f,\"mfu\":%.4f,"
      "\"first_loss\":%.5f,\"last_loss\":%.5f,\"activation_mib\":%.0f}\n",
      TRIREME_VERSION, options.at("on").c_str(), options.at("precision").c_str(), options.at("parallel").c_str(),
      world.size(), static_cast<long long>(batch), static_cast<long long>(model.context), static_cast<long long>(steps),
      median * 1e3, seconds[seconds.size() / 4] * 1e3, seconds[seconds.size() * 3 / 4] * 1e3, tokens / median,
      operations * tokens / median / 989e12, report.first_loss, report.last_loss,
      static_cast<double>(trainer.engine().peak_bytes()) / 1048576.0);
  if (auto const& file = options.at("curve"); !file.empty()) {
    auto* const out = std::fopen(file.c_str(), "w");
    for (auto const each : losses) std::fprintf(out, "%.9g\n", each);
    std::fclose(out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  named options{{"batch", "64"},     {"context", "1024"},      {"precision", "bf16"},   {"parallel", "data"},
                {"ranks", "1"},      {"steps", "20"},          {"warmup", "5"},         {"layers", "12"},
                {"channels", "768"}, {"heads", "12"},          {"vocabulary", "50257"}, {"curve", ""},
                {"on", "cuda"},      {"learning-rate", "3e-4"}};
  for (int i = 1; i + 1 < argc; i += 2) options[std::string(argv[i]).substr(2)] = argv[i + 1];
  try {
    launch(comm::threads{.ranks = std::atoi(options.at("ranks").c_str()), .deadline = std::chrono::minutes(5)},
           [&](auto& threads) {
             auto const with = [&](auto& world, auto parallel) {
               if (options.at("precision") == "bf16") return measure(options, world, parallel, precision::bf16{});
               return measure(options, world, parallel, precision::fp32{});
             };
             auto const in = [&](auto& world) {
               options.at("parallel") == "data" ? with(world, parallel::data{}) : with(world, parallel::zero<1>{});
             };
             if (options.at("on") == "host") return in(threads);
             auto world = comm::in_space<cuda>(threads);
             in(world);
           });
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "gpt: %s\n", problem.what());
    return 1;
  }
  return 0;
}
