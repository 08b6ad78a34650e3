#include <fcntl.h>
#include <unistd.h>

#include <clocale>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <locale>
#include <map>
#include <string>

#include "../formats/scratch.hpp"
#include "../support/missing.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/formats/chrome_trace.hpp"
#include "trireme/formats/tensorboard.hpp"
#include "trireme/observe/progress.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/pretrained.hpp"

using namespace trireme;

namespace {

/// The state after some steps of a whole trainer, with dropout and clipping; the last batch of an epoch has fewer
/// samples than micro-batches.
template <class Parallel>
std::uint64_t state(int ranks, Parallel const& parallel) {
  static auto const training = toy::of_gpt({.steps = 5, .batch = 20, .micro_batches = 8});
  return training.on(ranks, optim::adamw{.learning_rate = 1e-2, .clip = 0.1}, parallel).front().hash;
}

/// A number format that no file may use: 1234.5 is 1.2.3.4,5, and true is "oui".
struct other_numbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\1"; }
  std::string do_truename() const override { return "oui"; }
};
/// Sets such locales of C++ and of C while it exists. C's needs the machine's definitions.
class other_locale {
 public:
  explicit other_locale(std::string const& folder)
      : before_(std::locale::global(std::locale(std::locale::classic(), new other_numbers))) {
    ::setenv("LOCPATH", folder.c_str(), 1);
    auto const made = "localedef -i de_DE -f UTF-8 '" + folder + "/trireme' >/dev/null 2>&1";
    if (std::system(made.c_str()) != 0 || std::setlocale(LC_ALL, "trireme") == nullptr ||
        *std::localeconv()->decimal_point != ',')
      missing_part("no definitions of locales here (Debian's package locales), so C's stayed as it is");
  }
  other_locale(other_locale const&) = delete;
  other_locale& operator=(other_locale const&) = delete;
  ~other_locale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }

 private:
  std::locale before_;
};

/// Everything that a training writes after a checkpoint: the next checkpoint, the model's files, events, a trace,
/// progress and a plan.
std::map<std::string, std::string> written(std::string const& begin, bool first) {
  scratch folder;
  nn::gpt const model{.vocabulary = 16, .context = 8, .layers = 1, .heads = 2, .channels = 8, .dropout = 0.125};
  std::vector<std::int32_t> tokens(8 * 1030);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 16);
  auto const data = data::in_memory(tensor_view<std::int32_t const>(tokens.data(), {1030, 8}),
                                    tensor_view<std::int32_t const>(tokens.data(), {1030, 8}));
  comm::self_world self;
  auto trainer = make_trainer(model, optim::adamw{.learning_rate = 1.5e-3, .weight_decay = 0.125}, self);
  if (first) {
    trainer.fit(data, {.steps = 2, .batch = 4});
    trainer.save(begin);
    return {};
  }
  trainer.load(begin);
  auto const report = trainer.fit(data, {.steps = 1003, .batch = 4});
  checkpoint::keeping keep;
  keep.held_out = trainer.evaluate(data, 1030);
  trainer.save(folder / "checkpoints", {}, keep);
  save_pretrained(trainer, folder / "model");
  formats::tensorboard::writer events(folder / "events", {.clock = [] { return 1234567.5; }});
  events.add(1003, "loss", report.last_loss);
  events.flush();
  trace_event const event{"step", "train", 1'234'567, 2'345'678};
  trace_process const rank{0, "rank 0", {"compute"}, {&event, 1}};
  formats::chrome_trace::write(folder / "trace.json", {&rank, 1});
  auto const lines = ::open((folder / "progress").c_str(), O_WRONLY | O_CREAT, 0600);
  observe::progress shown(
      {.how = observe::progress::style::lines, .descriptor = lines, .line_seconds = 0, .line_percent = 1});
  shown.update(
      {.step = 1003, .steps = 2000, .loss = report.last_loss, .tokens_per_second = 12345.5, .elapsed_seconds = 1234.5});
  ::close(lines);
  formats::atomic_write(folder / "plan", to_string(plan(trainer, {.samples = 4096, .bandwidth = 25e9})));
  formats::atomic_write(folder / "described", describe(model) + describe(optim::adamw{.learning_rate = 12345.5}));
  std::map<std::string, std::string> found;
  for (auto const& each : std::filesystem::recursive_directory_iterator(folder.path()))
    if (each.is_regular_file())
      found[each.path().string().substr(folder.path().size())] = formats::read_text(each.path().string());
  return found;
}

}  // namespace

TEST_CASE("a reproducible trainer has the same state on 1, 2, 4 and 8 ranks under data and zero", "[train]") {
  watchdog const guard("reproducible trainers");
  auto const expected = state(1, parallel::data{.reproducible = true});
  CHECK(state(1, parallel::data{}) != expected);
  for (int const ranks : {1, 2, 4, 8}) {
    INFO(ranks << " ranks");
    CHECK(state(ranks, parallel::data{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<1>{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<2>{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<3>{.reproducible = true}) == expected);
  }
}

TEST_CASE("all files that a training writes have the same bytes whatever the program's locale is", "[train]") {
  watchdog const guard("training under another locale");
  scratch begin, locales;
  written(begin / "run", true);
  auto const expected = written(begin / "run", false);
  REQUIRE(expected.size() >= 8);
  REQUIRE(expected.at("/progress").find("12") != std::string::npos);
  other_locale const other(locales.path());
  for (auto const& [name, content] : written(begin / "run", false)) {
    INFO(name);
    CHECK(expected.contains(name));
    CHECK((expected.at(name) == content));
  }
}
