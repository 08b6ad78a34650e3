// fine_tune --from DIR [--to DIR] [--data FILE] [--text NAME] [--second NAME] [--label NAME] [--most N] [--length N]
//           [--epochs N] [--batch N] [--rate R] [--ranks N]
//
// Trains a BERT to classify texts, or pairs of them: whether two sentences have the same meaning, say. DIR has its
// config.json, model.safetensors and tokenizer.json (word pieces), in Hugging Face's format; a model whose classifier
// has another number of classes gets a new one.
//
// FILE is JSON lines (.jsonl), a table of commas (.csv) or of tabs (.tsv), whose first line has the titles. --text,
// --second and --label name its keys or columns; if they are left out, these are tried: text, sentence1, sentence;
// sentence2; label; and the titles of MRPC's file. Different labels, in the order of their bytes, are the classes.
// Without --data FILE is verse_pairs.tsv, which scripts/prepare-verse-pairs writes (--pairs FILE is the same option).
// The first N samples are used (--most; 0: all), truncated to N tokens each (--length; 64). Every fifth of them is held
// out: after each epoch the program prints the results on those. The learning rate rises to R (5e-5) and falls to 0. At
// the end the model, its tokenizer and its other files are written to the DIR of --to.
//
// If the DIR of --from is -, the program writes a tiny model and pairs to the working directory and uses these.
//
// test: --from - --epochs 1
// test: --from - --epochs 1 --data own.jsonl
// test: --from - --epochs 1 --data own.csv
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "labelled_texts.hpp"
#include "trireme/formats/tokenizer.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr char const* usage =
    R"(fine_tune --from DIR [--to DIR] [--data FILE] [--text NAME] [--second NAME] [--label NAME] [--most N]
          [--length N] [--epochs N] [--batch N] [--rate R] [--ranks N]

Trains a BERT to classify texts, or pairs of them, and prints the results on a fifth of them that is held out.

  --from DIR      a model: config.json, model.safetensors and tokenizer.json; -: a tiny one, and texts for it
  --to DIR        where the trained model is written
  --data FILE     JSON lines (.jsonl), a table of commas (.csv) or of tabs (verse_pairs.tsv)
  --text, --second, --label NAME    their keys or columns (the usual ones)
  --most N        texts that are used (0: all)
  --length N      tokens of a text that are used (64)
  --epochs N, --batch N, --rate R, --ranks N    3 passes, 32 texts a step, a learning rate of 5e-5, 2 threads
)";

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

/// Texts: rows of tokens, and the class of each.
struct rows {
  std::int64_t length = 0;
  std::vector<std::int32_t> tokens, classes;

  [[nodiscard]] auto count() const { return static_cast<std::int64_t>(classes.size()); }
  [[nodiscard]] auto data() const {
    return data::in_memory(tensor_view<std::int32_t const>(tokens.data(), {count(), length}),
                           tensor_view<std::int32_t const>(classes.data(), {count()}));
  }
};

/// The id of a token that a tokenizer must have.
std::int32_t special(formats::tokenizer const& words, std::string_view token) {
  if (auto const id = words.id_of(token)) return *id;
  throw config_error(text("the tokenizer has no ", token));
}

/// Makes rows of the texts of a file; every fifth one is held out.
void encode(std::string const& file, std::vector<labelled_text> const& texts, std::vector<std::string> const& labels,
            formats::tokenizer const& words, nn::bert const& model, rows& train, rows& held_out) {
  auto const begin = special(words, "[CLS]");
  formats::word_memory known;
  auto const tokens_of = [&](labelled_text const& from, std::string const& part) {
    try {
      return words.encode(part, known, formats::special_tokens::without);
    } catch (error const& problem) {
      throw config_error(text(file, ": record ", from.record, ": ", problem.what()));
    }
  };
  for (std::size_t n = 0; n < texts.size(); ++n) {
    auto& to = n % 5 == 4 ? held_out : train;
    auto a = tokens_of(texts[n], texts[n].first), b = tokens_of(texts[n], texts[n].second);
    auto const length = static_cast<std::size_t>(to.length);
    std::size_t const marks = b.empty() ? 2 : 3;
    while (a.size() + b.size() + marks > length) (a.size() > b.size() ? a : b).pop_back();
    to.tokens.push_back(begin);
    for (auto const* part : {&a, &b}) {
      if (part == &b && b.empty()) continue;
      to.tokens.insert(to.tokens.end(), part->begin(), part->end());
      to.tokens.push_back(model.separator);
    }
    auto const found = std::lower_bound(labels.begin(), labels.end(), texts[n].label);
    to.classes.push_back(static_cast<std::int32_t>(found - labels.begin()));
    to.tokens.resize(to.classes.size() * length, model.padding);
  }
}

