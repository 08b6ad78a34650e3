#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "options.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"
#include "trireme/nn/lora.hpp"
#include "trireme/nn/one_of.hpp"
#include "trireme/nn/pretrained.hpp"

/// The models that can be chosen at run time: one type, so that trainers are compiled once.
using whole_model = trireme::nn::one_of<trireme::nn::gpt, trireme::nn::llama, trireme::nn::deepseek>;
/// The same, with low-rank changes if there are any.
using language_model = trireme::nn::lora_of<whole_model>;

namespace model_choice {

/// Rejects options of the command line that belong to another choice.
inline void expect_not_given(options const& given, std::initializer_list<char const*> names, char const* why) {
  for (auto const* name : names) {
    if (given.was_given(name)) throw trireme::config_error(trireme::text("--", name, " ", why));
  }
}

/// A DeepSeek with these blocks, heads, channels and experts; the widths of its parts follow from them.
inline trireme::nn::deepseek deepseek_of(options const& given, std::int64_t tokens) {
  auto const channels = given.number("channels", 1), heads = given.number("heads", 1);
  auto const width = std::max<std::int64_t>(1, channels / heads);
  auto const hidden = given.number("hidden", 0) > 0 ? given.number("hidden", 0) : (8 * channels / 3 + 31) / 32 * 32;
  auto const experts = given.number("experts", 0) > 0 ? given.number("experts", 0) : 8;
  auto const chosen = given.number("experts-a-token", 1);
  return {.vocabulary = tokens,
          .context = given.number("context", 2),
          .layers = given.number("layers", 1),
          .channels = channels,
          .heads = heads,
          .rank = std::max<std::int64_t>(1, channels / 4),
          .plain = width,
          .rotary_width = (width / 2 + 1) / 2 * 2,
          .values = width,
          .hidden = hidden,
          .experts = experts,
          .top_k = chosen,
          .expert_hidden =
              std::max<std::int64_t>(1, hidden / (chosen + 1)),  // together with the shared one as wide as an mlp
          .ahead = given.number("ahead", 0)};
}

/// The model that --model, --layers and so on describe.
/// @param tokens  the number of different tokens.
inline whole_model described_by(options const& given, std::int64_t tokens) {
  using namespace trireme;
  auto const layers = given.number("layers", 1), heads = given.number("heads", 1);
  auto const channels = given.number("channels", 1), context = given.number("context", 2);
  auto const kind = given.choice("model", {"gpt", "llama", "deepseek"});
  if (kind != 1) expect_not_given(given, {"kv-heads"}, "goes with --model llama; leave it out");
  if (kind != 2) expect_not_given(given, {"ahead"}, "goes with --model deepseek; leave it out");
  if (kind == 2) {
    expect_not_given(given, {"dropout", "balance"}, "goes with --model gpt; leave it out");
    return {deepseek_of(given, tokens)};
  }
  if (kind == 0) {
    expect_not_given(given, {"hidden"}, "goes with --model llama or deepseek; leave it out");
    return {nn::gpt{.vocabulary = tokens,
                    .context = context,
                    .layers = layers,
                    .heads = heads,
                    .channels = channels,
                    .dropout = given.real("dropout"),
                    .experts = given.number("experts", 0),
                    .top_k = given.number("experts-a-token", 1),
                    .balance = given.real("balance")}};
  }
  expect_not_given(given, {"dropout", "balance"}, "goes with --model gpt; leave it out");
  expect_not_given(given, {"experts", "experts-a-token"}, "goes with --model gpt or deepseek; leave it out");
  return {nn::llama{.vocabulary = tokens,
                    .context = context,
                    .layers = layers,
                    .heads = heads,
                    .key_heads = given.number("kv-heads", 0),
                    .channels = channels,
                    .hidden = given.number("hidden", 0)}};
}

/// The model in a directory, in Hugging Face's format.
inline whole_model in_directory(std::string const& directory) {
  using namespace trireme;
  whole_model out;
  auto const type = nn::model_type_in(directory);
  if (type.starts_with("gpt")) {
    out.chosen = nn::read_description<nn::gpt>(directory);
  } else if (type.starts_with("deepseek")) {
    out.chosen = nn::read_description<nn::deepseek>(directory);
  } else {
    out.chosen = nn::read_description<nn::llama>(directory);
  }
  return out;
}

/// The model of --from, with changes by other options: sets --context, and dropout if it is given.
/// @param directory  of config.json: that of --from, or of the run that began with it.
/// @param tokens  the number of different tokens.
inline whole_model from_files(options& given, std::string const& directory, std::int64_t tokens) {
  using namespace trireme;
  expect_not_given(given, {"model", "layers", "heads", "channels", "kv-heads", "hidden", "experts", "experts-a-token"},
                   "is what the model of --from has; leave it out");
  auto model = in_directory(directory);
  given.decide("model", std::holds_alternative<nn::gpt>(model.chosen)     ? "gpt"
                        : std::holds_alternative<nn::llama>(model.chosen) ? "llama"
                                                                          : "deepseek");
  if (auto* const gpt = std::get_if<nn::gpt>(&model.chosen)) {
    if (given.was_given("dropout")) gpt->dropout = given.real("dropout");
    gpt->balance = given.real("balance");
  } else {
    expect_not_given(given, {"dropout", "balance"},
                     "goes with a GPT, but the model of --from is not one; leave it out");
  }
  if (auto* const deepseek = std::get_if<nn::deepseek>(&model.chosen)) {
    deepseek->ahead = given.number("ahead", 0);
  } else {
    expect_not_given(given, {"ahead"}, "goes with a DeepSeek, but the model of --from is not one; leave it out");
  }
  auto const [positions, vocabulary] =
      model.with([](auto const& each) { return std::pair(each.context, each.vocabulary); });
  if (vocabulary < tokens) {
    throw config_error(text("the model in ", directory, " has ", trireme::how_many(vocabulary, "token"), ", but ",
                            given.text("tokenizer").empty() ? "bytes are " : "those of --tokenizer are ", tokens,
                            "; give another --from"));
  }
  if (!given.was_given("context")) {
    given.decide("context", std::to_string(std::min(positions, given.number("context", 2))));
  } else if (given.number("context", 2) > positions) {
    throw config_error(text("--context is ", given.text("context"), ", but the model in ", directory, " has ",
                            trireme::how_many(positions, "position"), "; give at most as many"));
  }
  return model;
}

/// The model of --from with the changes of --lora.
inline language_model with_changes(options const& given, whole_model model) {
  using namespace trireme;
  auto const rank = given.number("lora", 0);
  if (rank == 0) {
    expect_not_given(given, {"lora-alpha", "lora-layers"}, "goes with --lora; leave it out");
  } else if (given.text("from").empty()) {
    throw config_error("--lora changes a model that has been trained; give its directory by --from");
  }
  return nn::lora(std::move(model),
                  {.rank = rank, .alpha = given.real("lora-alpha"), .layers = given.text("lora-layers")});
}

/// The number of parameters, as a double, so that no product of sizes overflows.
inline double parameters(trireme::nn::gpt const& model) {
  auto const c = static_cast<double>(model.channels), experts = static_cast<double>(model.experts);
  auto const mlp = 8 * c * c + 5 * c;
  auto const block = 4 * c * c + 8 * c + (experts > 0 ? experts * (mlp + c) : mlp);
  return c * static_cast<double>(model.vocabulary + model.context + 2) + static_cast<double>(model.layers) * block;
}
inline double parameters(trireme::nn::llama const& model) {
  auto const c = static_cast<double>(model.channels), keys = static_cast<double>(model.keys());
  auto const hidden = model.hidden > 0 ? static_cast<double>(model.hidden) : 8 * c / 3;
  auto const rows = (static_cast<double>(model.heads) + keys) * static_cast<double>(model.width());
  auto const block = 2 * c * rows + 3 * c * hidden + 2 * c;
  auto const tables = c * static_cast<double>(model.vocabulary) * (model.tied ? 1 : 2);
  return tables + c + static_cast<double>(model.layers) * block;
}
inline double parameters(trireme::nn::deepseek const& model) {
  auto const real = [](std::int64_t n) { return static_cast<double>(n); };
  auto const c = real(model.channels), h = real(model.heads), rank = real(model.rank), low = real(model.query_rank);
  auto const all_queries = h * real(model.plain + model.rotary_width);
  auto const queries = low > 0 ? low * (c + 1 + all_queries) : c * all_queries;
  auto const keys = c * (rank + real(model.rotary_width)) + rank + rank * h * real(model.plain + model.values);
  auto const block = queries + keys + c * h * real(model.values) + 2 * c;
  auto const mixture =
      3 * c * real(model.expert_hidden) * real(model.experts + model.shared) + (c + 1) * real(model.experts);
  return 2 * c * real(model.vocabulary) + c + real(model.layers) * block +
         real(model.dense) * 3 * c * real(model.hidden) + real(model.layers - model.dense) * mixture +
         real(model.ahead) * (block + mixture + 2 * c * c + 3 * c);
}

}  // namespace model_choice
