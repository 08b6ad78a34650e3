#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "trireme/core/plural.hpp"
#include "trireme/nn/pretrained.hpp"

namespace trireme::nn {

namespace detail {

/// A config.json, read for one model. Each read states which values are allowed.
class config_reader {
 public:
  config_reader(formats::json::value const& config, std::string_view model) : config_(config), model_(model) {}

  /// A member, or nullptr where it is missing or null.
  [[nodiscard]] formats::json::value const* find(std::string_view key) const {
    auto const* const found = config_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] formats::json::value const& at(std::string_view key) const { return config_.at(key); }
  [[nodiscard]] formats::json::value const& config() const noexcept { return config_; }

  [[nodiscard]] std::int64_t size(std::string_view key) const { return size_of(key, config_.at(key)); }
  [[nodiscard]] std::int64_t size(std::string_view key, std::int64_t otherwise) const {
    auto const* const found = find(key);
    return found == nullptr ? otherwise : size_of(key, *found);
  }
  [[nodiscard]] double number(std::string_view key, double otherwise) const {
    auto const* const found = find(key);
    return found == nullptr ? otherwise : found->as_double();
  }
  [[nodiscard]] bool truth(std::string_view key, bool otherwise) const {
    auto const* const found = find(key);
    return found == nullptr ? otherwise : found->as_bool();
  }
  [[nodiscard]] std::string type() const { return config_.at("model_type").as_string(); }

  /// Fails unless the member is missing, null or one of these.
  void expect(std::string_view key, std::initializer_list<formats::json::value> allowed) const {
    auto const* const found = find(key);
    if (found == nullptr) return;
    std::string list;
    for (auto const& each : allowed) {
      if (*found == each ||
          (found->is_number() && each.is_number() && exactly_equal(found->as_double(), each.as_double())))
        return;
      list += (list.empty() ? "" : " or ") + formats::json::to_string(each);
    }
    auto const said = formats::json::to_string(*found);
    found->fail(text("\"", key, "\" is ", said.substr(0, 80), ", which ", model_, " cannot be; it takes ",
                     list.empty() ? "none" : list));
  }

  static constexpr std::int64_t most = std::int64_t{1} << 24;  ///< of a size: products of two of them fit into 63 bits

 private:
  [[nodiscard]] static std::int64_t size_of(std::string_view key, formats::json::value const& given) {
    auto const size = given.as_int64();
    if (size < 1 || size > most) given.fail(text("\"", key, "\" is ", size, "; it is from 1 to ", most));
    return size;
  }

