#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
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
#include "trireme/nn/latent_attention.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/nn/multi_token.hpp"
#include "trireme/nn/onnx_dialect.hpp"
#include "trireme/nn/sum.hpp"

/// The nodes of ONNX that each layer becomes: one overload of onnx_nodes() a layer. Those of images are in
/// nn/onnx_images.hpp. Programs that train do not include these headers.
namespace trireme::nn {

/// What rows of a graph are: (batch, positions, width) of words and of squares of images, (batch, width) of others.
/// Images lie as ONNX has them, (batch, channels, height, width), until a layer reads them as rows.
struct onnx_rows {
  std::int64_t width = 0;  ///< numbers a row
  nn::image image{};       ///< that a row is; none if its size differs from `width`
  bool planes = false;     ///< whether the value is (batch, channels, height, width)
};

/// Rotary positions of heads.
struct rotary_angles {
  std::int64_t width = 0;  ///< numbers that are turned
  double base = 0;
  ops::rotary_scaling scaling{};
};

/// The graph of a model while its layers add their nodes, and where the walk is.
class onnx_walk : public onnx_rows {
 public:
  /// @param past  whether attention takes the keys and values of earlier positions, and gives all of them back.
  /// @param four_bits  whether products' weights are blocks of integers of 4 bits, by onnxruntime's MatMulNBits.
  explicit onnx_walk(bool past, onnx_dialect dialect = onnx_dialect::portable, bool four_bits = false);

  formats::onnx::graph graph;
  std::string name;           ///< of the layer: what its parameters' names begin with
  bool reads_tokens = false;  ///< the model begins with an embedding

  /// The value of a parameter: `name` + "." + `end`. A tied one is in the graph once.
  std::string parameter(std::string_view end, shape const& extents) { return parameter_named(full(end), extents); }
  [[nodiscard]] std::string full(std::string_view end) const {
    return name.empty() ? std::string(end) : text(name, ".", end);
  }
  std::string parameter_named(std::string full, shape const& extents);
  /// x (..., inputs) times a parameter of this full name, (inputs, outputs), or with `rows` (outputs, inputs).
  std::string product(std::string const& x, std::string const& full, std::int64_t inputs, std::int64_t outputs,
                      bool rows = false);
  /// An input (batch_size, `length`) of integers, which the graph then has.
  std::string integers(std::string const& input, std::string const& length);
  std::string tokens() { return integers("input_ids", "sequence_length"); }
  std::string mask() { return integers("attention_mask", past_ ? "total_sequence_length" : "sequence_length"); }
  /// The input `pixel_values`, (batch_size, channels, height, width): the walk then has planes.
  std::string pixels(nn::image const& of);
  /// The positions of the tokens in their samples: an input with a past, else 0, 1, 2, ...; (batch or 1, positions).
  std::string positions();
  /// x (batch, heads, positions, width) turned by rotary positions. Pairs are numbers i and i + width / 2; if they are
  /// 2 i and 2 i + 1 the result has another order, which is the same for queries and keys.
  std::string turned(std::string const& x, rotary_angles const& how, bool side_by_side = false);
  /// Which keys each position sees: booleans (batch, 1, positions, all positions).
  /// @param itself  every position sees itself, padding too; else there is no row for each position if all see the
  /// same.
  std::string seen(attend const& what, bool itself = false);
  /// Attention of queries, keys and values (batch, heads, positions, width), as rows, with keys and values of earlier
  /// positions as inputs and all of them as outputs if the walk has a past and `how` is causal.
  std::string attended(std::string const& query, std::string key, std::string value, attend const& how,
                       std::int64_t key_width, std::int64_t value_width);
  /// The same by GroupQueryAttention, of rows (batch, positions, heads * width), which it turns if `how` says so.
  std::string attended_by_groups(std::string const& query, std::string const& key, std::string const& value,
                                 attend const& how, std::int64_t head_width);
  /// A sum of branches, with which a norm behind it may become one node.
  void note_sum(std::string const& sum) { sum_ = sum; }
  [[nodiscard]] onnx_dialect dialect() const noexcept { return dialect_; }
  /// x as rows: channels innermost, and no longer planes. Layers begin with it unless they take each number by itself.
  std::string rows_of(std::string const& x);
  /// x as (batch, channels, height, width).
  std::string planes_of(std::string const& x);
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
  /// All values, combined two by two.
  std::string combined(char const* operation, std::vector<std::string> const& values);
  /// y = x / sqrt(mean(x^2) + epsilon) * gain, along the last axis.
  std::string normalised(std::string const& x, std::string const& gain, double epsilon);
  /// A norm of rows by onnxruntime's operator that also adds; nothing if x is not such a sum.
  std::optional<std::string> normalised_sum(std::string const& x, char const* operation,
                                            std::vector<std::string> const& parameters, double epsilon);
  /// A node of onnxruntime's own.
  void add_own(std::string operation, std::vector<std::string> from, std::vector<std::string> results,
               formats::onnx::attributes how);

