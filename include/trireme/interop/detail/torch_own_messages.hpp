#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/parallel/vote.hpp"

namespace trireme::interop::detail {

/// A gradient that the exchange cannot send; it is replaced by the mean over the ranks.
struct own_gradient {
  torch::Tensor parameter;
  torch::Tensor* gradient;  // an undefined one counts as zeros
};

/// Averages, in separate messages, the gradients that an exchange of one element type cannot send: doubles beside
/// floats, and sparse gradients of embedding tables.
///
/// Bytes    all doubles in one message. For a table the rows that have a gradient, and their indices, if all ranks
///          together have fewer of these rows than the table; otherwise the whole table.
/// Ranks    collective; the same parameters in the same order on all ranks.
/// Numerics sums in double, in rank order. The squares of each mean are added to the vote, on rank 0.
template <class Comm>
class own_messages {
  using space = torch_memory_of<Comm>;

 public:
  /// @param weight  the factor on each rank's gradient: 1 / (ranks * loss scale).
  own_messages(Comm& world, double weight, parallel::vote& vote) : world_(world), weight_(weight), vote_(vote) {}

  void average_doubles(std::vector<own_gradient> const& gradients) const {
    torch::NoGradGuard const guard;
    std::vector<torch::Tensor> rows;
    for (auto const& each : gradients)
      if (each.gradient->numel() > 0) rows.push_back(row_of(*each.gradient));
    if (rows.empty()) return;
    auto const all = torch::cat(rows).mul_(weight_);
    world_.all_reduce(numbers_of<double, space>(all));
    add_squares(all);
    std::int64_t from = 0;
    for (auto& row : rows) {
      row.copy_(all.slice(0, from, from + row.numel()));
      from += row.numel();
    }
  }
  void average_tables(std::vector<own_gradient> const& tables) const {
    if (tables.empty()) return;
    torch::NoGradGuard const guard;
    constexpr std::int64_t dense = -1;
    auto const ranks = static_cast<std::size_t>(world_.size());
    std::vector<std::int64_t> counts(ranks * tables.size(), 0);  // of rows, by rank and table
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto& own = *tables[i].gradient;
      auto& mine = counts[static_cast<std::size_t>(world_.rank()) * tables.size() + i];
      if (own.defined() && own.is_sparse())
        own = own.coalesce(), mine = own._nnz();
      else if (own.defined())
        mine = dense;
    }
    world_.all_gather(tensor_view<std::int64_t>(counts));
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto const& it = tables[i];
      std::int64_t most = 0;
      bool any_dense = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        auto const count = counts[rank * tables.size() + i];
        any_dense = any_dense || count == dense;
        most = std::max(most, count);
      }
      // Every rank sends as many rows as the rank with the most, padded with zeros.
      if (any_dense || most * world_.size() > it.parameter.size(0)) {
        auto const whole =
            it.gradient->defined()
                ? it.gradient->to_dense().to(at::kDouble).mul_(weight_)
                : torch::zeros(it.parameter.sizes(), it.parameter.options().dtype(at::kDouble).requires_grad(false));
        if (whole.numel() > 0) world_.all_reduce(numbers_of<double, space>(whole));
        add_squares(whole);
        *it.gradient = whole.to(it.parameter.scalar_type());
        if (!any_dense) *it.gradient = it.gradient->to_sparse(1);
      } else {
        *it.gradient = rows_of_all(it, counts, i, tables.size(), most);
        add_squares(it.gradient->_values().to(at::kDouble));
      }
    }
  }

 private:
  torch::Tensor rows_of_all(own_gradient const& it, std::vector<std::int64_t> const& counts, std::size_t table,
                            std::size_t tables, std::int64_t most) const {
    auto const options = it.parameter.options().requires_grad(false);
    auto extents = it.parameter.sizes().vec();
    extents[0] = most;
    extents.insert(extents.begin(), world_.size());
    auto places = torch::zeros({world_.size(), most}, options.dtype(at::kLong));
    auto values = torch::zeros(extents, options);
    if (most > 0) {
      if (it.gradient->defined()) {
        auto const here = it.gradient->_nnz();
        places[world_.rank()].slice(0, 0, here).copy_(it.gradient->_indices()[0]);
        values[world_.rank()].slice(0, 0, here).copy_(it.gradient->_values());
      }
      world_.all_gather(bytes_of<space>(places));
      world_.all_gather(bytes_of<space>(values));
    }
    std::vector<torch::Tensor> all_places, all_values;
    for (int rank = 0; rank < world_.size(); ++rank) {
      auto const here = counts[static_cast<std::size_t>(rank) * tables + table];
      all_places.push_back(places[rank].slice(0, 0, here));
      all_values.push_back(values[rank].slice(0, 0, here));
    }
    return torch::sparse_coo_tensor(torch::cat(all_places).unsqueeze(0), torch::cat(all_values).mul_(weight_),
                                    it.parameter.sizes(), options.layout(at::kSparse))
        .coalesce();
  }
  // All ranks have the same sum; only rank 0 counts its squares.
  void add_squares(torch::Tensor const& sum) const {
    if (world_.rank() != 0 || sum.numel() == 0) return;
    auto const row = row_of(sum.contiguous());
    ops::on<space>::sum_of_squares(
        tensor_view<double const, space>(static_cast<double const*>(row.data_ptr()), shape{row.numel()}),
        vote_.squares());
  }

  Comm& world_;
  double weight_;
  parallel::vote& vote_;
};

}  // namespace trireme::interop::detail
