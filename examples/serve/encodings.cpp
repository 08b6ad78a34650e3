#include "encodings.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <variant>

#include "trireme/core/text.hpp"
#include "trireme/formats/weight_files.hpp"

using namespace trireme;
namespace openai = serve::openai;
namespace kserve = serve::kserve;

namespace {

std::vector<float> pooled(std::span<float const> states, std::size_t channels, pooling how) {
  std::vector<double> sum(channels, 0.0);
  auto const rows = how == pooling::first ? 1 : states.size() / channels;
  for (std::size_t i = 0; i < rows * channels; ++i) sum[i % channels] += static_cast<double>(states[i]);
  double square = 0;
  for (auto const each : sum) square += each * each;
  auto const length = std::sqrt(square);
  std::vector<float> out;
  for (auto const each : sum) out.push_back(static_cast<float>(length > 0 ? each / length : 0));
  return out;
}

}  // namespace

pooling pooling_in(std::string const& directory) {
  auto const path = directory + "/1_Pooling/config.json";
  if (!std::filesystem::exists(path)) return pooling::mean;
  auto const config = formats::read_json(path, std::uint64_t{1} << 20);
  auto const is = [&](std::string_view name) {
    auto const* const found = config.find(name);
    return found != nullptr && found->is_bool() && found->as_bool();
  };
  if (is("pooling_mode_cls_token")) return pooling::first;
  if (is("pooling_mode_mean_tokens")) return pooling::mean;
  throw config_error(text(path, ": texts are pooled in a way that there is not here; the mean of all tokens and the ",
                          "first one are"));
}

encodings::encodings(text_encoder& model, vocabulary const& words, std::string name, pooling how)
    : model_(model), words_(words), name_(std::move(name)), how_(how) {
  limits_.model = name_;
  limits_.vocabulary = model_.vocabulary;
  limits_.dimensions = model_.channels;
}

std::string encodings::embeddings(std::string_view body) {
  auto const what = openai::parse(openai::endpoint::embeddings, body, limits_);
  std::vector<tokens> inputs;
  for (auto const& each : what.prompts) {
    auto const* const written = std::get_if<std::string>(&each);
    inputs.push_back(written == nullptr ? std::get<tokens>(each) : encode(*written, what.begin_token, "input"));
    expect_length(inputs.back().size(), "input");
    if (std::ranges::find(inputs.back(), model_.padding) != inputs.back().end())
      throw openai::refusal(text("input: it has the token ", model_.padding, ", which is padding"), "input");
  }
  openai::usage used;
  std::map<std::size_t, std::vector<std::size_t>> by_length;  // those of a length are computed at once
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    by_length[inputs[i].size()].push_back(i);
    used.prompt_tokens += static_cast<std::int64_t>(inputs[i].size());
  }
  std::vector<std::vector<float>> out(inputs.size());
  for (auto const& [length, which] : by_length) {
    constexpr std::size_t most = 16;
    for (std::size_t first = 0; first < which.size(); first += most) {
      auto const some = std::span(which).subspan(first, std::min(most, which.size() - first));
      tokens rows;
      for (auto const i : some) rows.insert(rows.end(), inputs[i].begin(), inputs[i].end());
      auto const states = compute(rows, static_cast<std::int64_t>(length));
      auto const channels = static_cast<std::size_t>(model_.channels), each = length * channels;
      for (std::size_t i = 0; i < some.size(); ++i)
        out[some[i]] = pooled(states.span().subspan(i * each, each), channels, how_);
    }
  }
  return openai::embeddings(what, name_, out, used);
}

std::string encodings::infer(std::string_view body) {
  auto const what = kserve::parse(body);
  auto const* const output = embeds() ? "last_hidden_state" : "logits";
  for (auto const& each : what.outputs) {
    if (each != output)
      throw openai::refusal(text("outputs: there is no \"", each.substr(0, 80), "\", but \"", output, "\""));
  }
  auto const [rows, length] = rows_of(what);
  auto const count = static_cast<std::int64_t>(rows.size()) / length;
  auto const computed = compute(rows, length);
  kserve::tensor out{.name = output, .datatype = "FP32", .extents = {count, model_.classes}};
  if (embeds()) out.extents = {count, length, model_.channels};
  out.data = std::vector<float>(computed.span().begin(), computed.span().end());
  return kserve::response(what, name_, {std::move(out)});
}

std::string encodings::metadata() const {
  std::vector<kserve::signature> const inputs{{"input_ids", "INT64", {-1, -1}},
                                              {"attention_mask", "INT64", {-1, -1}},
                                              {"token_type_ids", "INT64", {-1, -1}},
                                              {"text", "BYTES", {-1}}};
  if (embeds()) return kserve::metadata(name_, inputs, {{"last_hidden_state", "FP32", {-1, -1, model_.channels}}});
  return kserve::metadata(name_, inputs, {{"logits", "FP32", {-1, model_.classes}}});
}

