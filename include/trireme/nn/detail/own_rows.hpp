#pragma once

#include <cstdint>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/nn/detail/drop_columns.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// The sum over the tensor group of what term(memory) computes. Where rows are cut, only the rows that lie here are
/// kept among the activations; the term, which has all rows, goes to scratch memory.
template <class Env, class Term>
auto kept_sum(pass<Env>& pass, Term const& term) -> tensor_view<typename Env::compute, typename Env::space> {
  if (!pass.group.cuts_rows()) return pass.group.reduce(term(pass.activations));
  auto const here = pass.scratch.mark();
  auto const own = pass.group.reduce(term(pass.scratch));
  auto const y = pass.take(own.extents());
  ops::on<typename Env::space>::copy(y, own);
  pass.scratch.rewind(here);
  return y;
}

/// Dropout of y, which has those of `rows` rows that lie here. What is dropped depends on sample and position in the
/// whole sample alone, so any cut drops the same.
template <class Env>
void drop_rows(pass<Env> const& pass, tensor_view<typename Env::compute, typename Env::space> y, std::int64_t rows,
               ops::dropout_site_in<typename Env::space> site) {
  using kernels = ops::on<typename Env::space>;
  if (!site.active()) return;
  auto const columns = y.extent(1);
  auto const here = pass.group.rows_here(rows);
  auto const& part = context_group<Env>::of(pass).part();
  site.first = here.first * columns;
  site.whole = rows * columns;
  if (part.own.size == 1) return kernels::dropout(y, site);
  auto cut = dropout_rows(pass, rows, site.sample_count());
  cut.row = here.first;
  cut.width = cut.columns = columns;
  kernels::dropout_part(y, site, cut);
}

}  // namespace trireme::nn::detail
