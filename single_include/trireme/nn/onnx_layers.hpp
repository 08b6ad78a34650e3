// Trireme 0.1.0: trireme/nn/onnx_layers.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 058f83671bae2c7e80d0bde50b5199d7978b3a0a8e367fc462ee24cdb9a3b351
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/onnx.hpp"
#include "trireme/nn/sum.hpp"

// ---- trireme/nn/onnx_layers.hpp
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The nodes of ONNX that each layer becomes: one overload of onnx_nodes() a layer. Programs that train do not include
/// this header.
namespace trireme::nn {

/// The graph of a model while its layers add their nodes, and where the walk is. Rows are (batch, positions, width).
class onnx_walk {
 public:
  /// @param past  whether attention takes the keys and values of earlier positions, and gives all of them back.
  explicit onnx_walk(bool past) : past_(past) {}

  formats::onnx::graph graph;
  std::string name;           ///< of the layer: what its parameters' names begin with
  std::int64_t width = 0;     ///< numbers a row
  bool reads_tokens = false;  ///< the model begins with an embedding

  /// The value of a parameter: `name` + "." + `end`. A tied one is in the graph once.
  std::string parameter(std::string_view end, shape const& extents) {
    return parameter_named(name.empty() ? std::string(end) : text(name, ".", end), extents);
  }
  std::string parameter_named(std::string full, shape const& extents);
  /// An input (batch_size, `length`) of integers, which the graph then has.
  std::string integers(std::string const& input, std::string const& length);
  std::string tokens() { return integers("input_ids", "sequence_length"); }
  std::string mask() { return integers("attention_mask", past_ ? "total_sequence_length" : "sequence_length"); }
  /// The positions of the tokens in their samples: an input with a past, else 0, 1, 2, ...; (batch or 1, positions).
  std::string positions();
  /// Cosines and sines of rotary positions: two values (batch or 1, 1, positions, width / 2).
  std::pair<std::string, std::string> rotations(std::int64_t head_width, double base,
                                                ops::rotary_scaling const& scaling);
  /// Which keys each position sees: booleans (batch, 1, positions, all positions).
  std::string seen(attend const& what);
  /// Keys or values, (batch, heads, positions, head_width), behind those of the past, which become an input; together
  /// they become an output. Without a past they are what they were.
  std::string behind_past(std::string const& here, char const* which, std::int64_t heads, std::int64_t head_width);
  void next_attention() { ++attentions_; }
  void finish(std::string const& result, formats::onnx::value_info output);
  /// How many positions a model has; tables of rotary positions are so long.
  std::int64_t context = 0;

  // Nodes that several layers need.
  std::string times(std::string const& a, double b) {
    return graph.add("Mul", {a, graph.constant_of(static_cast<float>(b))});
  }
  std::string plus(std::string const& a, double b) {
    return graph.add("Add", {a, graph.constant_of(static_cast<float>(b))});
  }
  std::string reshaped(std::string const& x, std::vector<std::int64_t> const& extents) {
    return graph.add("Reshape", {x, graph.constant_of(extents)});
  }
  std::string transposed(std::string const& x, std::vector<std::int64_t> order) {
    return graph.add("Transpose", {x}, {{"perm", std::move(order)}});
  }
  std::vector<std::string> split(std::string const& x, std::int64_t axis, std::vector<std::int64_t> const& sizes) {
    return graph.add_many("Split", {x, graph.constant_of(sizes)}, sizes.size(), {{"axis", axis}});
  }
  std::string unsqueezed(std::string const& x, std::vector<std::int64_t> const& axes) {
    return graph.add("Unsqueeze", {x, graph.constant_of(axes)});
  }
  /// y = x / sqrt(mean(x^2) + epsilon) * gain, along the last axis.
  std::string normalised(std::string const& x, std::string const& gain, double epsilon);

 private:
  std::string& cached(std::string const& key);
  std::string length_of(std::string const& input);  // the number of positions, without dimensions

