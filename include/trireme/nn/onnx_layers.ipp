#pragma once

#include <algorithm>
#include <limits>
#include <tuple>

#include "trireme/core/plural.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/ops/host/heads.hpp"

namespace trireme::nn {

TRIREME_BODY onnx_walk::onnx_walk(bool past, onnx_dialect dialect, bool four_bits)
    : past_(past), four_bits_(four_bits), dialect_(dialect) {
  if (dialect == onnx_dialect::native) graph.opset = 23, graph.ir = 11;
  if (dialect == onnx_dialect::ort) graph.opset = 21, graph.ir = 10;
}

TRIREME_BODY std::string onnx_walk::parameter_named(std::string full, shape const& extents) {
  for (auto const& each : graph.weights) {
    if (each.name == full) return full;
  }
  graph.weights.push_back({full, extents});
  return full;
}

TRIREME_BODY std::string onnx_walk::product(std::string const& x, std::string const& full, std::int64_t inputs,
                                            std::int64_t outputs, bool rows) {
  constexpr std::int64_t block = 32, bits = 4;
  if (!four_bits_ || inputs % block != 0) {
    if (!rows) return graph.add("MatMul", {x, parameter_named(full, {inputs, outputs})});
    return graph.add("MatMul", {x, transposed(parameter_named(full, {outputs, inputs}), {1, 0})});
  }
  auto const blocks = full + ".q4_0", scales = full + ".scales";
  bool const known =
      std::any_of(graph.weights.begin(), graph.weights.end(), [&](auto const& each) { return each.name == blocks; });
  if (!known) {  // the scales stand behind their blocks: see write_onnx()
    graph.weights.push_back(
        {blocks, {outputs, inputs / block, block * bits / 8}, formats::onnx::element::u8, full, !rows});
    graph.weights.push_back({scales, {outputs, inputs / block}, formats::onnx::element::f32, full, !rows});
  }
  auto y = text("/", graph.nodes.size(), "/MatMulNBits");
  add_own("MatMulNBits", {x, blocks, scales}, {y},
          {{"K", inputs}, {"N", outputs}, {"bits", bits}, {"block_size", block}});
  return y;
}

TRIREME_BODY std::string& onnx_walk::cached(std::string const& key) {
  for (auto& [known, value] : cached_) {
    if (known == key) return value;
  }
  return cached_.emplace_back(key, "").second;
}

TRIREME_BODY std::string onnx_walk::integers(std::string const& input, std::string const& length) {
  for (auto const& each : graph.inputs) {
    if (each.name == input) return input;
  }
  graph.inputs.push_back({input, formats::onnx::element::i64, {std::string("batch_size"), length}});
  return input;
}

TRIREME_BODY std::string onnx_walk::pixels(nn::image const& of) {
  image = of;
  width = of.size();
  planes = true;
  graph.inputs.push_back(
      {"pixel_values", formats::onnx::element::f32, {std::string("batch_size"), of.channels, of.height, of.width}});
  return "pixel_values";
}

TRIREME_BODY std::string onnx_walk::length_of(std::string const& input) {
  auto const key = "length of " + input;
  if (auto const known = cached(key); !known.empty()) return known;
  auto const size = graph.add("Shape", {input}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}});
  return cached(key) = graph.add("Squeeze", {size, graph.constant_of(std::vector<std::int64_t>{0})});
}

TRIREME_BODY std::string onnx_walk::positions() {
  if (past_) return integers("position_ids", "sequence_length");
  if (auto const known = cached("positions"); !known.empty()) return known;
  auto const all =
      graph.add("Range", {graph.constant_of(std::int64_t{0}), length_of(tokens()), graph.constant_of(std::int64_t{1})});
  return cached("positions") = unsqueezed(all, {0});
}

namespace detail {

[[nodiscard]] TRIREME_BODY std::string key_of(rotary_angles const& how) {
  return text(how.width, " ", how.base, " ", how.scaling.factor, " ", how.scaling.original, " ", how.scaling.low, " ",
              how.scaling.high);
}
/// Of each position cosines, then sines.
[[nodiscard]] TRIREME_BODY std::vector<float> table_of(rotary_angles const& how, std::int64_t positions) {
  std::vector<float> out(static_cast<std::size_t>(positions * how.width));
  ops::detail::rotation_table(out.data(), positions, 0, how.width, how.base, how.scaling);
  return out;
}

}  // namespace detail

