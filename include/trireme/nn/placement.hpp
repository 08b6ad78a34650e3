#pragma once

#include <cstddef>
#include <span>

namespace trireme::nn {

/// What a layer does to an activation that a tensor group cuts: the one word by which it is placed.
enum class flow {
  product,  ///< a matrix product: takes what there is, and is cut as its neighbours ask
  fork,     ///< several chains on one input, whose results are put together
  rows,     ///< row by row, whole rows: norms, a residual; each rank has its own rows where rows are cut
  columns,  ///< works on this rank's columns of all rows: attention by heads
  any,      ///< number by number, whatever lies here: activations, dropout
  all,      ///< wants all rows and gives all rows, the same on all ranks: experts
  source,   ///< makes rows of the batch's numbers: embeddings; the first layer of a model's first unit
  words,    ///< a product with a table of words, whose numbers a loss takes chunk by chunk
  loss      ///< compares rows with targets; the last layer of a model's last unit
};

/// How an activation lies between two layers. A term of a sum never does: the chain sums it at once.
enum class lie {
  rows,     ///< whole rows: all of them, or this rank's where rows are cut
  all,      ///< all rows, whole: only at the start of a branch whose fork has gathered them for all branches
  columns,  ///< this rank's columns of all rows
  nothing   ///< no rows: before a model's first layer, and behind its loss
};

/// What becomes of a product (or a fork) in its chain.
enum class role {
  here,     ///< not cut
  spread,   ///< all rows in, this rank's columns out; the gradient of its input is a term
  collect,  ///< this rank's columns in, a term of all columns out
  whole     ///< a product that every rank has whole, for its rows
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

/// What a layer says of itself.
struct layer_says {
  flow does = flow::rows;
  bool activation = false;        ///< a product before it can do it on the way out
  bool takes_activation = false;  ///< is such a product
  bool terms = false;             ///< of a source: what it gives is a term of a sum over the group
  bool spreads = false;           ///< of a fork: all of its branches can end in columns
  bool shares_entry = false;      ///< and begin with products of all rows, which one gather serves
};

/// A layer in its place.
struct layer_step {
  role as = role::here;
  lie from = lie::rows;   ///< how its input lies before the boundary,
  lie takes = lie::rows;  ///< and behind it
  lie gives = lie::rows;  ///< how its result lies, once a term is summed
  bool partial = false;   ///< its result is a term of a sum over the group
  bool fused = false;     ///< it does the activation (or the loss) behind it
  bool absorbed = false;  ///< is done by the product before it

  /// Rows are gathered before it; the gradient of its input is summed.
  [[nodiscard]] constexpr bool gathers() const noexcept { return from == lie::rows && takes == lie::all; }
};

/// What came of placing a chain.
struct placement {
  misfit what = misfit::none;
  std::size_t where = 0;
  lie last = lie::rows;
  [[nodiscard]] constexpr bool fits() const noexcept { return what == misfit::none; }
};

namespace detail {

/// How layer i (or, behind the last one, whoever takes the chain's result) would like its input to lie. Seen from the
/// right: a product whose result is wanted in rows can sum columns; one whose result is wanted in columns takes rows.
[[nodiscard]] constexpr lie wanted_by(std::span<layer_says const> layers, std::size_t i, lie exit) noexcept {
  while (i < layers.size() && layers[i].does == flow::any) ++i;
  if (i == layers.size()) return exit;
  if (layers[i].does == flow::columns) return lie::columns;
  if (layers[i].does != flow::product) return lie::rows;
  return wanted_by(layers, i + 1, exit) == lie::columns ? lie::rows : lie::columns;
}

}  // namespace detail

/// Places the layers of a chain over the tensor group: where rows are gathered, where terms are summed, which products
/// are cut by columns, which by rows, and which layers are done by the one before them. Values in, values out; a unit's
/// layers are placed when it is compiled, to refuse what does not fit, and once more when its run state is made.
///
/// @param steps  as many as there are layers; written.
/// @param entry  how the chain's input lies,   @param exit  and how its result must.
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

/// How a unit's input lies, and how its result does: a model's first unit begins with a source, its last one ends with
/// a loss.
[[nodiscard]] constexpr lie entry_of(std::span<layer_says const> layers) noexcept {
  return !layers.empty() && layers.front().does == flow::source ? lie::nothing : lie::rows;
}
[[nodiscard]] constexpr lie exit_of(std::span<layer_says const> layers) noexcept {
  return !layers.empty() && layers.back().does == flow::loss ? lie::nothing : lie::rows;
}

/// What a branch of a fork can do: `spreads` and `shares_entry` of a fork are those of all of its branches.
/// @param steps  room for as many as there are layers.
[[nodiscard]] constexpr layer_says branch_says(std::span<layer_says const> layers,
                                               std::span<layer_step> steps) noexcept {
  layer_says out{.does = flow::fork};
  out.shares_entry = resolve(layers, steps, lie::all, lie::columns).fits();
  out.spreads = out.shares_entry || resolve(layers, steps, lie::rows, lie::columns).fits();
  return out;
}

}  // namespace trireme::nn