/// Writes an untrained model, its six words, and pairs of sentences, of which the second one may negate the first, as a
/// table and as JSON lines; and single ones as another table.
void write_own_files() {
  std::string lines = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", objects, table = "label,text\n";
  for (std::uint64_t i = 0; i < 5120; ++i) {
    auto const random = random_block({1, i}, 0, 0, 0);
    auto const* const one = random[0] % 2 == 0 ? "the cat" : "the dog";
    bool const same = random[1] % 3 > 0;
    lines += text(same ? 1 : 0, "\t0\t0\t", one, " sleeps\t", one, same ? " sleeps\n" : " never sleeps\n");
    objects += text("{\"sentence1\": \"", one, " sleeps\", \"sentence2\": \"", one, same ? " sleeps" : " never sleeps",
                    "\", \"label\": \"", same ? "same" : "other", "\"}\n");
    bool const awake = !same && random[2] % 2 == 0;
    table += text(awake ? "awake" : "asleep", ",\"", one, awake ? " never sleeps" : " sleeps", "\"\n");
  }
  formats::directory const here(".");
  formats::atomic_write(here, "verse_pairs.tsv", lines);
  formats::atomic_write(here, "own.jsonl", objects);
  formats::atomic_write(here, "own.csv", table);
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
  auto const& file = given["--data"];
  auto const texts = read_labelled_texts(file, number<std::int64_t>(given, "--most"),
                                         {given["--label"], given["--text"], given["--second"]});
  std::set<std::string> different;
  for (auto const& each : texts) different.insert(each.label);
  std::vector<std::string> const labels(different.begin(), different.end());
  if (labels.size() < 2 || labels.size() > 1000) {
    throw config_error(text(file, " has ", labels.size(), " different labels, but 2 to 1000 are classes"));
  }
  auto const classes = static_cast<std::int64_t>(labels.size());
  bool const fresh = model.classes != classes;
  model.classes = classes;
  model.separator = special(words, "[SEP]");
  if (batch < 1 || length < 5 || length > model.context || words.vocabulary() > model.vocabulary) {
    throw config_error(text("--batch is at least 1, --length from 5 to ", model.context, " of this model, and ",
                            words.vocabulary(), " words of the tokenizer at most its ", model.vocabulary));
  }
  rows train{length, {}, {}}, held_out{length, {}, {}};
  encode(file, texts, labels, words, model, train, held_out);
  auto const each = train.count() / batch, steps = epochs * each;
  if (steps == 0 || held_out.count() == 0) throw config_error(text("no epochs, or ", file, " has no batch of ", batch));
  fmt::print("{} texts of {} classes, {} more are held out; the classifier {}\n", train.count(), classes,
             held_out.count(), fresh ? "is new" : "is kept");
  optim::linear const rate{.peak = number<double>(given, "--rate"), .warmup = steps / 10, .total = steps};
  if (!to.empty()) formats::expect_writable(to);
  double last = 0;
  trireme::launch(comm::threads{.ranks = number<int>(given, "--ranks")}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::adamw{.schedule = rate, .clip = 1}, world);
    load_pretrained(trainer, from, {.fresh = fresh ? "classifier.*" : ""});
    for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
      auto const done = trainer.fit(train.data(), {.steps = steps, .batch = batch, .stop_after = epoch * each});
      auto const [seen] = trainer.evaluate(held_out.data(), batch, metric::confusion(classes));
      if (world.rank() != 0) continue;
      last = seen.accuracy();
      auto const f1 = classes == 2 ? fmt::format(", F1 {:.2f} %", 100 * seen.f1(1)) : "";
      fmt::print("epoch {}: loss {:.4f}, accuracy {:.2f} %{}, {:.1f} s\n", epoch, done.last_loss, 100 * last, f1,
                 done.seconds);
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
  if (std::find(arguments + 1, arguments + count, std::string_view("--help")) != arguments + count) {
    std::fputs(usage, stdout);
    return 0;
  }
  try {
    options given{{"--from", ""},     {"--data", "verse_pairs.tsv"},
                  {"--to", ""},       {"--epochs", "3"},
                  {"--text", ""},     {"--second", ""},
                  {"--label", ""},    {"--ranks", "2"},
                  {"--rate", "5e-5"}, {"--batch", "32"},
                  {"--length", "64"}, {"--most", "0"}};
    for (int i = 1; i < count; i += 2) {
      std::string_view const name = arguments[i];
      auto const option = given.find(name == "--pairs" ? "--data" : name);
      if (option == given.end() || i + 1 == count)
        throw config_error(
            text(arguments[i], option == given.end() ? " is not an option; see --help" : " needs a value"));
      option->second = arguments[i + 1];
    }
    if (given["--from"].empty()) throw config_error("--from is missing; give the directory of a model, or see --help");
    return run(given);
  } catch (std::exception const& problem) {
    fmt::print(stderr, "fine_tune: {}\n", problem.what());
    return 1;
  }
}
