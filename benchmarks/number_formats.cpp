// number_formats [--steps N] [--seeds N] [--ranks N] [--text FILE] [--only NAME]
//
// Trains a small DeepSeek (latent attention, a dense block, two with experts) on the bytes of FILE, or on text of its
// own, for N steps (2000) with each number format and optimizer, and compares the loss on the last tenth of the text
// with that of bf16. Ranks (2) are threads. Prints a JSON object a row; losses are means over the seeds (1):
//
//     {"row": ..., "steps": ..., "seeds": ..., "loss": ..., "above_bf16_percent": ..., "state_megabytes": ...,
//      "seconds_per_step": ...}
//
// The rows: bf16; fp8, and fp8 with tiles of 128 x 128 for gradients, with which DeepSeek-V3's report saw a training
// diverge; mxfp8; nvfp4, and nvfp4 without its Hadamard matrices and its rounding by chance; moments of 8 bits; and
// weights without masters, rounded by chance and to the nearest.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/nn/deepseek.hpp"
#include "trireme/optim/adamw8.hpp"
#include "trireme/optim/any.hpp"
#include "trireme/precision/bf16_only.hpp"
#include "trireme/precision/fp8.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

struct setting {
  std::int64_t steps = 2000;
  int seeds = 1, ranks = 2;
  std::string text, only;
};

constexpr std::int64_t context = 64;
nn::deepseek const model{.vocabulary = 256,
                         .context = context,
                         .layers = 3,
                         .dense = 1,
                         .channels = 128,
                         .heads = 4,
                         .rank = 64,
                         .plain = 32,
                         .rotary_width = 16,
                         .values = 32,
                         .hidden = 256,
                         .experts = 4,
                         .top_k = 2,
                         .expert_hidden = 128};

/// Bytes, each of which is followed by one of four, or those of a file.
std::vector<std::int32_t> bytes_of(std::string const& file) {
  std::vector<std::int32_t> out;
  if (!file.empty()) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw config_error(text("number_formats: ", file, " cannot be read"));
    for (std::istreambuf_iterator<char> at(in), end; at != end; ++at) out.push_back(static_cast<unsigned char>(*at));
    return out;
  }
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < (std::uint64_t{1} << 20); ++i) {
    auto const draw = mix(i) % 20;
    at = mix(at * 4 + (draw < 11 ? 0 : draw < 16 ? 1 : draw < 19 ? 2 : 3)) % 256;
    out.push_back(static_cast<std::int32_t>(at));
  }
  return out;
}

struct result {
  double loss = 0, seconds = 0, state = 0;
};

template <class Precision>
result train(std::vector<std::int32_t> const& all, Precision const& precision,
             optim::any<environment<Precision>> const& optimizer, setting const& what, std::uint64_t seed) {
  auto const samples = (static_cast<std::int64_t>(all.size()) - 1) / context, held_out = samples / 10;
  auto const part = [&](std::int64_t first, std::int64_t n) {
    auto const* const from = all.data() + first * context;
    return data::in_memory(tensor_view<std::int32_t const>(from, {n, context}),
                           tensor_view<std::int32_t const>(from + 1, {n, context}));
  };
  auto const training = part(0, samples - held_out),
             held = part(samples - held_out, std::min<std::int64_t>(held_out, 512));
  result out;
  launch(comm::threads{.ranks = what.ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, precision);
    trainer.initialise(seed);
    double seconds = 0, bytes = 0;
    trainer.on_step([&](step_report const& done) { seconds += done.seconds; });
    trainer.fit(training, {.steps = what.steps, .batch = 16, .check_every = 0});
    trainer.for_each_state([&](std::string const& name, parameter_info const&, std::int64_t, auto view) {
      auto const size = static_cast<double>(view.size() * static_cast<std::int64_t>(sizeof(view[0])));
      if (name.find("moment") != std::string::npos) bytes += size;
    });
    auto const loss = trainer.evaluate(held);
    if (world.rank() == 0) out = {loss, seconds / static_cast<double>(what.steps), bytes};
  });
  return out;
}