 private:
  std::string& cached(std::string const& key);
  std::string length_of(std::string const& input);  // the number of positions, without dimensions
  // Cosines and sines of the positions here: two values (batch or 1, 1, positions, width / 2).
  std::pair<std::string, std::string> rotations(rotary_angles const& how);
  // The same of all positions: two constants (positions, width / 2).
  std::pair<std::string, std::string> rotation_tables(rotary_angles const& how);
  // The names of keys or values of earlier positions, an input, and of all of them, an output.
  std::pair<std::string, std::string> past_of(char const* which, std::int64_t heads, std::int64_t head_width);

  bool past_, four_bits_;
  onnx_dialect dialect_;
  std::string sum_;
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
std::string onnx_nodes(onnx_walk& at, loss::squared_error const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, loss::binary_cross_entropy const& what, std::string const& x);
inline std::string onnx_nodes(onnx_walk&, loss::cross_entropy_ahead const&, std::string const& x) { return x; }
/// Rows are sorted by their experts, so that each expert multiplies its own rows only.
std::string onnx_nodes(onnx_walk& at, experts const& what, std::string const& x);
/// Keys and values in their plain form: those of each head, also in the past.
std::string onnx_nodes(onnx_walk& at, latent_attention const& what, std::string const& x);
/// What is of training alone.
inline std::string onnx_nodes(onnx_walk&, dropout const&, std::string const& x) { return x; }
template <class... L>
std::string onnx_nodes(onnx_walk&, composite<in_training_kind, L...> const&, std::string const& x) {
  return x;
}
template <class... L>
std::string onnx_nodes(onnx_walk&, composite<auxiliary_loss_kind, L...> const&, std::string const& x) {
  return x;
}

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

/// A value, and what its rows are.
struct onnx_value {
  std::string name;
  onnx_rows rows{};
};

/// What each branch makes of x. They may differ in width: the walk is told the sum.
template <class... B>
std::vector<onnx_value> onnx_branches(onnx_walk& at, pack<B...> const& branches, std::string const& x,
                                      std::int64_t& widths) {
  std::vector<onnx_value> out;
  onnx_rows const from = at;
  widths = 0;
  branches.each([&](auto const& each) {
    static_cast<onnx_rows&>(at) = from;
    auto const y = onnx_nodes_of(at, each, x);
    out.push_back({y, at});
    widths += at.width;
  });
  return out;
}
/// Their names, all of them rows unless all are images that lie as planes and may stay so.
std::vector<std::string> onnx_alike(onnx_walk& at, std::vector<onnx_value> const& values, bool planes);

}  // namespace detail

template <class Kind, class... B>
requires(std::is_same_v<Kind, residual_kind> || std::is_same_v<Kind, product_kind> || std::is_same_v<Kind, sum_kind> ||
         std::is_same_v<Kind, concat_kind> || std::is_same_v<Kind, checkpointed_kind>) std::string
    onnx_nodes(onnx_walk& at, composite<Kind, B...> const& what, std::string const& x) {
  std::int64_t widths = 0;
  onnx_rows const from = at;
  auto results = detail::onnx_branches(at, what.branches, x, widths);
  if constexpr (std::is_same_v<Kind, checkpointed_kind>) {
    return results.front().name;
  } else if constexpr (std::is_same_v<Kind, concat_kind>) {
    auto const y = at.graph.add("Concat", detail::onnx_alike(at, results, false), {{"axis", std::int64_t{-1}}});
    at.width = widths;
    return y;
  } else {
    if constexpr (std::is_same_v<Kind, residual_kind>) results.push_back({x, from});
    auto const y =
        at.combined(std::is_same_v<Kind, product_kind> ? "Mul" : "Add", detail::onnx_alike(at, results, true));
    if constexpr (!std::is_same_v<Kind, product_kind>) at.note_sum(y);
    return y;
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
