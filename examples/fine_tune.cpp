// fine_tune --from DIR [--to DIR] [--pairs FILE] [--most N] [--length N] [--epochs N] [--batch N] [--rate R]
//           [--ranks N]
//
// Trains a BERT to classify whether two sentences have the same meaning. DIR has its config.json, model.safetensors and
// tokenizer.json (word pieces), in Hugging Face's format; a model without a classifier of two classes gets a new one.
// FILE (verse_pairs.tsv, which scripts/prepare-verse-pairs writes) has the format of MRPC: after a line of titles,
// lines of a label, two numbers and two sentences, separated by tabs. The first N pairs are used (--most; 0: all),
// truncated to N tokens each (--length; 64). Every fifth of them is held out: after each epoch the program prints the
// results on those. The learning rate rises to R (5e-5) and falls to 0. At the end the model, its tokenizer and its
// other files are written to the DIR of --to.
//
// If the DIR of --from is -, the program writes a tiny model and pairs to the working directory and uses these.
//
// test: --from - --epochs 1
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "trireme/formats/tokenizer.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

using options = std::map<std::string, std::string, std::less<>>;

template <class Number>
Number number(options const& given, std::string const& name) {
  auto const& value = given.at(name);
  Number out{};
  auto const [end, problem] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (problem != std::errc{} || end != value.data() + value.size() || out < Number{})
    throw config_error(text(name, " is \"", value, "\"; it must be a number of at least 0"));
  return out;
}

/// Pairs of sentences: rows of tokens, and whether the sentences have the same meaning.
struct pairs {
  std::int64_t length = 0;
  std::vector<std::int32_t> tokens, same;

  [[nodiscard]] auto count() const { return static_cast<std::int64_t>(same.size()); }
  [[nodiscard]] auto data() const {
    return data::in_memory(tensor_view<std::int32_t const>(tokens.data(), {count(), length}),
                           tensor_view<std::int32_t const>(same.data(), {count()}));
  }
};

/// The id of a token that a tokenizer must have.
std::int32_t special(formats::tokenizer const& words, std::string_view token) {
  if (auto const id = words.id_of(token)) return *id;
  throw config_error(text("the tokenizer has no ", token));
}

/// Reads the first pairs of a file (most = 0: all); every fifth one is held out.
void read(std::string const& path, std::int64_t most, formats::tokenizer const& words, nn::bert const& model,
          pairs& train, pairs& held_out) {
  auto const begin = special(words, "[CLS]");
  formats::word_memory known;
  auto const file = formats::read_text(path);
  std::string_view lines = file;
  auto const cut = [](std::string_view& from, char end) {
    auto const out = from.substr(0, from.find(end));
    from.remove_prefix(std::min(out.size() + 1, from.size()));
    return out;
  };
  cut(lines, '\n');  // titles
  for (std::int64_t n = 0; (most == 0 || n < most) && !lines.empty(); ++n) {
    auto line = cut(lines, '\n');
    bool const has_five = std::ranges::count(line, '\t') == 4;
    std::string_view label, of_first, of_second, first, second;
    for (auto* column : {&label, &of_first, &of_second, &first, &second}) *column = cut(line, '\t');
    if (second.ends_with('\r')) second.remove_suffix(1);
    if ((label != "0" && label != "1") || second.empty() || !has_five)
      throw config_error(text(path, ": pair ", n + 1, " is not a label, two numbers and two sentences"));
    auto& to = n % 5 == 4 ? held_out : train;
    auto a = words.encode(first, known, formats::special_tokens::without);
    auto b = words.encode(second, known, formats::special_tokens::without);
    auto const length = static_cast<std::size_t>(to.length);
    while (a.size() + b.size() + 3 > length) (a.size() > b.size() ? a : b).pop_back();
    to.tokens.push_back(begin);
    for (auto const* part : {&a, &b}) {
      to.tokens.insert(to.tokens.end(), part->begin(), part->end());
      to.tokens.push_back(model.separator);
    }
    to.same.push_back(label == "1" ? 1 : 0);
    to.tokens.resize(to.same.size() * length, model.padding);
  }
}