TRIREME_BODY std::pair<std::string, std::string> onnx_walk::rotations(rotary_angles const& how) {
  auto const key = "rotations " + detail::key_of(how);
  if (auto const known = cached(key + " cos"); !known.empty()) return {known, cached(key + " sin")};
  auto const all = graph.constant_of(detail::table_of(how, context), {context, how.width});
  auto const here = unsqueezed(graph.add("Gather", {all, positions()}), {1});
  auto const halves = split(here, -1, {how.width / 2, how.width / 2});
  cached(key + " cos") = halves[0];
  cached(key + " sin") = halves[1];
  return {halves[0], halves[1]};
}

TRIREME_BODY std::pair<std::string, std::string> onnx_walk::rotation_tables(rotary_angles const& how) {
  auto const key = "tables " + detail::key_of(how);
  if (auto const known = cached(key + " cos"); !known.empty()) return {known, cached(key + " sin")};
  auto const both = detail::table_of(how, context);
  std::vector<float> cosines, sines;
  auto const half = how.width / 2;
  for (auto at = both.begin(); at != both.end(); at += how.width) {
    cosines.insert(cosines.end(), at, at + half);
    sines.insert(sines.end(), at + half, at + how.width);
  }
  cached(key + " cos") = graph.constant_of(std::move(cosines), {context, half});
  cached(key + " sin") = graph.constant_of(std::move(sines), {context, half});
  return {cached(key + " cos"), cached(key + " sin")};
}

TRIREME_BODY std::string onnx_walk::turned(std::string const& x, rotary_angles const& how, bool side_by_side) {
  auto const half = how.width / 2;
  if (dialect_ == onnx_dialect::native) {
    auto const [cosines, sines] = rotation_tables(how);
    auto here = positions();
    if (!past_) {
      if (cached("positions of all").empty())
        cached("positions of all") = graph.add("Expand", {here, graph.add("Shape", {tokens()})});
      here = cached("positions of all");
    }
    return graph.add("RotaryEmbedding", {x, cosines, sines, here},
                     {{"interleaved", std::int64_t{side_by_side ? 1 : 0}}});
  }
  auto const [cosine, sine] = rotations(how);
  auto of = x;
  if (side_by_side) {  // the first ones of all pairs, then the second ones
    auto const pairs = transposed(reshaped(x, {0, 0, -1, half, 2}), {0, 1, 2, 4, 3});
    of = reshaped(pairs, {0, 0, -1, how.width});
  }
  auto const parts = split(of, -1, {half, half});
  auto const first = graph.add("Sub", {graph.add("Mul", {parts[0], cosine}), graph.add("Mul", {parts[1], sine})});
  auto const second = graph.add("Add", {graph.add("Mul", {parts[1], cosine}), graph.add("Mul", {parts[0], sine})});
  return graph.add("Concat", {first, second}, {{"axis", std::int64_t{-1}}});
}

TRIREME_BODY std::string onnx_walk::seen(attend const& what, bool itself) {
  auto const key = text("seen ", what.causal, " ", what.window, " ", itself);
  if (auto const known = cached(key); !known.empty()) return known;
  auto const given = unsqueezed(
      graph.add("Cast", {mask()}, {{"to", static_cast<std::int64_t>(formats::onnx::element::boolean)}}), {1, 2});
  if (!what.causal && what.window == 0 && !itself) return cached(key) = given;
  auto const here = length_of(tokens()), all = length_of(mask());
  auto const one = graph.constant_of(std::int64_t{1});
  auto const keys = unsqueezed(graph.add("Range", {graph.constant_of(std::int64_t{0}), all, one}), {0});
  auto const rows = unsqueezed(graph.add("Range", {graph.add("Sub", {all, here}), all, one}), {1});
  auto seen = given;
  std::string near;
  auto const also = [&](std::string const& more) { near = near.empty() ? more : graph.add("And", {near, more}); };
  if (what.causal) also(graph.add("LessOrEqual", {keys, rows}));
  if (what.window > 0) {
    auto const reach = graph.constant_of(what.window);
    also(graph.add("Greater", {keys, graph.add("Sub", {rows, reach})}));
    if (!what.causal) also(graph.add("Less", {keys, graph.add("Add", {rows, reach})}));
  }
  if (!near.empty()) seen = graph.add("And", {seen, near});
  if (itself) seen = graph.add("Or", {seen, graph.add("Equal", {keys, rows})});
  return cached(key) = seen;
}