  formats::json::value const& config_;
  std::string_view model_;
};

/// How a config.json says that positions rotate.
struct rotary_positions {
  double base = 10000;
  ops::rotary_scaling scaling{};
};

/// Scaled angles: `kind` is what transformers calls the rule, `rule` the object that has its numbers.
TRIREME_BODY ops::rotary_scaling rotary_scaling_in(formats::json::value const& rule, formats::json::value const& kind) {
  ops::rotary_scaling out;
  auto const name = kind.as_string();
  bool const of_llama = name == "llama3";
  if (name != "default" && name != "linear" && !of_llama) {
    kind.fail(text("rotary positions of type \"", name.substr(0, 80),
                   "\" are not known; nn::llama takes \"default\", \"linear\" and \"llama3\""));
  }
  for (auto const& [key, content] : rule.as_object()) {
    if (key == "rope_theta" || key == "rope_type" || key == "type" || content.is_null()) continue;
    if (key == "factor" && name != "default") {
      out.factor = content.as_double();
    } else if (key == "original_max_position_embeddings" && of_llama) {
      out.original = content.as_int64();
      if (out.original < 1) content.fail(text("\"", key, "\" is ", out.original, "; it is at least 1"));
    } else if (key == "low_freq_factor" && of_llama) {
      out.low = content.as_double();
    } else if (key == "high_freq_factor" && of_llama) {
      out.high = content.as_double();
    } else {
      content.fail(text("nothing is known of \"", key.substr(0, 80), "\", which may change rotary positions"));
    }
  }
  if (name != "default") static_cast<void>(rule.at("factor"));
  if (of_llama) static_cast<void>(rule.at("original_max_position_embeddings"));
  return out;
}

/// A member of its own and an object, or, since transformers 5, one object.
TRIREME_BODY rotary_positions rotary_in(formats::json::value const& config) {
  for (auto const& [key, content] : config.as_object()) {
    bool const known = key == "rope_theta" || key == "rope_scaling" || key == "rope_parameters";
    bool const off = content.is_null() || content == formats::json::value(false);
    if (key.starts_with("rope") && !known && !off) {
      content.fail(text("nothing is known of \"", key, "\", which may change rotary positions"));
    }
  }
  rotary_positions out{config_reader(config, "nn::llama").number("rope_theta", 10000)};
  for (auto const* name : {"rope_scaling", "rope_parameters"}) {
    auto const* const rule = config.find(name);
    if (rule == nullptr || rule->is_null()) continue;
    if (auto const* const base = rule->find("rope_theta"); base != nullptr) out.base = base->as_double();
    auto const* kind = rule->find("rope_type");
    if (kind == nullptr) kind = rule->find("type");
    out.scaling = rotary_scaling_in(*rule, kind == nullptr ? formats::json::value("default") : *kind);
  }
  return out;
}

/// The window that all layers of a model have; 0: none. Mistral always has one, unless it is null; Qwen has one where
/// it is switched on, in layers from "max_window_layers" on. "layer_types" of newer files says the same again.
TRIREME_BODY std::int64_t window_in(config_reader const& in, std::string const& type, std::int64_t layers) {
  if (type == "llama") in.expect("use_sliding_window", {false});
  bool const qwen = type == "qwen2" || type == "qwen3", mistral = type == "mistral";
  bool windowed = mistral || (qwen && in.truth("use_sliding_window", false));
  std::int64_t size = 4096;  // the default of transformers
  if (auto const* const given = in.config().find("sliding_window"); windowed && given != nullptr) {
    windowed = !given->is_null();
    if (windowed) size = in.size("sliding_window");
  }
  if (auto const* const kinds = in.find("layer_types")) {
    auto const* const wanted = windowed ? "sliding_attention" : "full_attention";
    for (auto const& kind : kinds->as_array()) {
      if (kind.as_string() != wanted) kind.fail(text("layers of nn::llama are alike, here all \"", wanted, "\""));
    }
  } else if (qwen && windowed) {
    auto const* const first = in.find("max_window_layers");
    auto const full = first == nullptr ? 28 : first->as_int64();
    if (full > 0 && full < layers) {
      in.config().fail(text("the first ", full, " of ", layers,
                            " layers have no window and the others have one, but layers of nn::llama are alike"));
    }
    windowed = full <= 0;
  }
  return windowed ? size : 0;
}

/// Reads ranges of one tensor, converts their numbers and scatters them; ranges that follow each other in the file are
/// read at once.
template <class T>
class scattered_read {
 public:
  scattered_read(formats::weight_files::tensor const& from, std::span<T> to) : from_(from), to_(to) {}
  scattered_read(scattered_read const&) = delete;
  scattered_read& operator=(scattered_read const&) = delete;

  /// Elements [first, first + count) of the file's tensor go to `place`, `place + stride`, ...
  void take(std::int64_t first, std::int64_t count, std::int64_t place, std::int64_t stride) {
    while (count > 0) {
      if (first != first_ + elements_ || elements_ == most) flush(first);
      auto const n = std::min(count, most - elements_);
      ranges_.push_back({n, place, stride});
      elements_ += n;
      first += n;
      count -= n;
      place += n * stride;
    }
  }
  /// Reads what is left, and continues at this element.
  void flush(std::int64_t next = 0) {
    auto const& type = from_.what->type;
    if (type == dtype::f64) read<double>();
    if (type == dtype::f32) read<float>();
    if (type == dtype::bf16) read<bfloat16>();
    if (type == dtype::f16) read<float16>();
    ranges_.clear();
    first_ = next;
    elements_ = 0;
  }

 private:
  static constexpr std::int64_t most = 32768;  // elements at once

  struct range {
    std::int64_t count, place, stride;
  };

  template <class Stored>
  void read() {
    std::vector<Stored> values(static_cast<std::size_t>(elements_));
    from_.file->read(*from_.what, static_cast<std::uint64_t>(first_), std::as_writable_bytes(std::span(values)));
    auto value = values.begin();
    for (auto const& each : ranges_) {
      for (std::int64_t i = 0; i < each.count; ++i)
        to_[static_cast<std::size_t>(each.place + i * each.stride)] = static_cast<T>(*value++);
    }
  }

