#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/onnx.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/nn/sum.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/nn/onnx_layers.ipp"
#endif