encodings::tokens encodings::encode(std::string_view text, bool specials, char const* field) const {
  auto out = words_.encode(text, specials);
  if (out.empty()) throw openai::refusal(trireme::text(field, ": it has no tokens"), field);
  for (auto const each : out) {
    if (each < model_.vocabulary) continue;
    throw openai::refusal(
        trireme::text(field, ": it has the token ", each, ", but the model's are 0 to ", model_.vocabulary - 1), field);
  }
  return out;
}
void encodings::expect_length(std::size_t length, char const* field) const {
  if (static_cast<std::int64_t>(length) <= model_.context) return;
  throw openai::refusal(
      text(field, ": it has ", length, " tokens, but the model's context is ", model_.context, "; shorten it"), field,
      400, "context_length_exceeded");
}

tensor<float> encodings::compute(tokens const& rows, std::int64_t length) {
  auto const count = static_cast<std::int64_t>(rows.size()) / length;
  return compute_alone(rows.size(), [&] {
    return model_.compute(tensor_view<std::int32_t const>(rows.data(), {count, length}));
  });
}

std::pair<encodings::tokens, std::int64_t> encodings::rows_of(kserve::asked const& what) const {
  for (auto const& each : what.inputs) {
    static constexpr std::string_view known[] = {"text", "input_ids", "attention_mask", "token_type_ids"};
    if (std::ranges::find(known, each.name) == std::end(known)) {
      throw openai::refusal(text("inputs: there is no \"", each.name.substr(0, 80),
                                 "\"; the model takes text, or input_ids, attention_mask and token_type_ids"));
    }
  }
  auto const* const written = what.find("text");
  if (written == nullptr) return rows_of_ids(what);
  if (what.inputs.size() > 1) throw openai::refusal("inputs: give text, or input_ids, not both");
  std::vector<tokens> all;
  std::size_t longest = 0;
  for (auto const& each : written->texts()) {
    all.push_back(encode(each, true, "text"));
    expect_length(all.back().size(), "text");
    longest = std::max(longest, all.back().size());
  }
  tokens rows;
  for (auto& each : all) {
    each.resize(longest, model_.padding);
    rows.insert(rows.end(), each.begin(), each.end());
  }
  return {std::move(rows), static_cast<std::int64_t>(longest)};
}

std::pair<encodings::tokens, std::int64_t> encodings::rows_of_ids(kserve::asked const& what) const {
  auto const* const ids = what.find("input_ids");
  if (ids == nullptr) throw openai::refusal("inputs: there is neither text nor input_ids");
  auto const refuse = [](auto const&... parts) { throw openai::refusal(text(parts...)); };
  if (ids->extents.size() != 2) refuse("input_ids: it has ", ids->extents.size(), " extents; they are (rows, tokens)");
  auto const length = ids->extents[1];
  expect_length(static_cast<std::size_t>(length), "input_ids");
  tokens rows;
  for (auto const id : ids->integers()) {
    if (id < 0 || id >= model_.vocabulary) refuse("input_ids: ", id, " is not in 0 to ", model_.vocabulary - 1);
    rows.push_back(static_cast<std::int32_t>(id));
  }
  auto const same_shape = [&](char const* name) -> std::vector<std::int64_t> const* {
    auto const* const found = what.find(name);
    if (found == nullptr) return nullptr;
    if (found->extents != ids->extents) refuse(name, ": its shape is not that of input_ids");
    return &found->integers();
  };
  // The model sees padding by its token, and segments by the tokens that end them.
  if (auto const* const mask = same_shape("attention_mask")) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      auto const seen = (*mask)[i];
      if (seen != 0 && seen != 1) refuse("attention_mask: ", seen, " is neither 0 nor 1");
      if (seen == 1 && rows[i] == model_.padding)
        refuse("attention_mask: it is 1 at the token ", model_.padding, ", which is padding");
      if (seen == 0) rows[i] = model_.padding;
    }
  }
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(length)) {
    auto const row = std::span(rows).subspan(first, static_cast<std::size_t>(length));
    auto const padding = [&](auto token) { return token == model_.padding; };
    auto const begin = std::ranges::find_if_not(row, padding);
    if (begin == row.end()) refuse("input_ids: a row has nothing but padding");
    auto const end = std::find_if(begin, row.end(), padding);
    if (std::any_of(end, row.end(), [&](auto token) { return !padding(token); }))
      refuse("attention_mask: a row has padding between its tokens; it is at one end");
  }
  if (auto const* const segments = same_shape("token_type_ids")) {
    std::int64_t segment = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % static_cast<std::size_t>(length) == 0) segment = 0;
      if (rows[i] != model_.padding && (*segments)[i] != segment) {
        refuse("token_type_ids: ", (*segments)[i], " is at a token of segment ", segment, "; each token ",
               model_.separator, " ends a segment here");
      }
      if (rows[i] == model_.separator) segment = std::min(segment + 1, model_.segments - 1);
    }
  }
  return {std::move(rows), length};
}