TRIREME_BODY std::pair<std::string, std::string> onnx_walk::past_of(char const* which, std::int64_t heads,
                                                                    std::int64_t head_width) {
  std::string const batch = "batch_size";
  auto const before = text("past_key_values.", attentions_, ".", which),
             all = text("present.", attentions_, ".", which);
  graph.inputs.push_back(
      {before, formats::onnx::element::f32, {batch, heads, std::string("past_sequence_length"), head_width}});
  presents_.push_back(
      {all, formats::onnx::element::f32, {batch, heads, std::string("total_sequence_length"), head_width}});
  return {before, all};
}

TRIREME_BODY std::string onnx_walk::attended(std::string const& query, std::string key, std::string value,
                                             attend const& how, std::int64_t key_width, std::int64_t value_width) {
  auto const heads = how.heads, keys = how.key_heads > 0 ? how.key_heads : heads;
  bool const past = past_ && how.causal, masked = reads_tokens || how.causal || how.window > 0;
  std::pair<std::string, std::string> of_keys, of_values;
  if (past) {
    of_keys = past_of("key", keys, key_width);
    of_values = past_of("value", keys, value_width);
    ++attentions_;
  }
  std::string mixed;
  if (dialect_ == onnx_dialect::native) {
    std::vector<std::string> from{query, key, value, masked ? seen(how, true) : ""};
    mixed = text("/", graph.nodes.size(), "/Attention");
    std::vector<std::string> to{mixed};
    if (past) {
      from.insert(from.end(), {of_keys.first, of_values.first});
      to.insert(to.end(), {of_keys.second, of_values.second});
    }
    while (from.back().empty()) from.pop_back();
    graph.nodes.push_back({"Attention", std::move(from), std::move(to)});
  } else {
    if (past) {
      graph.add_named(of_keys.second, "Concat", {of_keys.first, key}, {{"axis", std::int64_t{2}}});
      graph.add_named(of_values.second, "Concat", {of_values.first, value}, {{"axis", std::int64_t{2}}});
      key = of_keys.second;
      value = of_values.second;
    }
    if (keys != heads) {
      auto const each = heads / keys;
      auto const repeated = [&](std::string const& of, std::int64_t of_width) {
        auto const times = graph.constant_of(std::vector<std::int64_t>{1, 1, each, 1, 1});
        return reshaped(graph.add("Expand", {unsqueezed(of, {2}), times}), {0, heads, -1, of_width});
      };
      key = repeated(key, key_width);
      value = repeated(value, value_width);
    }
    auto const scaled = times(query, 1 / std::sqrt(static_cast<double>(key_width)));
    auto scores = graph.add("MatMul", {scaled, transposed(key, {0, 1, 3, 2})});
    if (masked) {
      auto const lowest = graph.constant_of(std::numeric_limits<float>::lowest());
      scores = graph.add("Where", {seen(how), scores, lowest});
    }
    mixed = graph.add("MatMul", {graph.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}}), value});
  }
  width = heads * value_width;
  image = {};
  return reshaped(transposed(mixed, {0, 2, 1, 3}), {0, 0, width});
}

