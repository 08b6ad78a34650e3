#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// Dropout of y, which has all rows, but only the columns `part` of each of the `fused` matrices that make up a whole
/// row of `width` numbers. Drops the same numbers as dropout of whole rows.
template <class Env>
void drop_columns(pass<Env> const& pass, tensor_view<typename Env::compute, typename Env::space> y, std::int64_t width,
                  std::int64_t fused, interval part, ops::dropout_site site) {
  if (!site.active() || part.count == 0) return;
  auto const& positions = context_group<Env>::of(pass).part();
  auto const samples = site.samples;
  auto const context = y.extent(0) / static_cast<std::int64_t>(samples.size());
  site.whole = positions.whole(context) * width;
  for (std::int64_t row = 0; row < y.extent(0); ++row) {
    auto const in_sample = row % context;
    auto position = in_sample;
    if (positions.own.size > 1) {
      auto const at = positions.at(in_sample < positions.at(0, context).count ? 0 : 1, context);
      position = at.position + in_sample - at.row;
    }
    site.samples = samples.subspan(static_cast<std::size_t>(row / context), 1);
    for (std::int64_t each = 0; each < fused; ++each) {
      site.first = position * width + each * (width / fused) + part.first;
      ops::on<typename Env::space>::dropout(y.flat((row * fused + each) * part.count, part.count), site);
    }
  }
}

}  // namespace trireme::nn::detail
