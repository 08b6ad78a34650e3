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
enum class lie {
  rows,     ///< whole rows: all of them, or this rank's where rows are cut
  all,      ///< all rows, whole: only at the start of a branch whose fork has gathered them for all branches
  columns,  ///< this rank's columns of all rows
  nothing   ///< no rows: before a model's first layer, and behind its loss
};

/// How a product (or a fork) is cut in its chain.
enum class role {
  here,     ///< neither a product nor a fork
  spread,   ///< all rows in, this rank's columns out; the gradient of its input is a term
  collect,  ///< this rank's columns in, a term of all columns out
  whole     ///< every rank has all weights, and computes the rows that lie there
};

/// Why layers cannot stand in this order.
enum class misfit {
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
struct layer_says {
  flow does = flow::rows;
  bool activation = false;        ///< the product before it can do it
  bool takes_activation = false;  ///< is such a product
  bool terms = false;             ///< of a source: its result is a term of a sum over the group
  bool spreads = false;           ///< of a fork: all of its branches can end in columns
  bool shares_entry = false;      ///< and begin with products of all rows: one gather serves them all
};

/// A layer in its place.
struct layer_step {
  role as = role::here;
  lie from = lie::rows;   ///< how its input lies before rows are gathered,
  lie takes = lie::rows;  ///< and after
  lie gives = lie::rows;  ///< how its result lies, once a term is summed
  bool partial = false;   ///< its result is a term of a sum over the group
  bool fused = false;     ///< it also does the activation (or the loss) behind it
  bool absorbed = false;  ///< the layer before does it