  bool past_;
  std::int64_t attentions_ = 0;
  std::vector<formats::onnx::value_info> presents_;
  std::vector<std::pair<std::string, std::string>> cached_;  // what several layers use
};

// ---- layers: the name of the value that x becomes
std::string onnx_nodes(onnx_walk& at, linear const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, activation const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, layer_norm const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, rms_norm const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, attend const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, embedding const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, unembedding const& what, std::string const& x);
/// The loss is left out: what it reads is the model's output, with `of_first` that of each sample's first row.
std::string onnx_nodes(onnx_walk& at, loss::cross_entropy const& what, std::string const& x);
/// Errors   config_error: experts have no nodes.
std::string onnx_nodes(onnx_walk& at, experts const& what, std::string const& x);
/// Dropout is of training alone.
inline std::string onnx_nodes(onnx_walk&, dropout const&, std::string const& x) { return x; }

namespace detail {

template <class L>
inline constexpr bool has_onnx_nodes = requires(onnx_walk& at, L const& what, std::string const& x) {
  { onnx_nodes(at, what, x) } -> std::same_as<std::string>;
};

/// The nodes of any layer.
template <class L>
std::string onnx_nodes_of(onnx_walk& at, L const& what, std::string const& x);

}  // namespace detail

template <class... L>
std::string onnx_nodes(onnx_walk& at, chain_of<L...> const& what, std::string x) {
  what.layers.each([&](auto const& each) { x = detail::onnx_nodes_of(at, each, x); });
  return x;
}
template <class L>
std::string onnx_nodes(onnx_walk& at, named_of<L> const& what, std::string const& x) {
  auto const outer = at.name;
  if (!what.name.empty()) at.name += (outer.empty() ? "" : ".") + what.name;
  auto const y = detail::onnx_nodes_of(at, what.layer, x);
  at.name = outer;
  return y;
}
template <class L>
std::string onnx_nodes(onnx_walk& at, repeat_of<L> const& what, std::string x) {
  for (std::int64_t i = 0; i < what.count; ++i) x = onnx_nodes(at, named_of<L>{text(i), what.layer}, x);
  return x;
}

namespace detail {

/// What each branch makes of x. They may differ in width: all of them are told.
template <class... B>
std::vector<std::string> onnx_branches(onnx_walk& at, pack<B...> const& branches, std::string const& x,
                                       std::int64_t& widths) {
  std::vector<std::string> out;
  auto const width = at.width;
  widths = 0;
  branches.each([&](auto const& each) {
    at.width = width;
    out.push_back(onnx_nodes_of(at, each, x));
    widths += at.width;
  });
  return out;
}

}  // namespace detail

template <class Kind, class... B>
requires(std::is_same_v<Kind, residual_kind> || std::is_same_v<Kind, product_kind> || std::is_same_v<Kind, sum_kind> ||
         std::is_same_v<Kind, concat_kind> || std::is_same_v<Kind, checkpointed_kind>) std::string
    onnx_nodes(onnx_walk& at, composite<Kind, B...> const& what, std::string const& x) {
  std::int64_t widths = 0;
  auto results = detail::onnx_branches(at, what.branches, x, widths);
  if constexpr (std::is_same_v<Kind, checkpointed_kind>) {
    return results.front();
  } else if constexpr (std::is_same_v<Kind, concat_kind>) {
    at.width = widths;
    return at.graph.add("Concat", results, {{"axis", std::int64_t{-1}}});
  } else {
    if constexpr (std::is_same_v<Kind, residual_kind>) results.push_back(x);
    return at.graph.add(std::is_same_v<Kind, product_kind> ? "Mul" : "Add", results);
  }
}

namespace detail {

template <class L>
std::string onnx_nodes_of(onnx_walk& at, L const& what, std::string const& x) {
  static_assert(has_onnx_nodes<L>,
                "trireme::nn::onnx_nodes: this layer has no function that gives its nodes of ONNX; write "
                "std::string onnx_nodes(nn::onnx_walk&, LAYER const&, std::string const& x) in its namespace");
  if constexpr (has_onnx_nodes<L>) return onnx_nodes(at, what, x);
  return {};
}

template <class Unit>
void onnx_unit(onnx_walk& at, Unit const& unit, std::string& x) {
  at.name = unit.name();
  x = onnx_nodes_of(at, unit.layers(), x);
}
template <class Unit>
void onnx_unit(onnx_walk& at, checkpointed_unit<Unit> const& unit, std::string& x) {
  onnx_unit(at, unit.unit, x);
}

}  // namespace detail

/// All units of a model, one after the other.
template <class Model>
std::string onnx_nodes_of_units(onnx_walk& at, Model const& model) {
  std::string x;
  model.units([&](auto const& unit) { detail::onnx_unit(at, unit, x); });
  return x;
}

}  // namespace trireme::nn