TRIREME_BODY std::string onnx_walk::attended_by_groups(std::string const& query, std::string const& key,
                                                       std::string const& value, attend const& how,
                                                       std::int64_t head_width) {
  auto const keys = how.key_heads > 0 ? how.key_heads : how.heads, unit = std::int64_t{how.rotary > 0 ? 16 : 8};
  if (head_width % unit != 0) {
    throw config_error(text("trireme::nn::attend ", name, ": onnxruntime's GroupQueryAttention takes heads whose width",
                            " is a multiple of ", unit, how.rotary > 0 ? " with rotary positions" : "",
                            ", and these are ", head_width, " wide; use the dialect native or portable"));
  }
  auto const i32 = static_cast<std::int64_t>(formats::onnx::element::i32);
  if (cached("total of groups").empty())
    cached("total of groups") = graph.add("Cast", {length_of(mask())}, {{"to", i32}});
  if (cached("last of groups").empty()) {  // padding is hidden by the bias, so that all samples are as long
    auto const batch = graph.add("Shape", {tokens()}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
    auto const last = graph.add("Sub", {length_of(mask()), graph.constant_of(std::int64_t{1})});
    cached("last of groups") = graph.add("Cast", {graph.add("Expand", {last, batch})}, {{"to", i32}});
  }
  auto const bias_key = text("bias ", how.window);
  if (cached(bias_key).empty()) {
    auto const lowest = graph.constant_of(std::numeric_limits<float>::lowest());
    cached(bias_key) = graph.add("Where", {seen(how, true), graph.constant_of(0.0F), lowest});
  }
  std::vector<std::string> from{
      query, key, value, "", "", cached("last of groups"), cached("total of groups"), "", "", "", cached(bias_key)};
  auto const y = text("/", graph.nodes.size(), "/GroupQueryAttention");
  std::vector<std::string> to{y, y + ".key", y + ".value"};
  if (past_) {
    std::tie(from[3], to[1]) = past_of("key", keys, head_width);
    std::tie(from[4], to[2]) = past_of("value", keys, head_width);
    ++attentions_;
  }
  formats::onnx::attributes attributes{
      {"num_heads", how.heads}, {"kv_num_heads", keys}, {"do_rotary", std::int64_t{how.rotary > 0 ? 1 : 0}}};
  if (how.rotary > 0) std::tie(from[7], from[8]) = rotation_tables({head_width, how.rotary, how.scaling});
  if (how.window > 0) attributes.emplace_back("local_window_size", how.window);
  add_own("GroupQueryAttention", std::move(from), std::move(to), std::move(attributes));
  width = how.heads * head_width;
  image = {};
  return y;
}

TRIREME_BODY void onnx_walk::add_own(std::string operation, std::vector<std::string> from,
                                     std::vector<std::string> results, formats::onnx::attributes how) {
  graph.nodes.push_back({std::move(operation), std::move(from), std::move(results), std::move(how), "com.microsoft"});
}

TRIREME_BODY void onnx_walk::finish(std::string const& result, formats::onnx::value_info output) {
  graph.add_named(output.name, "Identity", {result});
  graph.outputs.push_back(std::move(output));
  graph.outputs.insert(graph.outputs.end(), presents_.begin(), presents_.end());
}

TRIREME_BODY std::string onnx_walk::normalised(std::string const& x, std::string const& gain, double epsilon) {
  if (dialect_ == onnx_dialect::native) {
    return graph.add("RMSNormalization", {x, gain},
                     {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(epsilon)}});
  }
  auto const squares = graph.add("Mul", {x, x});
  auto const mean = graph.add("ReduceMean", {squares, graph.constant_of(std::vector<std::int64_t>{-1})});
  auto const root = graph.add("Sqrt", {plus(mean, epsilon)});
  return graph.add("Mul", {graph.add("Div", {x, root}), gain});
}

TRIREME_BODY std::optional<std::string> onnx_walk::normalised_sum(std::string const& x, char const* operation,
                                                                  std::vector<std::string> const& parameters,
                                                                  double epsilon) {
  if (dialect_ != onnx_dialect::ort || !reads_tokens || x != sum_ || graph.nodes.empty()) return std::nullopt;
  auto const last = graph.nodes.back();
  if (last.operation != "Add" || last.outputs != std::vector{x}) return std::nullopt;
  graph.nodes.pop_back();
  auto from = last.inputs;
  from.insert(from.end(), parameters.begin(), parameters.end());
  auto y = text("/", graph.nodes.size(), "/", operation);
  add_own(operation, std::move(from), {y, "", "", x}, {{"epsilon", static_cast<float>(epsilon)}});
  return y;
}