  /// Rows are gathered before it; the gradient of its input is summed.
  [[nodiscard]] constexpr bool gathers() const noexcept { return from == lie::rows && takes == lie::all; }
};

/// The result of placing a chain: whether it fits, or what is wrong with which layer.
struct placement {
  misfit what = misfit::none;
  std::size_t where = 0;
  lie last = lie::rows;
  [[nodiscard]] constexpr bool fits() const noexcept { return what == misfit::none; }
};

namespace detail {

/// How layer i wants its input to lie; behind the last layer, how the chain's result must lie. This follows from the
/// layers to the right: a product takes columns if rows are wanted of it (it sums them), and rows if columns are
/// wanted.
[[nodiscard]] constexpr lie wanted_by(std::span<layer_says const> layers, std::size_t i, lie exit) noexcept {
  while (i < layers.size() && layers[i].does == flow::any) ++i;
  if (i == layers.size()) return exit;
  if (layers[i].does == flow::columns) return lie::columns;
  if (layers[i].does != flow::product) return lie::rows;
  return wanted_by(layers, i + 1, exit) == lie::columns ? lie::rows : lie::columns;
}

}  // namespace detail

/// Places the layers of a chain over the tensor group: where rows are gathered, where terms are summed, which products
/// are cut by columns, which by rows, and which layers are fused into the one before them. The compiler calls it to
/// refuse units that do not fit, and run states call it again when they are made.
///
/// @param steps  out: one a layer.
/// @param entry  how the chain's input lies.
/// @param exit   how its result must lie.
[[nodiscard]] constexpr placement resolve(std::span<layer_says const> layers, std::span<layer_step> steps, lie entry,
                                          lie exit) noexcept {
  placement out;
  auto const refuse = [&](misfit what, std::size_t where) {
    if (out.fits()) out = {what, where, lie::rows};
  };
  lie at = entry;
  for (std::size_t i = 0; i < layers.size(); ++i) steps[i] = {};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto& step = steps[i];
    auto const& layer = layers[i];
    step.from = step.takes = step.gives = at;
    if (step.absorbed) continue;
    switch (layer.does) {
      case flow::product:
      case flow::fork: {
        if (at == lie::columns) {
          if (layer.does == flow::fork) refuse(misfit::fork_of_columns, i);
          step.as = role::collect;
          step.gives = lie::rows;
          step.partial = true;
        } else if (detail::wanted_by(layers, i + 1, exit) == lie::columns &&
                   (layer.does == flow::product || (layer.spreads && (layer.shares_entry || at == lie::rows)))) {
          step.as = role::spread;
          step.takes = layer.does == flow::product || layer.shares_entry ? lie::all : lie::rows;
          step.gives = lie::columns;
        } else {
          if (at == lie::all) refuse(misfit::rows_of_all, i);
          step.as = role::whole;
        }
        bool const followed = i + 1 < layers.size() && layers[i + 1].activation;
        if (layer.takes_activation && followed && !step.partial) step.fused = steps[i + 1].absorbed = true;
        break;
      }
      case flow::rows:
        if (at == lie::columns) refuse(misfit::rows_of_columns, i);
        if (at == lie::all) refuse(misfit::rows_of_all, i);
        break;
      case flow::columns:
        if (at != lie::columns) refuse(misfit::columns_of_rows, i);
        break;
      case flow::any:
        break;
      case flow::all:
        if (at == lie::columns) refuse(misfit::rows_of_columns, i);
        if (at == lie::all) refuse(misfit::rows_of_all, i);
        step.takes = lie::all;
        break;
      case flow::source:
        if (at != lie::nothing) refuse(misfit::source_within, i);
        step.from = step.takes = lie::all;
        step.gives = lie::rows;
        step.partial = layer.terms;
        break;
      case flow::words:
      case flow::loss: {
        if (at == lie::columns) refuse(misfit::rows_of_columns, i);
        bool const words = layer.does == flow::words;
        std::size_t const loss = words ? i + 1 : i;
        bool const has_loss = loss < layers.size() && layers[loss].does == flow::loss;
        if (!has_loss)
          refuse(misfit::loss_missing, i);
        else if (exit != lie::nothing || loss + 1 != layers.size())
          refuse(misfit::loss_within, loss);
        if (words && loss < layers.size()) step.fused = steps[loss].absorbed = true;
        step.takes = lie::all;
        step.gives = lie::nothing;
        break;
      }
    }
    at = step.gives;
  }
  if (exit == lie::columns && at != lie::columns) refuse(misfit::columns_missing, layers.size());
  if (exit != lie::columns && at == lie::columns) refuse(misfit::columns_left, layers.size());
  out.last = at;
  return out;
}

/// How the input and the result of a unit lie. A model's first unit begins with a source and has no input; its last one
/// ends with a loss and has no result.
[[nodiscard]] constexpr lie entry_of(std::span<layer_says const> layers) noexcept {
  return !layers.empty() && layers.front().does == flow::source ? lie::nothing : lie::rows;
}
[[nodiscard]] constexpr lie exit_of(std::span<layer_says const> layers) noexcept {
  return !layers.empty() && layers.back().does == flow::loss ? lie::nothing : lie::rows;
}

/// What a branch of a fork can do. A fork has `spreads` or `shares_entry` if all of its branches have it.
/// @param steps  room for as many as there are layers.
[[nodiscard]] constexpr layer_says branch_says(std::span<layer_says const> layers,
                                               std::span<layer_step> steps) noexcept {
  layer_says out{.does = flow::fork};
  out.shares_entry = resolve(layers, steps, lie::all, lie::columns).fits();
  out.spreads = out.shares_entry || resolve(layers, steps, lie::rows, lie::columns).fits();
  return out;
}

/// What a fork can do whose branches can do this: what all of them can.
[[nodiscard]] constexpr layer_says fork_says(std::span<layer_says const> branches) noexcept {
  layer_says out{.does = flow::fork, .spreads = true, .shares_entry = true};
  for (auto const& each : branches) {
    out.spreads = out.spreads && each.spreads;
    out.shares_entry = out.shares_entry && each.shares_entry;
  }
  return out;
}

}  // namespace trireme::nn
