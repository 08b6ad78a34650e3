#pragma once

#include <algorithm>
#include <limits>

#include "trireme/nn/onnx_layers.hpp"
#include "trireme/ops/host/heads.hpp"

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