/// Prints one row; the first is what the others are compared with.
template <class Precision, class Optimizer>
void row(std::vector<std::int32_t> const& all, char const* name, Precision const& precision, Optimizer const& optimizer,
         setting const& what, double& bf16_loss) {
  if (!what.only.empty() && what.only != name && std::strcmp(name, "bf16") != 0) return;
  result mean;
  for (int seed = 0; seed < what.seeds; ++seed) {
    auto const one = train<Precision>(all, precision, optimizer, what, static_cast<std::uint64_t>(seed) + 1);
    mean.loss += one.loss / what.seeds, mean.seconds += one.seconds / what.seeds, mean.state = one.state;
  }
  if (bf16_loss <= 0) bf16_loss = mean.loss;
  fmt::print(
      "{{\"row\": \"{}\", \"steps\": {}, \"seeds\": {}, \"loss\": {:.5f}, \"above_bf16_percent\": {:.3f}, "
      "\"state_megabytes\": {:.3f}, \"seconds_per_step\": {:.4f}}}\n",
      name, what.steps, what.seeds, mean.loss, 100 * (mean.loss / bf16_loss - 1), 1e-6 * mean.state, mean.seconds);
  std::fflush(stdout);
}

void all_rows(setting const& what) {
  auto const all = bytes_of(what.text);
  auto const schedule =
      optim::cosine{.peak = 2e-3, .warmup = 100, .total = std::max<std::int64_t>(101, what.steps), .floor = 2e-4};
  optim::adamw const usual{.schedule = schedule, .beta2 = 0.95, .weight_decay = 0.1, .clip = 1};
  optim::adamw8<> const small{.schedule = schedule, .beta2 = 0.95, .weight_decay = 0.1, .clip = 1};
  optim::adamw8<bfloat16> const smallest{.schedule = schedule, .beta2 = 0.95, .weight_decay = 0.1, .clip = 1};
  namespace p = precision;
  double loss = 0;
  row(all, "bf16", p::bf16{}, usual, what, loss);
  row(all, "fp8", p::rounded{p::fp8{}}, usual, what, loss);
  row(all, "fp8, square tiles of gradients", p::rounded{p::fp8{.square_gradients = true}}, usual, what, loss);
  row(all, "mxfp8", p::rounded{p::mxfp8{}}, usual, what, loss);
  row(all, "nvfp4", p::rounded{p::nvfp4{}}, usual, what, loss);
  row(all, "nvfp4, plain", p::rounded{p::nvfp4{.hadamard = false, .stochastic = false}}, usual, what, loss);
  row(all, "bf16, adamw8", p::bf16{}, small, what, loss);
  row(all, "bf16_only, adamw8", p::bf16_only{}, smallest, what, loss);
  row(all, "bf16_only, adamw", p::bf16_only{}, usual, what, loss);
}

}  // namespace

int main(int argc, char** argv) try {
  setting what;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string const option = argv[i], value = argv[i + 1];
    auto const number = [&](auto& to) {
      auto const end = value.data() + value.size();
      if (std::from_chars(value.data(), end, to).ptr != end || to < 1)
        throw config_error(text("number_formats: ", option, " is \"", value, "\"; give a whole number of at least 1"));
    };
    if (option == "--steps")
      number(what.steps);
    else if (option == "--seeds")
      number(what.seeds);
    else if (option == "--ranks")
      number(what.ranks);
    else if (option == "--text")
      what.text = value;
    else if (option == "--only")
      what.only = value;
    else
      throw config_error(text("number_formats: ", option, " is none of --steps, --seeds, --ranks, --text and --only"));
  }
  all_rows(what);
  return 0;
} catch (std::exception const& e) {
  std::fputs((std::string(e.what()) + "\n").c_str(), stderr);
  return 1;
}