  formats::weight_files::tensor const& from_;
  std::span<T> to_;
  std::vector<range> ranges_;
  std::int64_t first_ = 0;
  std::int64_t elements_ = 0;
};

/// Reads what a file's tensor has of elements [first, first + to.size()) of a part of a parameter.
template <class T>
void read_part(file_tensor const& how, formats::weight_files::tensor const& from, parameter_info const& part,
               std::int64_t first, std::span<T> to) {
  auto const count = static_cast<std::int64_t>(to.size());
  if (how.matrices > 1) {  // a part has some of them, each whole
    auto const first_here = part.is_shard() ? part.first[0] : 0, each = how.inputs * how.columns;
    auto const at = (how.matrix - first_here) * each;
    auto const begin = std::max(first, at), end = std::min(first + count, at + each);
    if (begin >= end) return;
    auto alone = how;
    alone.matrix = 0, alone.matrices = 1;
    return read_part(alone, from, {part.name, {how.inputs, how.columns}}, begin - at,
                     to.subspan(static_cast<std::size_t>(begin - first), static_cast<std::size_t>(end - begin)));
  }
  if (how.inputs > 1 && !part.is_shard() && part.extents[0] != how.inputs)  // a convolution's (kernel, kernel, ...)
    return read_part(how, from, {part.name, {how.inputs, how.columns}}, first, to);
  scattered_read<T> reads(from, to);
  auto const for_each_band = [&](std::int64_t column, std::int64_t n, auto&& f) {  // f(row, column, n)
    for (auto const& band : how.bands) {
      auto const begin = std::max(column, band.column), end = std::min(column + n, band.column + band.count);
      if (begin < end) f(band.row + begin - band.column, begin, end - begin);
    }
  };
  if (how.inputs == 1) {  // rows of one number: what lies together in the parameter does so in the file
    for_each_run(part, first, count, [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
      for_each_band(whole, n, [&](std::int64_t row, std::int64_t column, std::int64_t m) {
        reads.take(row, m, here - first + column - whole, 1);
      });
    });
  } else {
    auto const inputs = part.extents[0], width = inputs == 0 ? 0 : part.extents.size() / inputs;
    auto const first_input = part.is_shard() ? part.first[0] : 0;
    for_each_run(part, 0, width, [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
      auto const left = whole - first_input * how.columns;
      for_each_band(left, n, [&](std::int64_t row, std::int64_t column, std::int64_t m) {
        for (std::int64_t i = 0; i < m; ++i) {
          auto const place = here + column - left + i;  // in each of the part's rows
          auto const begin = std::max<std::int64_t>(0, (first - place + width - 1) / width);
          auto const end = std::max<std::int64_t>(0, (first + count - place + width - 1) / width);
          auto const in_plane = how.inputs / how.planes, of_row = (row + i) * how.inputs;
          // In each plane those of the inputs [begin, end) that are in it.
          for (std::int64_t plane = 0; plane < how.planes; ++plane) {
            auto const from_here = [&](std::int64_t input) {
              return (first_input + input - plane + how.planes - 1) / how.planes;
            };
            auto const start = from_here(begin), count_here = from_here(end) - start;
            auto const at = start * how.planes + plane - first_input;
            reads.take(of_row + plane * in_plane + start, count_here, at * width + place - first, how.planes * width);
          }
        }
      });
    });
  }
  reads.flush();
}

[[nodiscard]] inline bool is_read(formats::safetensors::stored_type const& type) {
  return type == dtype::f64 || type == dtype::f32 || type == dtype::bf16 || type == dtype::f16;
}

template <class Stored>
void store(std::vector<std::byte>& to, file_tensor const& how, std::span<float const> values) {
  std::vector<Stored> out(static_cast<std::size_t>(how.extents.size()));
  auto next = out.begin();
  for (auto const& band : how.bands) {
    for (std::int64_t i = 0; i < band.count; ++i) {
      auto const place = how.matrix * how.inputs * how.columns + band.column + i;
      for (std::int64_t input = 0; input < how.inputs; ++input)
        *next++ = Stored(values[static_cast<std::size_t>(place + how.input(input) * how.columns)]);
    }
  }
  auto const bytes = std::as_bytes(std::span(out));
  to.assign(bytes.begin(), bytes.end());
}

/// Whether pretrained_writer has written this file of weights.
TRIREME_BODY bool is_own_file(formats::directory const& in, std::string const& name) {
  try {
    auto const* const writer = formats::safetensors::reader(in, name).note("writer");
    return writer != nullptr && *writer == "trireme";
  } catch (error const&) {
    return false;
  }
}
/// A file that would contradict what has been written: it is removed if this class wrote it, else renamed so that it is
/// not read.
TRIREME_BODY void retire(formats::directory const& in, std::string const& name, bool own) {
  if (own) return void(in.remove(name));
  auto other_name = name + ".replaced";
  for (int number = 2; in.has(other_name); ++number) other_name = text(name, ".replaced.", number);
  in.rename(name, other_name);
}
/// The index of a directory; null if it is missing or cannot be read.
TRIREME_BODY formats::json::value earlier_index(formats::directory const& in) {
  std::string const name(formats::weight_index_file);
  try {
    return formats::json::parse(formats::read_text(in, name, 64'000'000), in.path_of(name));
  } catch (error const&) {
    return nullptr;
  }
}
TRIREME_BODY bool is_own_index(formats::directory const& in) {
  auto const index = earlier_index(in);
  if (!index.is_object()) return false;
  auto const* const notes = index.find("metadata");
  auto const* const writer = notes == nullptr || !notes->is_object() ? nullptr : notes->find("writer");
  return writer != nullptr && *writer == formats::json::value("trireme");
}
/// Own files that an earlier index names and the map of a new one does not.
TRIREME_BODY std::vector<std::string> earlier_shards(formats::directory const& in, formats::json::value const& map) {
  std::set<std::string> stay, gone;
  for (auto const& [tensor, file] : map.as_object()) stay.insert(file.as_string());
  try {
    std::string const name(formats::weight_index_file);
    for (auto const& each : formats::parse_weight_index(formats::read_text(in, name, 64'000'000), in.path_of(name))) {
      if (!stay.contains(each.file) && is_own_file(in, each.file)) gone.insert(each.file);
    }
  } catch (error const&) {  // none, or none that can be read: not our work
    return {};
  }
  return {gone.begin(), gone.end()};
}

}  // namespace detail

TRIREME_BODY void read_config(formats::json::value const& config, gpt& to) {
  detail::config_reader const in(config, "nn::gpt");
  auto const type = in.type();
  bool const experts = type == "gpt_experts";
  if (!experts && type != "gpt2")
    in.at("model_type").fail(text("nn::gpt is \"gpt2\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  in.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  in.expect("layer_norm_epsilon", {1e-5});
  in.expect("scale_attn_weights", {true});
  in.expect("scale_attn_by_inverse_layer_idx", {false});
  in.expect("add_cross_attention", {false});
  in.expect("tie_word_embeddings", {true});
  to.vocabulary = in.size("vocab_size");
  to.context = in.size("n_positions");
  to.channels = in.size("n_embd");
  to.layers = in.size("n_layer");
  to.heads = in.size("n_head");
  in.expect("n_inner", {4 * to.channels});
  to.dropout = in.number("resid_pdrop", 0.1);
  in.expect("embd_pdrop", {to.dropout});
  in.expect("attn_pdrop", {to.dropout});
  to.experts = experts ? in.size("num_local_experts") : 0;
  if (experts) to.top_k = in.size("num_experts_per_tok");
}

TRIREME_BODY void read_config(formats::json::value const& config, llama& to) {
  detail::config_reader const in(config, "nn::llama");
  auto const type = in.type();
  bool const qwen2 = type == "qwen2", qwen3 = type == "qwen3", mistral = type == "mistral";
  if (!qwen2 && !qwen3 && !mistral && type != "llama") {
    in.at("model_type")
        .fail(text("nn::llama is \"llama\", \"qwen2\", \"qwen3\" or \"mistral\", not \"", type.substr(0, 80), "\""));
  }
  in.expect("quantization_config", {});
  in.expect("hidden_act", {"silu"});
  in.expect("attention_bias", {false});
  in.expect("mlp_bias", {false});
  in.expect("attention_dropout", {0});
  to.vocabulary = in.size("vocab_size");
  to.context = in.size("max_position_embeddings");
  to.channels = in.size("hidden_size");
  to.hidden = in.size("intermediate_size");
  to.layers = in.size("num_hidden_layers");
  to.heads = in.size("num_attention_heads");
  to.key_heads = type == "llama" ? in.size("num_key_value_heads", to.heads) : in.size("num_key_value_heads");
  auto const width = in.size("head_dim", qwen3 ? 128 : std::max<std::int64_t>(1, to.channels / to.heads));
  if (width * to.heads > in.most)
    config.fail(text(how_many(to.heads, "head"), " of ", how_many(width, "number"), " are too many"));
  to.head_width = width * to.heads == to.channels ? 0 : width;
  to.epsilon = in.number("rms_norm_eps", 1e-6);
  auto const positions = detail::rotary_in(config);
  to.rotary = positions.base, to.scaling = positions.scaling;
  to.tied = in.truth("tie_word_embeddings", false);
  to.biased = qwen2, to.head_norms = qwen3;
  to.window = detail::window_in(in, type, to.layers);
}

TRIREME_BODY formats::json::value config_of(gpt const& model) {
  namespace json = formats::json;
  json::value config = json::value::make({{"model_type", "gpt2"},
                                          {"architectures", json::array{"GPT2LMHeadModel"}},
                                          {"vocab_size", model.vocabulary},
                                          {"n_positions", model.context},
                                          {"n_embd", model.channels},
                                          {"n_layer", model.layers},
                                          {"n_head", model.heads},
                                          {"activation_function", "gelu_new"},
                                          {"layer_norm_epsilon", 1e-5},
                                          {"resid_pdrop", model.dropout},
                                          {"embd_pdrop", model.dropout},
                                          {"attn_pdrop", model.dropout},
                                          {"tie_word_embeddings", true},
                                          {"bos_token_id", nullptr},
                                          {"eos_token_id", nullptr}});
  if (model.experts > 0) {  // transformers has no such model
    config.set("model_type", "gpt_experts");
    config.set("architectures", json::array{});
    config.set("num_local_experts", model.experts);
    config.set("num_experts_per_tok", model.top_k);
  }
  return config;
}

TRIREME_BODY formats::json::value config_of(llama const& model) {
  namespace json = formats::json;
  bool const windowed = model.window > 0, qwen = model.biased || model.head_norms;
  auto const* const type = model.biased ? "qwen2" : model.head_norms ? "qwen3" : windowed ? "mistral" : "llama";
  auto const* const kind = model.biased ? "Qwen2" : model.head_norms ? "Qwen3" : windowed ? "Mistral" : "Llama";
  auto const& angles = model.scaling;
  bool const scaled = !exactly_equal(angles.factor, 1);
  json::value rule = json::value::make({{"rope_type", !scaled               ? "default"
                                                      : angles.original > 0 ? "llama3"
                                                                            : "linear"},
                                        {"rope_theta", model.rotary}});
  if (scaled) rule.set("factor", angles.factor);
  if (scaled && angles.original > 0) {
    rule.set("original_max_position_embeddings", angles.original);
    rule.set("low_freq_factor", angles.low);
    rule.set("high_freq_factor", angles.high);
  }
  json::value config = json::value::make({{"model_type", type},
                                          {"architectures", json::array{text(kind, "ForCausalLM")}},
                                          {"vocab_size", model.vocabulary},
                                          {"max_position_embeddings", model.context},
                                          {"hidden_size", model.channels},
                                          {"intermediate_size", model.inner()},
                                          {"num_hidden_layers", model.layers},
                                          {"num_attention_heads", model.heads},
                                          {"num_key_value_heads", model.keys()},
                                          {"head_dim", model.width()},
                                          {"hidden_act", "silu"},
                                          {"rms_norm_eps", model.epsilon},
                                          {"rope_parameters", rule},
                                          {"tie_word_embeddings", model.tied},
                                          {"bos_token_id", nullptr},
                                          {"eos_token_id", nullptr}});
  // For transformers 4.
  config.set("rope_theta", model.rotary);
  if (scaled) config.set("rope_scaling", rule);
  if (type == std::string_view("mistral")) config.set("sliding_window", model.window);
  if (qwen && windowed) {
    config.set("use_sliding_window", true);
    config.set("sliding_window", model.window);
    config.set("max_window_layers", 0);
  }
  return config;
}

TRIREME_BODY std::string model_type_in(std::string const& directory, formats::file_system& files) {
  auto const path = text(directory, "/", formats::config_file);
  return formats::read_json(path, most_config_bytes, files).at("model_type").as_string();
}

TRIREME_BODY pretrained_reader::pretrained_reader(file_mapping const& layout, std::string const& directory,
                                                  formats::file_system& files, group_rank compared)
    : files_(directory, files) {
  auto const& all = files_.tensors();
  bool const whole =
      std::ranges::any_of(all, [&](auto const& each) { return each.what->name.starts_with(layout.base); });
  auto const here = [&](std::string const& name) {
    return std::string_view(name).substr(!whole && name.starts_with(layout.base) ? layout.base.size() : 0);
  };
  std::map<std::string_view, formats::weight_files::tensor const*> known;  // by the name in the layout
  std::set<formats::safetensors::entry const*> used;
  for (auto const& tensor : layout.tensors) {
    auto const name = here(tensor.name);
    auto const* found = files_.find(name);
    for (auto const& [now, then] : layout.older) {
      if (found == nullptr && name.ends_with(now))
        found = files_.find(text(name.substr(0, name.size() - now.size()), then));
    }
    for (auto const& twice : layout.copies) {  // of two equal tensors some writers keep the other one
      if (found == nullptr && twice.of == tensor.name) found = files_.find(here(twice.name));
    }
    if (found == nullptr) {
      throw format_error(files_.path(), 0, text("it has no tensor \"", name, "\", which the model needs"));
    }
    auto const refuse = [&](auto const&... reason) {
      throw format_error(found->file->path(), found->what->begin,
                         text("the tensor \"", found->what->name, "\" ", reason...));
    };
    if (found->what->extents != tensor.extents) {
      refuse("has the shape ", to_string(found->what->extents), ", but that of the model has ",
             to_string(tensor.extents));
    }
    if (!detail::is_read(found->what->type)) {
      refuse("is of type ", found->what->type.name(), "; F64, F32, BF16 and F16 are read");
    }
    known[tensor.name] = found;
    used.insert(found->what);
    for (auto const type : {dtype::f64, dtype::f32, dtype::bf16, dtype::f16}) {
      if (found->what->type == type) types_[tensor.name] = type;
    }
    sources_[tensor.parameter].push_back({tensor, *found});
    tensors_.emplace(tensor.name, *found);
  }
  for (auto const& each : all) {
    auto const& name = each.what->name;
    auto const is_pattern = [&](auto const& pattern) { return matches(pattern, name); };
    if (used.contains(each.what)) continue;
    auto const twice = std::ranges::find_if(layout.copies, [&](auto const& copy) { return here(copy.name) == name; });
    if (twice != layout.copies.end()) {
      expect_copy(*twice, each, *known.at(twice->of), compared);
      continue;
    }
    bool const ignored = std::ranges::any_of(layout.ignored, is_pattern) ||
                         std::ranges::any_of(layout.ignored_with, [&](auto const& one) {
                           return is_pattern(here(one.first)) && files_.find(here(one.second)) != nullptr;
                         });
    if (!ignored) {
      throw format_error(each.file->path(), each.what->begin,
                         text("it has a tensor \"", name, "\", which the model does not have"));
    }
    left_out_.push_back(name);
  }
}

TRIREME_BODY void pretrained_reader::expect_copy(file_mapping::copy const& what,
                                                 formats::weight_files::tensor const& twice,
                                                 formats::weight_files::tensor const& of, group_rank compared) const {
  auto const refuse = [&](auto const&... how) {
    throw format_error(twice.file->path(), twice.what->begin,
                       text("the tensor \"", twice.what->name, "\" is not \"", of.what->name, "\" once more (", how...,
                            "), but this model has one for both; ", what.remedy));
  };
  if (twice.what->extents != of.what->extents)
    refuse(to_string(twice.what->extents), " in place of ", to_string(of.what->extents));
  if (!detail::is_read(twice.what->type)) refuse("of type ", twice.what->type.name());
  constexpr std::int64_t most = 32768;
  std::vector<double> one(most), other(most);
  auto const range = compared.of(of.what->extents.size());
  for (std::int64_t at = range.first; at < range.first + range.count; at += most) {
    auto const n = std::min(most, range.first + range.count - at);
    for (auto const& [from, to] : {std::pair(&twice, &one), std::pair(&of, &other)}) {
      detail::scattered_read<double> read(*from, *to);
      read.take(at, n, 0, 1);
      read.flush();
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      if (std::bit_cast<std::uint64_t>(one[i]) == std::bit_cast<std::uint64_t>(other[i]) ||
          exactly_equal(one[i], other[i]))
        continue;
      refuse("element ", at + static_cast<std::int64_t>(i), " is ", one[i], ", not ", other[i]);
    }
  }
}

template <class T>
void pretrained_reader::fill(parameter_info const& part, std::int64_t first, std::span<T> to) const {
  auto const found = sources_.find(part.name);
  if (found == sources_.end()) {
    throw config_error(text("trireme::nn::pretrained_reader: the model's files do not say where \"", part.name,
                            "\" is; add it to in_files()"));
  }
  for (auto const& each : found->second) detail::read_part(each.how, each.from, part, first, to);
}
TRIREME_BODY void pretrained_reader::read(parameter_info const& part, std::int64_t first, std::span<float> to) const {
  fill(part, first, to);
}
TRIREME_BODY void pretrained_reader::read(parameter_info const& part, std::int64_t first, std::span<double> to) const {
  fill(part, first, to);
}

TRIREME_BODY void pretrained_reader::read_tensor(std::string_view name, std::int64_t first, std::span<float> to) const {
  auto const found = tensors_.find(name);
  auto const size = found == tensors_.end() ? 0 : found->second.what->extents.size();
  auto const count = static_cast<std::int64_t>(to.size());
  if (found == tensors_.end() || first < 0 || first > size || count > size - first) {
    throw config_error(text("trireme::nn::pretrained_reader: the model's tensor \"", name, "\" has ", size,
                            " elements; asked for ", count, " from ", first, " on"));
  }
  detail::scattered_read<float> read(found->second, to);
  read.take(first, count, 0, 1);
  read.flush();
}

TRIREME_BODY formats::model_file pretrained_reader::notes() const {
  namespace json = formats::json;
  json::value types = json::object{}, others = json::array{};
  for (auto const& [name, type] : types_) types.set(name, std::string(name_of(type)));
  for (auto const& name : left_out_) others.push_back(name);
  return {std::string(tensor_notes),
          json::to_string(json::value::make({{"types", std::move(types)}, {"left_out", std::move(others)}}))};
}

TRIREME_BODY pretrained_writer::pretrained_writer(file_mapping layout, std::optional<dtype> stored,
                                                  std::vector<formats::model_file> const& origin)
    : layout_(std::move(layout)), contents_(layout_.tensors.size()) {
  if (stored && *stored != dtype::f32 && *stored != dtype::bf16 && *stored != dtype::f16) {
    throw config_error(
        text("trireme::nn::pretrained_writer: parameters are stored as F32, BF16 or F16, not as ", name_of(*stored)));
  }
  if (auto const* const config = formats::find(origin, formats::config_file)) config_before_ = config->content;
  auto const* const notes = formats::find(origin, tensor_notes);
  std::map<std::string, dtype, std::less<>> before;
  if (notes != nullptr) {
    auto const said = formats::json::parse(notes->content, tensor_notes);
    for (auto const& [name, type] : said.at("types").as_object()) {
      for (auto const each : {dtype::f64, dtype::f32, dtype::bf16, dtype::f16}) {
        if (type.as_string() == name_of(each)) before[name] = each;
      }
    }
  }
  bool const all_alike = !before.empty() && std::ranges::all_of(before, [&](auto const& each) {
    return each.second == before.begin()->second;
  });
  usual_ = stored.value_or(all_alike ? before.begin()->second : dtype::f32);
  if (usual_ == dtype::f64) usual_ = dtype::f32;  // parameters come as floats
  as_before_ = !before.empty();
  for (auto const& tensor : layout_.tensors) {
    auto const found = before.find(tensor.name);
    auto type = found == before.end() || stored ? usual_ : found->second;
    if (type == dtype::f64) type = dtype::f32;
    as_before_ = as_before_ && (found == before.end() || found->second == type);
    types_.push_back(type);
  }
}

TRIREME_BODY void pretrained_writer::add(std::string_view parameter, std::span<float const> values) {
  bool known = false;
  for (std::size_t i = 0; i < contents_.size(); ++i) {
    auto const& how = layout_.tensors[i];
    if (how.parameter != parameter) continue;
    known = true;
    if (static_cast<std::int64_t>(values.size()) != how.size()) {
      throw config_error(text("trireme::nn::pretrained_writer: \"", parameter, "\" has ", values.size(),
                              " elements, but in_files() says ", how.size()));
    }
    if (types_[i] == dtype::f32) detail::store<float>(contents_[i], how, values);
    if (types_[i] == dtype::bf16) detail::store<bfloat16>(contents_[i], how, values);
    if (types_[i] == dtype::f16) detail::store<float16>(contents_[i], how, values);
  }
  if (!known) {
    throw config_error(text("trireme::nn::pretrained_writer: the model's files have no place for \"", parameter,
                            "\"; add it to in_files()"));
  }
}

TRIREME_BODY void pretrained_writer::write(formats::directory const& in, formats::json::value config,
                                           std::uint64_t most_bytes,
                                           std::vector<formats::model_file> const& model_files) const {
  namespace json = formats::json;
  namespace safetensors = formats::safetensors;
  std::vector<std::size_t> ends;  // of each file's tensors
  std::uint64_t all = 0, file = 0;
  for (std::size_t i = 0; i < contents_.size(); ++i) {
    auto const bytes = contents_[i].size();
    if (bytes == 0) {
      throw config_error(
          text("trireme::nn::pretrained_writer: \"", layout_.tensors[i].parameter, "\" has not been added"));
    }
    if (file > 0 && file + bytes > most_bytes) {
      ends.push_back(i);
      file = 0;
    }
    file += bytes;
    all += bytes;
  }
  ends.push_back(contents_.size());
  json::value map = json::object{};
  auto const number = [](std::size_t n) {
    auto const digits = std::to_string(n);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  formats::file_set set;
  for (auto const& each : model_files) {
    if (each.name != formats::config_file && each.name != tensor_notes) formats::add_model_file(set, in, each);
  }
  std::size_t first = 0;
  for (std::size_t k = 0; k < ends.size(); ++k) {
    auto const name = ends.size() == 1 ? std::string(formats::weight_file)
                                       : text("model-", number(k + 1), "-of-", number(ends.size()), ".safetensors");
    std::vector<safetensors::entry> entries;
    for (auto i = first; i < ends[k]; ++i) {
      entries.push_back({layout_.tensors[i].name, types_[i], layout_.tensors[i].extents});
      map.set(layout_.tensors[i].name, name);
    }
    safetensors::writer writer(in, name, std::move(entries), {{"format", "pt"}, {"writer", "trireme"}});
    for (auto i = first; i < ends[k]; ++i) writer.write(contents_[i]);
    set.add(writer.content());
    first = ends[k];
  }
  if (ends.size() > 1) {
    auto const index = json::value::make(
        {{"metadata", json::value::make({{"total_size", all}, {"writer", "trireme"}})}, {"weight_map", map}});
    set.add(in, std::string(formats::weight_index_file), json::to_string(index, 2) + "\n");
  }
  if (!as_before_) {
    auto const* const key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
    config.set(key, usual_ == dtype::f32 ? "float32" : usual_ == dtype::bf16 ? "bfloat16" : "float16");
  }
  bool const same = !config_before_.empty() && json::parse(config_before_, formats::config_file) == config;
  set.add(in, std::string(formats::config_file), same ? config_before_ : json::to_string(config, 2) + "\n");
  // What contradicts the new files is known by the earlier ones.
  auto const other = std::string(ends.size() > 1 ? formats::weight_file : formats::weight_index_file);
  auto const gone = detail::earlier_shards(in, map);
  bool const contradicts = in.has(other);
  bool const own = contradicts && (ends.size() > 1 ? detail::is_own_file(in, other) : detail::is_own_index(in));
  set.appear();
  for (auto const& each : gone) in.remove(each);
  if (contradicts) detail::retire(in, other, own);
}

TRIREME_BODY formats::json::value config_to_write(std::vector<formats::model_file> const& origin,
                                                  formats::json::value before, formats::json::value const& now) {
  namespace json = formats::json;
  auto const* const file = formats::find(origin, formats::config_file);
  if (file == nullptr) return now;
  auto out = json::parse(file->content, formats::config_file);
  // Modules that were left out are not there any more.
  auto const* const modules = out.find("num_nextn_predict_layers");
  if (modules != nullptr && before.find("num_nextn_predict_layers") != nullptr && !left_out(origin).empty())
    before.set("num_nextn_predict_layers", *modules);
  for (auto const& [key, content] : now.as_object()) {
    auto const* const same = before.find(key);
    bool const kind = key == "architectures" && !content.as_array().empty();  // also where files had no head
    if (kind || same == nullptr || *same != content) out.set(key, content);
  }
  for (auto const& [key, content] : before.as_object()) {
    if (now.find(key) == nullptr && out.find(key) != nullptr) out.set(key, nullptr);
  }
  auto const* const labels = out.find("id2label");
  auto const* const classes = now.find("num_labels");
  if (labels == nullptr || labels->is_null() || classes == nullptr) return out;
  if (static_cast<std::int64_t>(labels->as_object().size()) == classes->as_int64()) return out;
  json::object others;  // the names of other classes
  for (auto const& member : out.as_object()) {
    if (member.key != "id2label" && member.key != "label2id") others.push_back(member);
  }
  return others;
}

TRIREME_BODY std::vector<std::string> left_out(std::vector<formats::model_file> const& origin) {
  std::vector<std::string> out;
  auto const* const notes = formats::find(origin, tensor_notes);
  if (notes == nullptr) return out;
  auto const all = formats::json::parse(notes->content, tensor_notes);
  for (auto const& name : all.at("left_out").as_array()) out.push_back(name.as_string());
  return out;
}

TRIREME_BODY std::vector<std::int32_t> end_tokens(std::vector<formats::model_file> const& files) {
  std::vector<std::int32_t> out;
  for (auto const name : {generation_config_file, formats::config_file}) {
    auto const* const file = formats::find(files, name);
    if (file == nullptr || !out.empty()) continue;
    auto const said = formats::json::parse(file->content, name);
    auto const* const ids = said.find("eos_token_id");
    if (ids == nullptr || ids->is_null()) continue;
    auto const add = [&](formats::json::value const& id) {
      auto const token = id.as_int64();
      if (token < std::numeric_limits<std::int32_t>::min() || token > std::numeric_limits<std::int32_t>::max())
        id.fail(text("\"eos_token_id\" is ", token, ", which no token can have as its number"));
      if (token >= 0) out.push_back(static_cast<std::int32_t>(token));  // some files write -1 for none
    };
    if (!ids->is_array()) {
      add(*ids);
      continue;
    }
    for (auto const& each : ids->as_array()) add(each);
  }
  return out;
}

TRIREME_BODY std::vector<std::int32_t> end_tokens_in(std::string const& directory, formats::file_system& files) {
  std::vector<formats::model_file> both;
  auto const names = formats::directory(directory, files).names();
  for (auto const name : {generation_config_file, formats::config_file}) {
    if (std::binary_search(names.begin(), names.end(), name))
      both.push_back({std::string(name), formats::read_text(text(directory, "/", name), most_config_bytes, files)});
  }
  return end_tokens(both);
}

}  // namespace trireme::nn