/// Writes an untrained model, its six words, and pairs of sentences, of which the second one may negate the first.
void write_own_files() {
  std::string lines = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n";
  for (std::uint64_t i = 0; i < 5120; ++i) {
    auto const random = random_block({1, i}, 0, 0, 0);
    auto const* const one = random[0] % 2 == 0 ? "the cat" : "the dog";
    bool const same = random[1] % 3 > 0;
    lines += text(same ? 1 : 0, "\t0\t0\t", one, " sleeps\t", one, same ? " sleeps\n" : " never sleeps\n");
  }
  formats::directory const here(".");
  formats::atomic_write(here, "verse_pairs.tsv", lines);
  formats::atomic_write(here, "tokenizer.json", R"({"pre_tokenizer": {"type": "BertPreTokenizer"}, "model": {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    "vocab": {
      "[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "the": 4, "cat": 5, "dog": 6, "sleeps": 7, "never": 8}}})");
  nn::bert const tiny{.vocabulary = 9, .context = 16, .layers = 1, .heads = 2, .channels = 32, .classes = 3};
  comm::self_world world;
  auto trainer = make_trainer(tiny, optim::sgd{}, world);
  save_pretrained(trainer, ".");
}

int run(options given) {
  bool const own = given["--from"] == "-";
  if (own) {
    write_own_files();
    given["--from"] = ".", given["--length"] = "16", given["--rate"] = "5e-3";
  }
  auto const &from = given["--from"], &to = given["--to"], tokenizer = from + "/tokenizer.json";
  auto const epochs = number<std::int64_t>(given, "--epochs"), batch = number<std::int64_t>(given, "--batch"),
             length = number<std::int64_t>(given, "--length");
  auto const words = formats::tokenizer::read(tokenizer);
  auto model = nn::read_description<nn::bert>(from);
  bool const fresh = model.classes != 2;
  model.classes = 2;
  model.separator = special(words, "[SEP]");
  if (batch < 1 || length < 5 || length > model.context || words.vocabulary() > model.vocabulary) {
    throw config_error(text("--batch is at least 1, --length from 5 to ", model.context, " of this model, and ",
                            words.vocabulary(), " words of the tokenizer at most its ", model.vocabulary));
  }
  pairs train{length, {}, {}}, held_out{length, {}, {}};
  read(given["--pairs"], number<std::int64_t>(given, "--most"), words, model, train, held_out);
  auto const each = train.count() / batch, steps = epochs * each;
  if (steps == 0 || held_out.count() == 0)
    throw config_error(text("no epochs, or ", given["--pairs"], " has no batch of ", batch));
  fmt::print("{} pairs, {} more are held out; the classifier {}\n", train.count(), held_out.count(),
             fresh ? "is new" : "is kept");
  optim::linear const rate{.peak = number<double>(given, "--rate"), .warmup = steps / 10, .total = steps};
  if (!to.empty()) formats::expect_writable(to);
  double last = 0;
  trireme::launch(comm::threads{.ranks = number<int>(given, "--ranks")}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::adamw{.schedule = rate, .clip = 1}, world);
    load_pretrained(trainer, from, {.fresh = fresh ? "classifier.*" : ""});
    for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
      auto const done = trainer.fit(train.data(), {.steps = steps, .batch = batch, .stop_after = epoch * each});
      auto const [seen] = trainer.evaluate(held_out.data(), batch, metric::confusion(2));
      if (world.rank() != 0) continue;
      last = seen.accuracy();
      fmt::print("epoch {}: loss {:.4f}, accuracy {:.2f} %, F1 {:.2f} %, {:.1f} s\n", epoch, done.last_loss, 100 * last,
                 100 * seen.f1(1), done.seconds);
      std::fflush(stdout);
    }
    if (to.empty()) return;
    auto const written = save_pretrained(trainer, to);
    if (world.rank() != 0) return;
    fmt::print("{} has the model", to);
    for (auto const& name : written.copied) fmt::print(", {}", name);
    fmt::print("\n");
    if (!written.left_out.empty())
      fmt::print("left out of {}: {} and the other tensors of unused heads\n", from, written.left_out.front());
  });
  return !own || last > 0.9 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    options given{{"--from", ""},    {"--pairs", "verse_pairs.tsv"},
                  {"--to", ""},      {"--epochs", "3"},
                  {"--ranks", "2"},  {"--rate", "5e-5"},
                  {"--batch", "32"}, {"--length", "64"},
                  {"--most", "0"}};
    for (int i = 1; i < count; i += 2) {
      auto const option = given.find(std::string_view(arguments[i]));
      if (option == given.end() || i + 1 == count)
        throw config_error(text(arguments[i], option == given.end() ? " is not an option" : " needs a value"));
      option->second = arguments[i + 1];
    }
    if (given["--from"].empty()) throw config_error("--from is missing; give the directory of a model");
    return run(given);
  } catch (std::exception const& problem) {
    fmt::print(stderr, "fine_tune: {}\n", problem.what());
    return 1;
  }
}
