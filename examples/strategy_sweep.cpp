// Trains one small GPT with each strategy of a list: see `usage`.
// test: 4 3
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "trireme/formats/file.hpp"
#include "trireme/train/sweep.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr char const* usage =
    R"(strategy_sweep [RANKS] [STEPS] [PLOT.svg]

Trains one small GPT with each strategy of a list, on RANKS threads (4) for STEPS steps (20), and prints a table:
seconds per step, bytes and memory, as predicted by each plan and as measured, and the last loss, which is the same
for all. Predicted and measured times are drawn in PLOT.svg (strategies.svg).

  --help    this
)";

constexpr nn::gpt model{.vocabulary = 256, .context = 64, .layers = 6, .heads = 4, .channels = 128};

/// Sequences whose difference varies from line to line.
struct counting {
  std::int64_t samples = 512;

  [[nodiscard]] std::int64_t size() const { return samples; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {model.context}; }
  [[nodiscard]] shape target_shape() const { return {model.context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* x = static_cast<std::int32_t*>(inputs);
    auto* y = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      for (std::int64_t t = 0; t < model.context; ++t) {
        *x++ = token(id, t);
        *y++ = token(id, t + 1);
      }
    }
  }
  static std::int32_t token(std::int64_t id, std::int64_t t) {
    return static_cast<std::int32_t>((7 * id + (id % 5 + 1) * t) % model.vocabulary);
  }
};

/// One line per strategy: a bar up to the measured time, and the predicted interval.
std::string draw(std::vector<sweep_row> const& rows, int ranks) {
  constexpr double left = 210, right = 860, top = 44, line = 26;
  double longest = 0;
  for (auto const& row : rows) longest = std::max({longest, row.seconds, row.at_worst});
  auto const at = [&](double seconds) { return left + (right - left) * seconds / longest; };
  std::string body;
  double y = top;
  for (auto const& row : rows) {
    body += fmt::format("<text x='6' y='{:.0f}'>{}</text>\n", y + 15, row.name);
    if (row.refused.empty()) {
      body += fmt::format("<rect x='{:.1f}' y='{:.0f}' width='{:.1f}' height='18' fill='#a9c8ea'/>\n", left, y,
                          at(row.seconds) - left);
      body += fmt::format("<rect x='{:.1f}' y='{:.0f}' width='{:.1f}' height='6' fill='#dc7a3a'/>\n", at(row.at_best),
                          y + 6, std::max(2.0, at(row.at_worst) - at(row.at_best)));
      body += fmt::format("<text x='{:.0f}' y='{:.0f}'>{:.1f} ms, {:.1f} MB</text>\n", right + 8, y + 15,
                          1e3 * row.seconds, 1e-6 * static_cast<double>(row.memory.total()));
    } else {
      body += fmt::format("<text x='{:.0f}' y='{:.0f}'>does not fit</text>\n", left, y + 15);
    }
    y += line;
  }
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 1000 {:.0f}' font-family='sans-serif' font-size='12'>\n"
      "<rect width='100%' height='100%' fill='#fff'/>\n"
      "<text x='6' y='22' font-size='15'>Time of a step on {} ranks: measured (blue) and predicted (orange, from all "
      "sending hidden to none); memory of a rank</text>\n{}</svg>\n",
      y + 8, ranks, body);
}

int number(char const* word, int least) {
  int value = 0;
  auto const* const end = word + std::strlen(word);
  if (std::from_chars(word, end, value).ptr != end || value < least)
    throw config_error(text("\"", word, "\" is not a number from ", least, " on; see --help"));
  return value;
}

struct options {
  int ranks = 4, steps = 20;
  std::string plot = "strategies.svg";
};

options parse(int count, char** arguments) {
  options out;
  if (count > 1) out.ranks = number(arguments[1], 1);
  if (count > 2) out.steps = number(arguments[2], 3);
  if (count > 3) out.plot = arguments[3];
  if (count > 4) throw config_error(text("unexpected argument \"", arguments[4], "\"; see --help"));
  return out;
}

int run(options const& given) {
  namespace p = parallel;
  strategies const list{p::data{},
                        p::zero<1>{},
                        p::zero<3>{},
                        p::mesh{p::tensor{}, p::sequence{}},
                        p::pipeline<schedule::one_f_one_b>{},
                        p::pipeline<schedule::zb_v>{},
                        p::mesh{p::zero<1>{}, p::tensor{.ways = 2}},
                        p::mesh{p::zero<1>{}, p::pipeline<>{.stages = 2}}};

  std::vector<sweep_row> rows;
  trireme::launch(comm::threads{.ranks = given.ranks}, [&](auto& world) {
    auto found = sweep(list, model, counting{}, world, {.steps = given.steps, .batch = 16, .micro_batches = 8},
                       optim::adamw{.learning_rate = 1e-3});
    if (world.rank() == 0) rows = std::move(found);
  });
  fmt::print("{}", to_string(rows));
  formats::atomic_write(given.plot, draw(rows, given.ranks));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (std::find(arguments + 1, arguments + count, std::string_view("--help")) != arguments + count) {
    std::fputs(usage, stdout);
    return 0;
  }
  options given;
  try {
    given = parse(count, arguments);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "strategy_sweep: %s\n", error.what());
    return 2;
  }
  try {
    return run(given);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "strategy_sweep: %s\n", error.what());
    return 1;
  }
}
