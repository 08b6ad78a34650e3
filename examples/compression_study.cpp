// compression_study [--seconds S] [--ranks N] [--pictures FOLDER] [--only gpt | classifier]
//
// Trains two models to a target loss with each compressor, with and without error feedback: a GPT on text (random, of
// bytes each of which is followed by one of four), and a classifier (a perceptron) on pictures in the files of MNIST or
// Fashion-MNIST in FOLDER, or, without one, on pictures of its own of ten kinds. Ranks (2) are threads; a run ends at
// its target, or after its number of steps, or S seconds (60). Prints a JSON object a run:
//
//     {"model": ..., "codec": ..., "feedback": ..., "steps_to_target": ..., "megabytes_to_target": ..., "loss": ...}
//
// steps_to_target is null if the target was not reached; megabytes are what a rank has sent until then, or in all; loss
// is the mean of the last ten steps.
//
// test: --seconds 0.1 --only classifier
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "trireme/compression/compression.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/formats/idx.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace c = compression;

namespace {

template <class C>
using fed = c::error_feedback<C>;
using codec = c::one_of<c::none, c::cast<bf16>, c::quantise<8>, c::quantise<4>, c::quantise<2>, c::sign, c::random_k,
                        c::top_k, c::top_k_sampled, c::power_sgd, fed<c::quantise<4>>, fed<c::quantise<2>>,
                        fed<c::sign>, fed<c::random_k>, fed<c::top_k>, fed<c::top_k_sampled>>;

struct entry {
  std::string name;
  bool feedback;
  codec how;
};
std::vector<entry> all_codecs() {
  c::quantise<2> const nearest{.rounding = c::code_rounding::nearest};
  c::random_k const drawn{.ratio = 0.02F};
  c::top_k const largest{.ratio = 0.01F};
  c::top_k_sampled const sampled{.ratio = 0.01F};
  return {{"none", false, {c::none{}}},
          {"cast<bf16>", false, {c::cast<bf16>{}}},
          {"quantise<8>", false, {c::quantise<8>{}}},
          {"quantise<4>", false, {c::quantise<4>{}}},
          {"quantise<4>", true, {fed<c::quantise<4>>{}}},
          {"quantise<2>", false, {nearest}},
          {"quantise<2>", true, {fed<c::quantise<2>>{nearest}}},
          {"sign", false, {c::sign{}}},
          {"sign", true, {fed<c::sign>{}}},
          {"random_k 2 %", false, {drawn}},
          {"random_k 2 %", true, {fed<c::random_k>{drawn}}},
          {"top_k 1 %", false, {largest}},
          {"top_k 1 %", true, {fed<c::top_k>{largest}}},
          {"top_k_sampled 1 %", false, {sampled}},
          {"top_k_sampled 1 %", true, {fed<c::top_k_sampled>{sampled}}},
          {"power_sgd 4", true, {c::power_sgd{.rank = 4}}}};  // its residual is part of it
}

struct setting {
  double seconds = 60;
  int ranks = 2;
  std::string pictures, only;
};

/// One run, to the target or to its end.
template <class Model, class Data>
void run(char const* name, Model const& model, Data const& data, std::int64_t batch, std::int64_t steps, double target,
         optim::adamw const& optimizer, entry const& with, setting const& what) {
  launch(comm::threads{.ranks = what.ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, with.how);
    std::deque<double> last;
    std::int64_t reached = -1;
    std::uint64_t sent = 0;
    double used = 0;
    trainer.on_step([&](step_report const& done) {
      last.push_back(done.loss);
      if (last.size() > 10) last.pop_front();
      used += done.seconds;
      if (reached >= 0) return;
      sent = trainer.grid().bytes_sent();
      if (last.size() == 10 && std::accumulate(last.begin(), last.end(), 0.0) < 10 * target) reached = done.step + 1;
      if (reached >= 0 || used > what.seconds) trainer.request_stop();
    });
    trainer.fit(data, {.steps = steps, .batch = batch, .check_every = 0});
    if (world.rank() != 0) return;
    fmt::print(
        "{{\"model\": \"{}\", \"codec\": \"{}\", \"feedback\": {}, \"steps_to_target\": {}, \"megabytes_to_target\": "
        "{:.3f}, \"loss\": {:.4f}}}\n",
        name, with.name, with.feedback, reached < 0 ? std::string("null") : std::to_string(reached),
        1e-6 * static_cast<double>(sent),
        std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(std::max<std::size_t>(1, last.size())));
    std::fflush(stdout);
  });
}

