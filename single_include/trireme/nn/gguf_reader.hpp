// Trireme 0.1.0: trireme/nn/gguf_reader.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bd736a09ef4193f03a7b7c336b7bce92e667829bf87a73dc3fa45ffd3abd2ddb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/formats/sentencepiece_file.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/gguf.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/nn/gguf_reader.hpp
#include <cstdint>
#include <string>

/// Models in files of llama.cpp, read: the way back of nn/gguf.hpp.
namespace trireme::nn {

/// Sets a description to what a GGUF file says: `gpt2`; `llama`, `qwen2` and `qwen3`. Llama 3's rule of angles is in a
/// file as the factors that it makes, and read if they are those with the numbers that all Llamas have.
///
/// Errors   format_error that names the key, for another architecture, for a key that is missing or of another type,
///          for a size out of range, and for what the model cannot be (other factors of angles, say).
void read_gguf_description(formats::gguf::reader const& from, gpt& to);
void read_gguf_description(formats::gguf::reader const& from, llama& to);

/// Writes the model in a GGUF file as a directory of Hugging Face's files: config.json, model.safetensors in F32,
/// tokenizer.json, tokenizer_config.json and generation_config.json. write_gguf() with gguf_options::like writes the
/// same file again, but for metadata.
///
/// The tokenizer is byte pairs of bytes, with the pre-tokenizer of GPT-2, SmolLM, Llama 3 or Qwen 2; files that say
/// `none` get none.
///
/// Bytes    memory is one tensor, as floats, and the tokenizer.
/// Errors   io_error; format_error as read_gguf_description(), and for a missing tensor, one of another shape, and
///          another tokenizer. All files appear, or none.
/// @returns the bytes of model.safetensors.
std::uint64_t write_pretrained_of_gguf(std::string const& path, std::string const& directory,
                                       formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_NN_GGUF_READER_IPP_INCLUDED
#define TRIREME_NN_GGUF_READER_IPP_INCLUDED

// ---- trireme/nn/gguf_reader.ipp
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::nn {

namespace detail {

/// Keys of a GGUF file.
class gguf_keys {
 public:
  explicit gguf_keys(formats::gguf::reader const& from) : from_(from), architecture(words("general.architecture")) {}

  template <class... Parts>
  [[noreturn]] void refuse(Parts const&... parts) const {
    throw format_error(from_.path(), 0, text(parts...));
  }
  template <class T>
  [[nodiscard]] T const* find(std::string_view key) const {
    auto const* const found = formats::gguf::find(from_.metadata(), key);
    if (found == nullptr) return nullptr;
    auto const* const out = std::get_if<T>(found);
    if (out == nullptr) refuse("the value of \"", key, "\" has another type than llama.cpp writes");
    return out;
  }
  [[nodiscard]] std::string words(std::string_view key) const {
    auto const* const found = find<std::string>(key);
    if (found == nullptr) refuse("it has no \"", key, "\"");
    return *found;
  }
  /// An integer of any width.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    auto const* const found = formats::gguf::find(from_.metadata(), key);
    if (found == nullptr) return std::nullopt;
    return std::visit(
        [&](auto const& number) -> std::int64_t {
          using T = std::decay_t<decltype(number)>;
          if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
            if constexpr (std::is_same_v<T, std::uint64_t>) {
              if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
                refuse("\"", key, "\" is ", number, ", which is too large");
            }
            return static_cast<std::int64_t>(number);
          } else {
            refuse("the value of \"", key, "\" is not one integer");
          }
        },
        *found);
  }
  [[nodiscard]] std::optional<std::int64_t> size_if(std::string_view end) const {
    auto const key = text(architecture, ".", end);
    auto const out = integer(key);
    if (out && (*out < 1 || *out > config_reader::most))
      refuse("\"", key, "\" is ", *out, "; it is from 1 to ", config_reader::most);
    return out;
  }
  [[nodiscard]] std::int64_t size(std::string_view end) const {
    auto const out = size_if(end);
    if (!out) refuse("it has no \"", architecture, ".", end, "\"");
    return *out;
  }
  /// Each block has tensors: a larger number is refused before anything is made of it.
  [[nodiscard]] std::int64_t blocks() const {
    auto const out = size("block_count");
    auto const tensors = from_.entries().size();
    if (static_cast<std::uint64_t>(out) > tensors)
      refuse("\"", architecture, ".block_count\" is ", out, ", but it has ", how_many(tensors, "tensor"));
    return out;
  }
  /// A float; what was rounded from a short decimal number is that number.
  [[nodiscard]] double number(std::string_view end, double otherwise) const {
    auto const* const found = find<float>(text(architecture, ".", end));
    if (found == nullptr) return otherwise;
    if (!std::isfinite(*found)) refuse("\"", architecture, ".", end, "\" is no number");
    char digits[32];
    auto const end_of = std::to_chars(digits, digits + sizeof(digits), *found).ptr;
    double out = 0;
    std::from_chars(digits, end_of, out);
    return out;
  }
  [[nodiscard]] bool has_tensor(std::string_view name) const {
    return std::any_of(from_.entries().begin(), from_.entries().end(),
                       [&](auto const& each) { return each.name == name; });
  }
  /// Rows of the table of tokens.
  [[nodiscard]] std::int64_t vocabulary() const {
    if (!has_tensor("token_embd.weight")) refuse("it has no tensor \"token_embd.weight\"");
    auto const& extents = from_.at("token_embd.weight").extents;
    if (extents.rank() != 2 || extents[0] < 1 || extents[0] > config_reader::most)
      refuse("the tensor \"token_embd.weight\" has the shape ", to_string(extents));
    return extents[0];
  }

 private:
  formats::gguf::reader const& from_;

 public:
  std::string const architecture;
};

/// Makes tokenizer.json and tokenizer_config.json of a GGUF file's metadata.
class tokenizer_of_gguf {
 public:
  explicit tokenizer_of_gguf(gguf_keys const& keys) : keys_(keys) {}

  [[nodiscard]] bool is_there() const {
    auto const* const model = keys_.find<std::string>("tokenizer.ggml.model");
    return model != nullptr && *model != "none" && *model != "no_vocab";
  }
  [[nodiscard]] formats::json::value file() const {
    namespace json = formats::json;
    auto const model = keys_.words("tokenizer.ggml.model");
    if (model != "gpt2") {
      keys_.refuse("its tokenizer is of the kind \"", model.substr(0, 80),
                   "\"; only \"gpt2\", byte pairs of bytes, is read");
    }
    auto const* const pre = keys_.find<std::string>("tokenizer.ggml.pre");
    bool ignores_merges = false;
    auto const splits = pre_tokenizer(pre == nullptr ? "gpt-2" : *pre, ignores_merges);
    auto const* const merges = keys_.find<std::vector<std::string>>("tokenizer.ggml.merges");
    if (merges == nullptr) keys_.refuse("it has no \"tokenizer.ggml.merges\"");
    json::array added, pairs(merges->begin(), merges->end());
    json::object vocabulary;
    for (std::size_t id = 0; id < tokens().size(); ++id) {
      auto const& content = tokens()[id];
      auto const kind = kind_of(id);
      if (kind == unused) continue;
      if (kind == control || kind == user_defined)
        added.push_back(json::value::make({{"id", id},
                                           {"content", content},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false},
                                           {"special", kind == control}}));
      vocabulary.push_back({content, id});
    }
    auto const bytes = [](bool space, bool expression) {
      return json::value::make(
          {{"type", "ByteLevel"}, {"add_prefix_space", space}, {"trim_offsets", true}, {"use_regex", expression}});
    };
    auto const of_model = json::value::make({{"type", "BPE"},
                                             {"dropout", nullptr},
                                             {"unk_token", nullptr},
                                             {"continuing_subword_prefix", nullptr},
                                             {"end_of_word_suffix", nullptr},
                                             {"fuse_unk", false},
                                             {"byte_fallback", false},
                                             {"ignore_merges", ignores_merges},
                                             {"vocab", std::move(vocabulary)},
                                             {"merges", std::move(pairs)}});
    json::array steps = splits;
    steps.push_back(bytes(false, expression_of(splits)));
    return json::value::make({{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", std::move(added)},
                              {"normalizer", nullptr},
                              {"pre_tokenizer", json::value::make({{"type", "Sequence"}, {"pretokenizers", steps}})},
                              {"post_processor", nullptr},
                              {"decoder", bytes(true, true)},
                              {"model", of_model}});
  }
  [[nodiscard]] formats::json::value settings() const {
    auto out = formats::json::value::make({{"tokenizer_class", "PreTrainedTokenizerFast"}});
    for (auto const& [name, key] :
         {std::pair{"bos_token", "bos_token_id"}, std::pair{"eos_token", "eos_token_id"},
          std::pair{"unk_token", "unknown_token_id"}, std::pair{"pad_token", "padding_token_id"}}) {
      auto const id = keys_.integer(text("tokenizer.ggml.", key));
      if (id && *id >= 0 && *id < static_cast<std::int64_t>(tokens().size()))
        out.set(name, tokens()[static_cast<std::size_t>(*id)]);
    }
    for (auto const* const key : {"add_bos_token", "add_eos_token"}) {
      if (auto const* const given = keys_.find<bool>(text("tokenizer.ggml.", key))) out.set(key, *given);
    }
    if (auto const* const chat = keys_.find<std::string>("tokenizer.chat_template")) out.set("chat_template", *chat);
    return out;
  }

 private:
  enum type : std::int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

  [[nodiscard]] std::vector<std::string> const& tokens() const {
    auto const* const found = keys_.find<std::vector<std::string>>("tokenizer.ggml.tokens");
    if (found == nullptr) keys_.refuse("it has no \"tokenizer.ggml.tokens\"");
    return *found;
  }
  [[nodiscard]] std::int32_t kind_of(std::size_t id) const {
    auto const* const found = keys_.find<std::vector<std::int32_t>>("tokenizer.ggml.token_type");
    return found == nullptr || id >= found->size() ? std::int32_t{normal} : (*found)[id];
  }
  /// Whether GPT-2's own expression splits what these steps leave.
  [[nodiscard]] static bool expression_of(formats::json::array const& steps) {
    return steps.empty() || steps.front().at("type").as_string() != "Split";
  }
  /// The steps before that of bytes.
  [[nodiscard]] formats::json::array pre_tokenizer(std::string const& name, bool& ignores_merges) const {
    if (name == "gpt-2" || name == "default") return {};
    if (name == "smollm") return {formats::json::value::make({{"type", "Digits"}, {"individual_digits", true}})};
    bool const llama = name == "llama-bpe", smaug = name == "smaug-bpe";
    if (llama || smaug || name == "qwen2") {
      ignores_merges = llama;
      auto const expression =
          text("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}", llama || smaug ? "{1,3}" : "",
               "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
      return {formats::json::value::make({{"type", "Split"},
                                          {"pattern", formats::json::value::make({{"Regex", expression}})},
                                          {"behavior", "Isolated"},
                                          {"invert", false}})};
    }
    keys_.refuse("its pre-tokenizer is \"", name.substr(0, 80), "\"; gpt-2, smollm, llama-bpe and qwen2 are read");
  }

  gguf_keys const& keys_;
};

/// Numbers of a GGUF tensor, in the order of Hugging Face's files, to a file.
TRIREME_BODY void write_of_gguf(formats::gguf::reader const& from, gguf_tensor const& tensor,
                                formats::safetensors::writer& to) {
  auto const& entry = from.at(tensor.name);
  auto const size = tensor.extents.size();
  // A block of zeros has a scale of -0, as it is of +0: else, written again, it would have one of +0.
  bool const of_scales = entry.type == formats::gguf::kind::q4_0 || entry.type == formats::gguf::kind::q5_0;
  std::vector<float> numbers;
  auto const read = [&](std::int64_t at) {
    from.read(entry, at, std::span(numbers));
    for (auto& each : numbers) each = of_scales ? each + 0.0F : each;
  };
  if (tensor.how == gguf_tensor::order::same) {
    constexpr std::int64_t most = std::int64_t{1} << 20;  // whole blocks
    for (std::int64_t at = 0; at < size; at += most) {
      numbers.resize(static_cast<std::size_t>(std::min(most, size - at)));
      read(at);
      to.write(std::as_bytes(std::span(numbers)));
    }
    return;
  }
  numbers.resize(static_cast<std::size_t>(size));
  read(0);
  auto const rows = tensor.extents[0], width = rows == 0 ? 0 : size / rows;
  std::vector<float> out(numbers.size());
  bool const turned = tensor.how == gguf_tensor::order::transposed;
  for (std::int64_t i = 0; i < rows; ++i) {
    auto const in_head = turned ? 0 : i % tensor.rows;
    auto const other = i - in_head + in_head % 2 * (tensor.rows / 2) + in_head / 2;
    for (std::int64_t j = 0; j < width; ++j) {
      auto const place = turned ? j * rows + i : other * width + j;
      out[static_cast<std::size_t>(place)] = numbers[static_cast<std::size_t>(i * width + j)];
    }
  }
  to.write(std::as_bytes(std::span(out)));
}

/// Llama 3's rule is in files as what it makes: the rule that all Llamas have must make the same.
TRIREME_BODY void read_rotary_factors(formats::gguf::reader const& from, gguf_keys const& keys, llama& to) {
  auto const& entry = from.at("rope_freqs.weight");
  std::vector<float> factors(static_cast<std::size_t>(to.width() / 2));
  if (entry.extents != shape{to.width() / 2} || entry.type != formats::gguf::kind::f32)
    keys.refuse("the tensor \"rope_freqs.weight\" has the shape ", to_string(entry.extents));
  from.read(entry, 0, std::span(factors));
  to.scaling.factor = factors.empty() ? 1 : static_cast<double>(*std::ranges::max_element(factors));
  to.scaling.original = keys.size_if("rope.scaling.original_context_length").value_or(8192);
  to.scaling.low = 1, to.scaling.high = 4;
  bool const same = to.scaling.factor > 1 && std::ranges::equal(gguf_rotary_factors(to), factors, [](float a, float b) {
                      return std::abs(a - b) <= 1e-5F * std::abs(b);
                    });
  if (!same) {
    keys.refuse("it has factors of angles, \"rope_freqs.weight\", that Llama 3's rule with 1, 4 and ",
                to.scaling.original, " does not make; take Hugging Face's files of this model");
  }
}

template <class Model>
std::uint64_t write_pretrained_of(formats::gguf::reader const& from, std::string const& directory,
                                  formats::file_system& files) {
  gguf_keys const keys(from);
  Model model;
  read_gguf_description(from, model);
  try {
    model.validate();
  } catch (config_error const& problem) {
    keys.refuse(problem.what());
  }
  auto const expected = in_gguf(model);
  std::vector<formats::safetensors::entry> entries;
  for (auto const& each : expected.tensors) {
    if (!keys.has_tensor(each.name)) keys.refuse("it has no tensor \"", each.name, "\"");
    if (auto const& found = from.at(each.name).extents; found != each.extents) {
      keys.refuse("the tensor \"", each.name, "\" has the shape ", to_string(found), ", but that of the model has ",
                  to_string(each.extents));
    }
    if (each.source.empty()) continue;
    bool const turned = each.how == gguf_tensor::order::transposed;
    entries.push_back({each.source, dtype::f32, turned ? shape{each.extents[1], each.extents[0]} : each.extents});
  }
  for (auto const& each : from.entries()) {
    bool const known = std::any_of(expected.tensors.begin(), expected.tensors.end(),
                                   [&](auto const& tensor) { return tensor.name == each.name; });
    if (!known) keys.refuse("it has a tensor \"", each.name, "\", which the model does not have");
  }
  auto config = config_of(model);
  config.set("torch_dtype", "float32");
  auto generation = formats::json::value::make({{"_from_model_config", true}});
  for (auto const& [name, key] : {std::pair{"bos_token_id", "bos_token_id"}, std::pair{"eos_token_id", "eos_token_id"},
                                  std::pair{"pad_token_id", "padding_token_id"}}) {
    if (auto const id = keys.integer(text("tokenizer.ggml.", key))) {
      config.set(name, *id);
      generation.set(name, *id);
    }
  }
  tokenizer_of_gguf const tokenizer(keys);
  std::vector<std::pair<std::string, formats::json::value>> made;
  if (tokenizer.is_there())
    made = {{"tokenizer.json", tokenizer.file()}, {"tokenizer_config.json", tokenizer.settings()}};
  made.emplace_back(std::string(generation_config_file), std::move(generation));
  made.emplace_back(std::string(formats::config_file), std::move(config));

  formats::make_directories(directory, files);
  formats::directory const in(directory, files);
  formats::safetensors::writer to(in, std::string(formats::weight_file), std::move(entries),
                                  {{"format", "pt"}, {"writer", "trireme"}});
  for (auto const& each : expected.tensors) {
    if (!each.source.empty()) write_of_gguf(from, each, to);
  }
  formats::file_set set;
  set.add(to.content());
  for (auto const& [name, content] : made) set.add(in, name, formats::json::to_string(content, 1) + "\n");
  set.appear();
  return to.file_bytes();
}

}  // namespace detail

TRIREME_BODY void read_gguf_description(formats::gguf::reader const& from, gpt& to) {
  detail::gguf_keys const keys(from);
  if (keys.architecture != "gpt2") keys.refuse("nn::gpt is \"gpt2\", not \"", keys.architecture.substr(0, 80), "\"");
  to.vocabulary = keys.vocabulary();
  to.context = keys.size("context_length");
  to.channels = keys.size("embedding_length");
  to.layers = keys.blocks();
  to.heads = keys.size("attention.head_count");
  if (auto const width = keys.size("feed_forward_length"); width != 4 * to.channels)
    keys.refuse("\"gpt2.feed_forward_length\" is ", width, "; nn::gpt has ", 4 * to.channels);
  if (auto const epsilon = keys.number("attention.layer_norm_epsilon", 1e-5); !exactly_equal(epsilon, 1e-5))
    keys.refuse("\"gpt2.attention.layer_norm_epsilon\" is ", epsilon, "; nn::gpt has 1e-5");
  to.experts = 0;
}

TRIREME_BODY void read_gguf_description(formats::gguf::reader const& from, llama& to) {
  detail::gguf_keys const keys(from);
  auto const& kind = keys.architecture;
  if (kind != "llama" && kind != "qwen2" && kind != "qwen3")
    keys.refuse("nn::llama is \"llama\", \"qwen2\" or \"qwen3\", not \"", kind.substr(0, 80), "\"");
  to.vocabulary = keys.vocabulary();
  to.context = keys.size("context_length");
  to.channels = keys.size("embedding_length");
  to.layers = keys.blocks();
  to.hidden = keys.size("feed_forward_length");
  to.heads = keys.size("attention.head_count");
  to.key_heads = keys.size_if("attention.head_count_kv").value_or(to.heads);
  auto const usual = std::max<std::int64_t>(1, to.channels / to.heads);
  auto const width = keys.size_if("attention.key_length").value_or(usual);
  for (auto const* const other : {"attention.value_length", "rope.dimension_count"}) {
    if (auto const given = keys.size_if(other).value_or(width); given != width)
      keys.refuse("\"", kind, ".", other, "\" is ", given, ", but heads of nn::llama have ", width, " numbers each");
  }
  if (width * to.heads > detail::config_reader::most)
    keys.refuse(to.heads, " heads of ", width, " numbers are too many");
  to.head_width = width * to.heads == to.channels ? 0 : width;
  to.epsilon = keys.number("attention.layer_norm_rms_epsilon", 1e-5);
  to.rotary = keys.number("rope.freq_base", 10000);
  to.scaling = {};
  auto const* const scaled = keys.find<std::string>(kind + ".rope.scaling.type");
  if (scaled != nullptr && *scaled != "none") {
    if (*scaled != "linear")
      keys.refuse("angles are scaled by the rule \"", scaled->substr(0, 80), "\"; \"linear\" is read");
    to.scaling.factor = keys.number("rope.scaling.factor", 1);
  }
  if (keys.has_tensor("rope_freqs.weight")) detail::read_rotary_factors(from, keys, to);
  if (kind == "llama" && keys.has_tensor("blk.0.ffn_gate_inp.weight"))
    keys.refuse("it has experts, and nn::llama has none");
  to.tied = !keys.has_tensor("output.weight");
  to.biased = kind == "qwen2", to.head_norms = kind == "qwen3";
  to.window = 0;
}

TRIREME_BODY std::uint64_t write_pretrained_of_gguf(std::string const& path, std::string const& directory,
                                                    formats::file_system& files) {
  formats::gguf::reader const from(path, files);
  auto const kind = detail::gguf_keys(from).architecture;
  if (kind == "gpt2") return detail::write_pretrained_of<gpt>(from, directory, files);
  if (kind == "llama" || kind == "qwen2" || kind == "qwen3")
    return detail::write_pretrained_of<llama>(from, directory, files);
  throw format_error(
      path, 0,
      text("models of the architecture \"", kind.substr(0, 80), "\" are not read; gpt2, llama, qwen2 and qwen3 are"));
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_GGUF_READER_IPP_INCLUDED
