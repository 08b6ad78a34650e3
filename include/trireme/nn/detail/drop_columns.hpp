#pragma once

#include <cstdint>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// The positions of the rows that lie here, for `rows` rows of all samples together.
template <class Env>
[[nodiscard]] ops::dropout_cut dropout_rows(pass<Env> const& pass, std::int64_t rows, std::int64_t samples) {
  auto const context = rows / samples;
  ops::dropout_cut cut{.context = context, .split = context};
  auto const& part = context_group<Env>::of(pass).part();
  if (part.own.size > 1) {
    auto const begin = part.at(0, context);
    cut.split = begin.count;
    cut.first[0] = begin.position;
    if (begin.count < context) cut.first[1] = part.at(1, context).position;
  }
  return cut;
}

/// Dropout of y, which has all rows, but only the columns `part` of each of the `fused` matrices that make up a whole
/// row of `width` numbers. Drops the same numbers as dropout of whole rows.
template <class Env>
void drop_columns(pass<Env> const& pass, tensor_view<typename Env::compute, typename Env::space> y, std::int64_t width,
                  std::int64_t fused, interval part, ops::dropout_site_in<typename Env::space> const& site) {
  if (!site.active() || part.count == 0) return;
  auto cut = dropout_rows(pass, y.extent(0), site.sample_count());
  cut.width = width;
  cut.fused = fused;
  cut.column = part.first;
  cut.columns = part.count;
  ops::on<typename Env::space>::dropout_part(y, site, cut);
}

}  // namespace trireme::nn::detail