/// Bytes of which each is followed by one of four.
data::in_memory<std::int32_t, std::int32_t> text_of_fours(std::int64_t samples, std::int64_t context) {
  tensor<std::int32_t> in({samples, context}), next({samples, context});
  std::uint64_t at = 0;
  for (std::int64_t i = 0; i < samples * context; ++i) {
    in.span()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(at);
    auto const draw = mix(static_cast<std::uint64_t>(i)) % 20;
    at = mix(at * 4 + (draw < 11 ? 0 : draw < 16 ? 1 : draw < 19 ? 2 : 3)) % 256;
    next.span()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(at);
  }
  return {std::move(in), std::move(next)};
}

/// Pictures of 28 x 28 as rows of numbers around 0, each with its class.
data::in_memory<float, std::int32_t> pictures_in(std::string const& folder) {
  namespace idx = formats::idx;
  constexpr std::int64_t own = 6000, side = 28;
  if (!folder.empty()) {
    auto const pixels = idx::read(folder + "/train-images-idx3-ubyte");
    auto const kinds = idx::read(folder + "/train-labels-idx1-ubyte");
    if (pixels.extents != shape{kinds.extents[0], side, side})
      throw config_error(text("compression_study: ", folder, " has no pictures of 28 x 28 with a label for each"));
    tensor<float> x({pixels.extents[0], side * side});
    tensor<std::int32_t> y(kinds.extents);
    std::transform(pixels.values.begin(), pixels.values.end(), x.span().begin(),
                   [](std::uint8_t pixel) { return (static_cast<float>(pixel) / 255 - 0.29F) / 0.35F; });
    std::copy(kinds.values.begin(), kinds.values.end(), y.span().begin());
    return {std::move(x), std::move(y)};
  }
  tensor<float> x({own, side * side});
  tensor<std::int32_t> y({own});
  for (std::int64_t n = 0; n < own; ++n) {  // waves of ten directions and lengths, moved and with noise
    auto const draw = random_block({7, static_cast<std::uint64_t>(n)}, 0, 0, 0);
    auto const kind = n % 10;
    auto const angle = 0.3F * static_cast<float>(kind), step = 0.25F + 0.05F * static_cast<float>(kind % 5);
    auto const moved = static_cast<float>(draw[0] % 1000) * 0.00628F;
    for (std::int64_t i = 0; i < side * side; ++i) {
      auto const along =
          std::cos(angle) * static_cast<float>(i / side) + std::sin(angle) * static_cast<float>(i % side);
      auto const noise = random_block({7, static_cast<std::uint64_t>(n)}, 1, static_cast<std::uint64_t>(i), 0)[0];
      x.span()[static_cast<std::size_t>(n * side * side + i)] =
          std::sin(step * along + moved) + 2e-3F * static_cast<float>(noise % 1000) - 1;
    }
    y.span()[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(kind);
  }
  return {std::move(x), std::move(y)};
}

setting parse(int count, char** words) {
  setting what;
  for (int i = 1; i < count; i += 2) {
    std::string const name = words[i], value = i + 1 < count ? words[i + 1] : "";
    double number = 0;
    auto const [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    bool const counts = problem == std::errc{} && end == value.data() + value.size() && number > 0;
    if (name == "--seconds" && counts) {
      what.seconds = number;
    } else if (name == "--ranks" && counts && number <= 64) {
      what.ranks = std::max(1, static_cast<int>(number));
    } else if (name == "--pictures" && !value.empty()) {
      what.pictures = value;
    } else if (name == "--only" && (value == "gpt" || value == "classifier")) {
      what.only = value;
    } else {
      throw config_error(text("compression_study: \"", name, " ", value,
                              "\"; the options are --seconds S, --ranks N, "
                              "--pictures FOLDER and --only gpt or classifier"));
    }
  }
  return what;
}

}  // namespace

int main(int count, char** words) try {
  auto const what = parse(count, words);
  if (what.only != "classifier") {
    nn::gpt const model{.vocabulary = 256, .context = 64, .layers = 2, .heads = 4, .channels = 128};
    auto const data = text_of_fours(4096, model.context);
    for (auto const& with : all_codecs())
      run("gpt", model, data, 16, 1500, 2.0, {.learning_rate = 2e-3, .clip = 1}, with, what);
  }
  if (what.only != "gpt") {
    nn::mlp_with<nn::loss::cross_entropy> const model{
        .inputs = 784, .hidden = {128, 64}, .outputs = 10, .act = ops::activation::relu};
    auto const data = pictures_in(what.pictures);
    for (auto const& with : all_codecs())
      run("classifier", model, data, 64, 1500, what.pictures.empty() ? 0.2 : 0.4, {.learning_rate = 1e-3}, with, what);
  }
  return 0;
} catch (std::exception const& problem) {
  fmt::print(stderr, "{}\n", problem.what());
  return 1;
}