TRIREME_BODY std::string onnx_walk::rows_of(std::string const& x) {
  if (!planes) return x;
  planes = false;
  bool const one_pixel = image.height * image.width == 1;
  return reshaped(one_pixel ? x : transposed(x, {0, 2, 3, 1}), {0, width});
}
TRIREME_BODY std::string onnx_walk::planes_of(std::string const& x) {
  if (planes) return x;
  if (image.size() != width || width == 0) {
    throw config_error(text("trireme::nn::onnx_nodes", name.empty() ? "" : " ", name,
                            ": no layer before it says what images its rows of ", how_many(width, "number"),
                            agreeing(width, " is", " are"),
                            "; put nn::image{height, width, channels} of that size before it"));
  }
  planes = true;
  return transposed(reshaped(x, {0, image.height, image.width, image.channels}), {0, 3, 1, 2});
}

TRIREME_BODY std::string onnx_walk::combined(char const* operation, std::vector<std::string> const& values) {
  auto out = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) out = graph.add(operation, {out, values[i]});
  return out;
}
namespace detail {

TRIREME_BODY std::vector<std::string> onnx_alike(onnx_walk& at, std::vector<onnx_value> const& values, bool planes) {
  for (auto const& each : values) planes = planes && each.rows.planes;
  std::vector<std::string> out;
  for (auto const& each : values) {
    static_cast<onnx_rows&>(at) = each.rows;
    out.push_back(planes ? each.name : at.rows_of(each.name));
  }
  return out;
}

}  // namespace detail

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, linear const& what, std::string const& x) {
  auto const rows = at.rows_of(x);
  auto y = at.product(rows, at.full("weight"), at.width, what.outputs);
  at.width = what.outputs;
  at.image = {};
  if (what.bias) y = at.graph.add("Add", {y, at.parameter("bias", {at.width})});
  return y;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, activation const& what, std::string const& x) {
  auto& graph = at.graph;
  bool const known = graph.opset >= 20;  // which has Gelu
  if (known && what.kind == ops::activation::gelu)
    return graph.add("Gelu", {x}, {{"approximate", std::string("tanh")}});
  if (known && what.kind == ops::activation::gelu_erf) return graph.add("Gelu", {x});
  switch (what.kind) {
    case ops::activation::none:
      return x;
    case ops::activation::relu:
      return graph.add("Relu", {x});
    case ops::activation::tanh:
      return graph.add("Tanh", {x});
    case ops::activation::silu:
      return graph.add("Mul", {x, graph.add("Sigmoid", {x})});
    case ops::activation::gelu: {
      auto const cube = graph.add("Mul", {x, graph.add("Mul", {x, x})});
      auto const inner = at.times(graph.add("Add", {x, at.times(cube, 0.044715)}), std::sqrt(2 / std::acos(-1.0)));
      return graph.add("Mul", {at.times(x, 0.5), at.plus(graph.add("Tanh", {inner}), 1)});
    }
    case ops::activation::gelu_erf: {
      auto const error = graph.add("Erf", {at.times(x, std::sqrt(0.5))});
      return graph.add("Mul", {at.times(x, 0.5), at.plus(error, 1)});
    }
  }
  throw config_error(text("trireme::nn::activation ", at.name, ": this activation has no nodes of ONNX"));
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, layer_norm const& what, std::string const& x) {
  auto const rows = at.rows_of(x);
  return at.graph.add("LayerNormalization",
                      {rows, at.parameter("weight", {at.width}), at.parameter("bias", {at.width})},
                      {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(what.epsilon)}});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, rms_norm const& what, std::string const& x) {
  auto const rows = at.rows_of(x), gain = at.parameter("weight", {at.width});
  if (auto const y = at.normalised_sum(rows, "SkipSimplifiedLayerNormalization", {gain}, what.epsilon)) return *y;
  return at.normalised(rows, gain, what.epsilon);
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, attend const& what, std::string const& in) {
  if (what.tokens.separator >= 0) {
    throw config_error(text("trireme::nn::attend ", at.name,
                            ": a mask between documents has no nodes of ONNX; leave .tokens.separator out"));
  }
  auto const x = at.rows_of(in);
  auto const heads = what.heads, keys = what.key_heads > 0 ? what.key_heads : heads, each = heads / keys;
  auto const width = at.width / (heads + 2 * keys);
  std::vector<std::string> parts;
  if (keys == heads) {
    parts = at.split(x, -1, {heads * width, heads * width, heads * width});
  } else {  // for each key its queries, the key, the value
    parts = at.split(at.reshaped(x, {0, 0, keys, each + 2, width}), 3, {each, 1, 1});
  }
  std::string query = at.reshaped(parts[0], {0, 0, heads, width}), key = at.reshaped(parts[1], {0, 0, keys, width}),
              value = at.reshaped(parts[2], {0, 0, keys, width});
  if (what.norm > 0) {
    query = at.normalised(query, at.parameter("q_norm.weight", {width}), what.norm);
    key = at.normalised(key, at.parameter("k_norm.weight", {width}), what.norm);
  }
  if (at.dialect() == onnx_dialect::ort && what.causal) {
    auto const rows = [&](std::string const& of, std::int64_t of_heads) {
      return at.reshaped(of, {0, 0, of_heads * width});
    };
    return at.attended_by_groups(rows(query, heads), rows(key, keys), rows(value, keys), what, width);
  }
  query = at.transposed(query, {0, 2, 1, 3});
  key = at.transposed(key, {0, 2, 1, 3});
  value = at.transposed(value, {0, 2, 1, 3});
  if (what.rotary > 0) {
    rotary_angles const angles{width, what.rotary, what.scaling};
    query = at.turned(query, angles);
    key = at.turned(key, angles);
  }
  return at.attended(query, key, value, what, width, width);
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, embedding const& what, std::string const&) {
  auto& graph = at.graph;
  at.reads_tokens = true;
  at.width = what.outputs;
  auto const looked_up = [&](std::string const& table, std::int64_t rows, std::string const& which) {
    return graph.add("Gather", {at.parameter(table, {rows, what.outputs}), which});
  };
  auto y = looked_up(what.table, what.words, at.tokens());
  if (what.positions > 0) y = graph.add("Add", {y, looked_up(what.position_table, what.positions, at.positions())});
  if (what.segments > 0) {
    auto const kinds = at.integers("token_type_ids", "sequence_length");
    y = graph.add("Add", {y, looked_up(what.segment_table, what.segments, kinds)});
  }
  return y;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, unembedding const& what, std::string const& x) {
  auto y = at.product(x, what.tied.empty() ? at.full("weight") : what.tied, at.width, what.words, true);
  at.width = what.words;
  if (what.bias) y = at.graph.add("Add", {y, at.parameter("bias", {at.width})});
  return y;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, loss::cross_entropy const& what, std::string const& x) {
  auto const rows = at.rows_of(x);
  if (!what.of_first) return rows;
  return at.graph.add("Gather", {rows, at.graph.constant_of(std::int64_t{0})}, {{"axis", std::int64_t{1}}});
}
TRIREME_BODY std::string onnx_nodes(onnx_walk& at, loss::squared_error const&, std::string const& x) {
  return at.rows_of(x);
}
TRIREME_BODY std::string onnx_nodes(onnx_walk& at, loss::binary_cross_entropy const&, std::string const& x) {
  return at.rows_of(x);
}

