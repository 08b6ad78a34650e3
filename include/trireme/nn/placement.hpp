#pragma once

#include <cstddef>
#include <span>

#include "trireme/core/dialect.hpp"

namespace trireme::nn {

/// How a layer uses an activation that is cut over a tensor group. This is all that places a layer.
enum class flow {
  product,  ///< a matrix product: takes rows or columns, and is cut as its neighbours need
  fork,     ///< several chains on one input, whose results are combined
  rows,     ///< row by row, whole rows: norms, a residual; each rank has its own rows where rows are cut
  columns,  ///< works on this rank's columns of all rows: the heads of attention
  any,      ///< number by number, on rows or columns: activations, dropout
  all,      ///< takes all rows and gives all rows, the same on all ranks: experts
  source,   ///< makes rows from the batch: embeddings; the first layer of a model's first unit
  words,    ///< a product with a vocabulary's table, whose logits the loss takes chunk by chunk
  loss      ///< compares rows with targets; the last layer of a model's last unit
};

/// How an activation lies between two layers. It is never a term of a sum: the chain sums terms at once.
enum class activation_layout {
  rows,     ///< whole rows: all of them, or this rank's where rows are cut
  all,      ///< all rows, whole: only at the start of a branch whose fork has gathered them for all branches
  columns,  ///< this rank's columns of all rows
  nothing   ///< no rows: before a model's first layer, and behind its loss
};

/// How a product (or a fork) is cut in its chain.
enum class role {
  none,             ///< neither a product nor a fork
  column_parallel,  ///< all rows in, this rank's columns out; the gradient of its input is a term
  row_parallel,     ///< this rank's columns in, a term of all columns out
  replicated        ///< every rank has all weights, and computes the rows that lie there
};

/// Why layers cannot stand in this order.
enum class placement_error {
  none,
  rows_of_columns,
  columns_of_rows,
  fork_of_columns,
  rows_of_all,
  columns_left,
  columns_missing,
  source_within,
  loss_within,
  loss_missing
};

/// The traits of a layer.
struct layer_traits {
  flow does = flow::rows;
  bool activation = false;        ///< the product before it can do it
  bool takes_activation = false;  ///< is such a product
  bool terms = false;             ///< of a source: its result is a term of a sum over the group
  bool spreads = false;           ///< of a fork: all of its branches can end in columns
  bool shares_entry = false;      ///< and begin with products of all rows: one gather serves them all
};

/// A layer in its place.
struct layer_step {
  role as = role::none;
  activation_layout from = activation_layout::rows;   ///< how its input lies before rows are gathered,
  activation_layout takes = activation_layout::rows;  ///< and after
  activation_layout gives = activation_layout::rows;  ///< how its result lies, once a term is summed
  bool partial = false;                               ///< its result is a term of a sum over the group
  bool fused = false;                                 ///< it also does the activation (or the loss) behind it
  bool absorbed = false;                              ///< the layer before does it