#ifndef TRIREME_NN_ONNX_LAYERS_IPP_INCLUDED
#define TRIREME_NN_ONNX_LAYERS_IPP_INCLUDED

// ---- trireme/nn/onnx_layers.ipp
#include <algorithm>
#include <limits>

namespace trireme::nn {

TRIREME_BODY std::string onnx_walk::parameter_named(std::string full, shape const& extents) {
  for (auto const& each : graph.weights) {
    if (each.name == full) return full;
  }
  graph.weights.push_back({full, extents});
  return full;
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

TRIREME_BODY std::pair<std::string, std::string> onnx_walk::rotations(std::int64_t head_width, double base,
                                                                      ops::rotary_scaling const& scaling) {
  auto const key = text("rotations ", head_width, " ", base, " ", scaling.factor, " ", scaling.original, " ",
                        scaling.low, " ", scaling.high);
  if (auto const known = cached(key + " cos"); !known.empty()) return {known, cached(key + " sin")};
  std::vector<float> table(static_cast<std::size_t>(context * head_width));  // of each position cosines, then sines
  ops::detail::rotation_table(table.data(), context, 0, head_width, base, scaling);
  auto const all = graph.constant_of(std::move(table), {context, head_width});
  auto const here = unsqueezed(graph.add("Gather", {all, positions()}), {1});
  auto const halves = split(here, -1, {head_width / 2, head_width / 2});
  cached(key + " cos") = halves[0];
  cached(key + " sin") = halves[1];
  return {halves[0], halves[1]};
}

TRIREME_BODY std::string onnx_walk::seen(attend const& what) {
  auto const key = text("seen ", what.causal, " ", what.window);
  if (auto const known = cached(key); !known.empty()) return known;
  auto const given = unsqueezed(
      graph.add("Cast", {mask()}, {{"to", static_cast<std::int64_t>(formats::onnx::element::boolean)}}), {1, 2});
  if (!what.causal && what.window == 0) return cached(key) = given;
  auto const here = length_of(tokens()), all = length_of(mask());
  auto const one = graph.constant_of(std::int64_t{1});
  auto const keys = unsqueezed(graph.add("Range", {graph.constant_of(std::int64_t{0}), all, one}), {0});
  auto const rows = unsqueezed(graph.add("Range", {graph.add("Sub", {all, here}), all, one}), {1});
  std::string seen;
  auto const also = [&](std::string const& more) { seen = seen.empty() ? more : graph.add("And", {seen, more}); };
  if (what.causal) also(graph.add("LessOrEqual", {keys, rows}));
  if (what.window > 0) {
    auto const reach = graph.constant_of(what.window);
    also(graph.add("Greater", {keys, graph.add("Sub", {rows, reach})}));
    if (!what.causal) also(graph.add("Less", {keys, graph.add("Add", {rows, reach})}));
  }
  return cached(key) = graph.add("And", {given, seen});
}

TRIREME_BODY std::string onnx_walk::behind_past(std::string const& here, char const* which, std::int64_t heads,
                                                std::int64_t head_width) {
  if (!past_) return here;
  std::string const batch = "batch_size";
  auto const before = text("past_key_values.", attentions_, ".", which),
             all = text("present.", attentions_, ".", which);
  graph.inputs.push_back(
      {before, formats::onnx::element::f32, {batch, heads, std::string("past_sequence_length"), head_width}});
  presents_.push_back(
      {all, formats::onnx::element::f32, {batch, heads, std::string("total_sequence_length"), head_width}});
  graph.add_named(all, "Concat", {before, here}, {{"axis", std::int64_t{2}}});
  return all;
}

TRIREME_BODY void onnx_walk::finish(std::string const& result, formats::onnx::value_info output) {
  graph.add_named(output.name, "Identity", {result});
  graph.outputs.push_back(std::move(output));
  graph.outputs.insert(graph.outputs.end(), presents_.begin(), presents_.end());
}

TRIREME_BODY std::string onnx_walk::normalised(std::string const& x, std::string const& gain, double epsilon) {
  auto const squares = graph.add("Mul", {x, x});
  auto const mean = graph.add("ReduceMean", {squares, graph.constant_of(std::vector<std::int64_t>{-1})});
  auto const root = graph.add("Sqrt", {plus(mean, epsilon)});
  return graph.add("Mul", {graph.add("Div", {x, root}), gain});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, linear const& what, std::string const& x) {
  auto y = at.graph.add("MatMul", {x, at.parameter("weight", {at.width, what.outputs})});
  at.width = what.outputs;
  if (what.bias) y = at.graph.add("Add", {y, at.parameter("bias", {at.width})});
  return y;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, activation const& what, std::string const& x) {
  auto& graph = at.graph;
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
  return at.graph.add("LayerNormalization", {x, at.parameter("weight", {at.width}), at.parameter("bias", {at.width})},
                      {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(what.epsilon)}});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, rms_norm const& what, std::string const& x) {
  return at.normalised(x, at.parameter("weight", {at.width}), what.epsilon);
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, attend const& what, std::string const& x) {
  if (what.tokens.separator >= 0) {
    throw config_error(text("trireme::nn::attend ", at.name,
                            ": a mask between documents has no nodes of ONNX; leave .tokens.separator out"));
  }
  auto& graph = at.graph;
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
  query = at.transposed(query, {0, 2, 1, 3});
  key = at.transposed(key, {0, 2, 1, 3});
  value = at.transposed(value, {0, 2, 1, 3});
  if (what.rotary > 0) {
    auto const [cosine, sine] = at.rotations(width, what.rotary, what.scaling);
    auto const rotated = [&, &cosine = cosine, &sine = sine](std::string const& of) {
      auto const half = at.split(of, -1, {width / 2, width / 2});
      auto const first = graph.add("Sub", {graph.add("Mul", {half[0], cosine}), graph.add("Mul", {half[1], sine})});
      auto const second = graph.add("Add", {graph.add("Mul", {half[1], cosine}), graph.add("Mul", {half[0], sine})});
      return graph.add("Concat", {first, second}, {{"axis", std::int64_t{-1}}});
    };
    query = rotated(query);
    key = rotated(key);
  }
  if (what.causal) {
    key = at.behind_past(key, "key", keys, width);
    value = at.behind_past(value, "value", keys, width);
    at.next_attention();
  }
  if (keys != heads) {
    auto const repeated = [&](std::string const& of) {
      auto const all =
          graph.add("Expand", {at.unsqueezed(of, {2}), graph.constant_of(std::vector<std::int64_t>{1, 1, each, 1, 1})});
      return at.reshaped(all, {0, heads, -1, width});
    };
    key = repeated(key);
    value = repeated(value);
  }
  auto scores = graph.add(
      "MatMul", {at.times(query, 1 / std::sqrt(static_cast<double>(width))), at.transposed(key, {0, 1, 3, 2})});
  if (at.reads_tokens || what.causal || what.window > 0) {
    auto const lowest = graph.constant_of(std::numeric_limits<float>::lowest());
    scores = graph.add("Where", {at.seen(what), scores, lowest});
  }
  auto const mixed = graph.add("MatMul", {graph.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}}), value});
  at.width = heads * width;
  return at.reshaped(at.transposed(mixed, {0, 2, 1, 3}), {0, 0, at.width});
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
  shape const extents{what.words, at.width};
  auto const table = what.tied.empty() ? at.parameter("weight", extents) : at.parameter_named(what.tied, extents);
  auto y = at.graph.add("MatMul", {x, at.transposed(table, {1, 0})});
  at.width = what.words;
  if (what.bias) y = at.graph.add("Add", {y, at.parameter("bias", {at.width})});
  return y;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, loss::cross_entropy const& what, std::string const& x) {
  if (!what.of_first) return x;
  return at.graph.add("Gather", {x, at.graph.constant_of(std::int64_t{0})}, {{"axis", std::int64_t{1}}});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, experts const&, std::string const&) {
  throw config_error(
      text("trireme::nn::experts ", at.name, ": experts have no nodes of ONNX; export a model without experts"));
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_ONNX_LAYERS_IPP_INCLUDED