namespace detail {

/// The experts of each row, (rows, chosen), and their weights.
[[nodiscard]] TRIREME_BODY std::pair<std::string, std::string> onnx_routes(onnx_walk& at, experts const& what,
                                                                           std::string const& logits) {
  auto& graph = at.graph;
  using list = std::vector<std::int64_t>;
  auto const last = graph.constant_of(list{-1});
  auto const best = [&](std::string const& of, std::int64_t count) {
    return graph.add_many("TopK", {of, graph.constant_of(list{count})}, 2, {{"axis", std::int64_t{-1}}});
  };
  auto const total = [&](std::string const& of, bool keeps) {
    return graph.add("ReduceSum", {of, last}, {{"keepdims", std::int64_t{keeps ? 1 : 0}}});
  };
  if (!what.scored) {
    auto const found = best(graph.add("Softmax", {logits}, {{"axis", std::int64_t{-1}}}), what.chosen);
    return {found[1], what.chosen == 1 ? found[0] : graph.add("Div", {found[0], total(found[0], true)})};
  }
  auto const& how = what.choice;
  auto const scores = graph.add("Sigmoid", {logits});
  auto biased = graph.add("Add", {scores, at.parameter("router.bias", {what.count})});
  if (how.chosen_groups < how.groups) {  // experts of other groups cannot be chosen
    auto const each = what.count / how.groups;
    auto const grouped = at.reshaped(biased, {-1, how.groups, each});
    auto const sums = total(best(grouped, std::min<std::int64_t>(2, each))[0], false);
    auto const groups = at.unsqueezed(best(sums, how.chosen_groups)[1], {2});
    list numbers;
    for (std::int64_t i = 0; i < how.groups; ++i) numbers.push_back(i);
    auto const is_one = graph.add("Equal", {groups, graph.constant_of(numbers)});  // (rows, chosen groups, groups)
    auto const number = graph.add("Cast", {is_one}, {{"to", static_cast<std::int64_t>(formats::onnx::element::f32)}});
    auto const any = graph.add("ReduceMax", {number, graph.constant_of(list{1})}, {{"keepdims", std::int64_t{0}}});
    auto const may = at.unsqueezed(graph.add("Greater", {any, graph.constant_of(0.0F)}), {2});
    auto const never = graph.constant_of(-std::numeric_limits<float>::infinity());
    biased = at.reshaped(graph.add("Where", {may, grouped, never}), {-1, what.count});
  }
  auto const chosen = best(biased, what.chosen)[1];
  auto const weights = graph.add("GatherElements", {scores, chosen}, {{"axis", std::int64_t{1}}});
  return {chosen, at.times(graph.add("Div", {weights, total(weights, true)}), how.scale)};
}

}  // namespace detail

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, experts const& what, std::string const& x) {
  auto& graph = at.graph;
  using list = std::vector<std::int64_t>;
  auto const rows = at.rows_of(x);
  auto const width = at.width, count = what.count, hidden = what.hidden;
  auto const flat = at.reshaped(rows, {-1, width});
  auto const logits = graph.add("MatMul", {flat, at.parameter("router.weight", {width, count})});
  auto const [chosen, weights] = detail::onnx_routes(at, what, logits);

  // The choices, (rows * chosen), sorted by expert: `order` says which choice comes when.
  auto const choices = at.reshaped(chosen, {-1});
  auto const size = graph.add("Shape", {choices});
  auto const order =
      graph.add_many("TopK", {choices, size}, 2, {{"axis", std::int64_t{0}}, {"largest", std::int64_t{0}}})[1];
  list numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(i);
  auto const is_one = graph.add("Equal", {at.unsqueezed(choices, {1}), graph.constant_of(numbers)});
  auto const one = graph.add("Cast", {is_one}, {{"to", static_cast<std::int64_t>(formats::onnx::element::i64)}});
  auto const counts = graph.add("ReduceSum", {one, graph.constant_of(list{0})}, {{"keepdims", std::int64_t{0}}});
  auto const row = graph.add("Div", {order, graph.constant_of(what.chosen)});
  auto const parts = [&](std::string const& of, std::string const& sizes) {
    return graph.add_many("Split", {of, sizes}, static_cast<std::size_t>(count), {{"axis", std::int64_t{0}}});
  };
  auto const own_rows = parts(graph.add("Gather", {flat, row}), counts);
  auto const ones = graph.constant_of(list(static_cast<std::size_t>(count), 1));
  auto const of_each = [&](char const* which, shape const& extents) {
    std::vector<std::string> out;
    auto const flatter = extents.rank() == 2 ? list{extents[1]} : list{extents[1], extents[2]};
    for (auto const& each : parts(at.parameter(text("experts.", which), extents), ones))
      out.push_back(at.reshaped(each, flatter));
    return out;
  };
  std::vector<std::string> gate, up, up_bias, down, down_bias;
  if (what.gated) {
    gate = of_each("gate_proj.weight", {count, width, hidden});
    up = of_each("up_proj.weight", {count, width, hidden});
    down = of_each("down_proj.weight", {count, hidden, width});
  } else {
    up = of_each("c_fc.weight", {count, width, hidden});
    up_bias = of_each("c_fc.bias", {count, hidden});
    down = of_each("c_proj.weight", {count, hidden, width});
    down_bias = of_each("c_proj.bias", {count, width});
  }
  std::vector<std::string> results;
  for (std::size_t e = 0; e < own_rows.size(); ++e) {
    auto inner = graph.add("MatMul", {own_rows[e], up[e]});
    if (what.gated) {
      auto const open = graph.add("MatMul", {own_rows[e], gate[e]});
      inner = graph.add("Mul", {onnx_nodes(at, activation{ops::activation::silu}, open), inner});
    } else {
      inner = onnx_nodes(at, activation{ops::activation::gelu}, graph.add("Add", {inner, up_bias[e]}));
    }
    auto const y = graph.add("MatMul", {inner, down[e]});
    results.push_back(what.gated ? y : graph.add("Add", {y, down_bias[e]}));
  }
  auto const sorted = graph.add("Concat", results, {{"axis", std::int64_t{0}}});  // (rows * chosen, width)

  // Back in the order of rows: the inverse of a permutation is its order.
  auto const back =
      graph.add_many("TopK", {order, size}, 2, {{"axis", std::int64_t{0}}, {"largest", std::int64_t{0}}})[1];
  auto const of_rows = at.reshaped(graph.add("Gather", {sorted, back}), {-1, what.chosen, width});
  auto const weighted = graph.add("Mul", {of_rows, at.unsqueezed(weights, {2})});
  auto const y = graph.add("ReduceSum", {weighted, graph.constant_of(list{1})}, {{"keepdims", std::int64_t{0}}});
  at.image = {};
  return graph.add("Reshape", {y, graph.add("Shape", {rows})});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, latent_attention const& what, std::string const& x) {
  auto& graph = at.graph;
  auto const rows = at.rows_of(x);
  auto const from = at.width, query_width = what.plain + what.rotary_width;
  auto const product = [&](std::string const& of, std::int64_t width, char const* end, std::int64_t outputs) {
    return at.product(of, at.full(end), width, outputs);
  };
  auto const norm = [&](std::string const& of, char const* end, std::int64_t width) {
    return at.normalised(of, at.parameter(end, {width}), what.epsilon);
  };
  auto const by_heads = [&](std::string const& of, std::int64_t width) {
    return at.transposed(at.reshaped(of, {0, 0, what.heads, width}), {0, 2, 1, 3});
  };
  rotary_angles const angles{what.rotary_width, what.rotary, what.scaling};
  auto const turned = [&](std::string const& of) { return at.turned(of, angles, true); };
  auto const queries = what.heads * query_width;
  auto const query = what.query_rank == 0 ? product(rows, from, "q_proj.weight", queries)
                                          : product(norm(product(rows, from, "q_a_proj.weight", what.query_rank),
                                                         "q_a_layernorm.weight", what.query_rank),
                                                    what.query_rank, "q_b_proj.weight", queries);
  auto const query_parts = at.split(by_heads(query, query_width), -1, {what.plain, what.rotary_width});
  auto const down = at.split(product(rows, from, "kv_a_proj_with_mqa.weight", what.rank + what.rotary_width), -1,
                             {what.rank, what.rotary_width});
  auto const latent = norm(down[0], "kv_a_layernorm.weight", what.rank);
  auto const pairs = by_heads(product(latent, what.rank, "kv_b_proj.weight", what.heads * (what.plain + what.values)),
                              what.plain + what.values);
  auto const pair_parts = at.split(pairs, -1, {what.plain, what.values});
  auto const shared = graph.add("Expand", {turned(at.unsqueezed(down[1], {1})),
                                           graph.constant_of(std::vector<std::int64_t>{1, what.heads, 1, 1})});
  auto const joined = [&](std::string const& one, std::string const& other) {
    return graph.add("Concat", {one, other}, {{"axis", std::int64_t{-1}}});
  };
  return at.attended(joined(query_parts[0], turned(query_parts[1])), joined(pair_parts[0], shared), pair_parts[1],
                     attend{.heads = what.heads}, query_width, what.values);
}

}  // namespace trireme::nn