  /// Rows are gathered before it; the gradient of its input is summed.
  [[nodiscard]] constexpr bool gathers() const noexcept {
    return from == activation_layout::rows && takes == activation_layout::all;
  }
};

/// The result of placing a chain: whether it fits, or what is wrong with which layer.
struct placement {
  placement_error what = placement_error::none;
  std::size_t where = 0;
  activation_layout last = activation_layout::rows;
  [[nodiscard]] constexpr bool fits() const noexcept { return what == placement_error::none; }
};

namespace detail {

/// How layer i wants its input to lie; behind the last layer, how the chain's result must lie. This follows from the
/// layers to the right: a product takes columns if rows are wanted of it (it sums them), and rows if columns are
/// wanted.
[[nodiscard]] constexpr activation_layout wanted_by(std::span<layer_traits const> layers, std::size_t i,
                                                    activation_layout exit) noexcept {
  while (i < layers.size() && layers[i].does == flow::any) ++i;
  if (i == layers.size()) return exit;
  if (layers[i].does == flow::columns) return activation_layout::columns;
  if (layers[i].does != flow::product) return activation_layout::rows;
  return wanted_by(layers, i + 1, exit) == activation_layout::columns ? activation_layout::rows
                                                                      : activation_layout::columns;
}

}  // namespace detail

/// Places the layers of a chain over the tensor group: where rows are gathered, where terms are summed, which products
/// are cut by columns, which by rows, and which layers are fused into the one before them. The compiler calls it to
/// refuse units that do not fit, and run states call it again when they are made.
///
/// @param steps  out: one a layer.
/// @param entry  how the chain's input lies.
/// @param exit   how its result must lie.
[[nodiscard]] constexpr placement resolve(std::span<layer_traits const> layers, std::span<layer_step> steps,
                                          activation_layout entry, activation_layout exit) noexcept {
  placement out;
  auto const refuse = [&](placement_error what, std::size_t where) {
    if (out.fits()) out = {what, where, activation_layout::rows};
  };
  activation_layout at = entry;
  for (std::size_t i = 0; i < layers.size(); ++i) steps[i] = {};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto& step = steps[i];
    auto const& layer = layers[i];
    step.from = step.takes = step.gives = at;
    if (step.absorbed) continue;
    switch (layer.does) {
      case flow::product:
      case flow::fork: {
        if (at == activation_layout::columns) {
          if (layer.does == flow::fork) refuse(placement_error::fork_of_columns, i);
          step.as = role::row_parallel;
          step.gives = activation_layout::rows;
          step.partial = true;
        } else if (detail::wanted_by(layers, i + 1, exit) == activation_layout::columns &&
                   (layer.does == flow::product ||
                    (layer.spreads && (layer.shares_entry || at == activation_layout::rows)))) {
          step.as = role::column_parallel;
          step.takes =
              layer.does == flow::product || layer.shares_entry ? activation_layout::all : activation_layout::rows;
          step.gives = activation_layout::columns;
        } else {
          if (at == activation_layout::all) refuse(placement_error::rows_of_all, i);
          step.as = role::replicated;
        }
        bool const followed = i + 1 < layers.size() && layers[i + 1].activation;
        if (layer.takes_activation && followed && !step.partial) step.fused = steps[i + 1].absorbed = true;
        break;
      }
      case flow::rows:
        if (at == activation_layout::columns) refuse(placement_error::rows_of_columns, i);
        if (at == activation_layout::all) refuse(placement_error::rows_of_all, i);
        break;
      case flow::columns:
        if (at != activation_layout::columns) refuse(placement_error::columns_of_rows, i);
        break;
      case flow::any:
        break;
      case flow::all:
        if (at == activation_layout::columns) refuse(placement_error::rows_of_columns, i);
        if (at == activation_layout::all) refuse(placement_error::rows_of_all, i);
        step.takes = activation_layout::all;
        break;
      case flow::source:
        if (at != activation_layout::nothing) refuse(placement_error::source_within, i);
        step.from = step.takes = activation_layout::all;
        step.gives = activation_layout::rows;
        step.partial = layer.terms;
        break;
      case flow::words:
      case flow::loss: {
        if (at == activation_layout::columns) refuse(placement_error::rows_of_columns, i);
        bool const words = layer.does == flow::words;
        std::size_t const loss = words ? i + 1 : i;
        bool const has_loss = loss < layers.size() && layers[loss].does == flow::loss;
        if (!has_loss)
          refuse(placement_error::loss_missing, i);
        else if (exit != activation_layout::nothing || loss + 1 != layers.size())
          refuse(placement_error::loss_within, loss);
        if (words && loss < layers.size()) step.fused = steps[loss].absorbed = true;
        step.takes = activation_layout::all;
        step.gives = activation_layout::nothing;
        break;
      }
    }
    at = step.gives;
  }
  if (exit == activation_layout::columns && at != activation_layout::columns)
    refuse(placement_error::columns_missing, layers.size());
  if (exit != activation_layout::columns && at == activation_layout::columns)
    refuse(placement_error::columns_left, layers.size());
  out.last = at;
  return out;
}

/// How the input and the result of a unit lie. A model's first unit begins with a source and has no input; its last one
/// ends with a loss and has no result.
[[nodiscard]] constexpr activation_layout entry_of(std::span<layer_traits const> layers) noexcept {
  return !layers.empty() && layers.front().does == flow::source ? activation_layout::nothing : activation_layout::rows;
}
[[nodiscard]] constexpr activation_layout exit_of(std::span<layer_traits const> layers) noexcept {
  return !layers.empty() && layers.back().does == flow::loss ? activation_layout::nothing : activation_layout::rows;
}

/// What a branch of a fork can do. A fork has `spreads` or `shares_entry` if all of its branches have it.
/// @param steps  room for as many as there are layers.
[[nodiscard]] constexpr layer_traits branch_traits(std::span<layer_traits const> layers,
                                                   std::span<layer_step> steps) noexcept {
  layer_traits out{.does = flow::fork};
  out.shares_entry = resolve(layers, steps, activation_layout::all, activation_layout::columns).fits();
  out.spreads = out.shares_entry || resolve(layers, steps, activation_layout::rows, activation_layout::columns).fits();
  return out;
}

/// What a fork can do whose branches can do this: what all of them can.
[[nodiscard]] constexpr layer_traits fork_traits(std::span<layer_traits const> branches) noexcept {
  layer_traits out{.does = flow::fork, .spreads = true, .shares_entry = true};
  for (auto const& each : branches) {
    out.spreads = out.spreads && each.spreads;
    out.shares_entry = out.shares_entry && each.shares_entry;
  }
  return out;
}

}  // namespace trireme::nn
