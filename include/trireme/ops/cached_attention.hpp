#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/arena.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Attention of one position of each sample over cached keys and values, for memory spaces that have it.
template <class Space>
struct cached_attention_on {};

/// Shapes   y (B*T, C) and qkv (B*T, 3C), of which row `row` of each sample is written and read; kept (B*P, 2C): P rows
///          of keys and values of each sample, of which the first `count` are used, in any order.
/// Bytes    scratch: `count` numbers of the accumulate type.
/// Numerics as attention's, softmax and sums in the accumulate type, but the sums have another order.
/// Threads  one caller per arena.
/// Errors   assertion_error (light) if the sizes do not fit.
template <>
struct cached_attention_on<host> {
  template <class T>
  static void attend_cached(tensor_view<T, host> y, detail::input<T> qkv, detail::input<T> kept,
                            attention_shape const& shape, std::int64_t row, std::int64_t count, arena<host>& scratch) {
    using real = accumulate_t<T>;
    detail::same_size("attend_cached", y.size(), shape.batch * shape.context * shape.channels);
    detail::same_size("attend_cached", qkv.size(), 3 * y.size());
    auto const positions = kept.size() / (2 * shape.channels * shape.batch);
    expects(assertion_level::light, row < shape.context && count > 0 && count <= positions, [&] {
      return text("trireme::ops::attend_cached: row ", row, " of ", shape.context, " over ", count, " of ", positions);
    });
    auto const width = shape.head_channels();
    auto const scale = static_cast<real>(1 / std::sqrt(static_cast<double>(width)));
    auto const mark = scratch.mark();
    auto* const weights = raw(scratch.template take<real>({count}));
    auto* const sums = raw(scratch.template take<real>({width}));
    for (std::int64_t sample = 0; sample < shape.batch; ++sample) {
      auto const at = sample * shape.context + row;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        auto const* const query = raw(qkv) + at * 3 * shape.channels + head * width;
        auto const* const keys = raw(kept) + sample * positions * 2 * shape.channels + head * width;
        real most = -std::numeric_limits<real>::infinity();
        for (std::int64_t j = 0; j < count; ++j) {
          weights[j] = scale * dot<real>(query, keys + j * 2 * shape.channels, width);
          most = std::max(most, weights[j]);
        }
        real all = 0;
        std::fill_n(sums, width, real{0});
        for (std::int64_t j = 0; j < count; ++j) {
          auto const weight = std::exp(weights[j] - most);
          auto const* const value = keys + j * 2 * shape.channels + shape.channels;
          all += weight;
          for (std::int64_t d = 0; d < width; ++d) sums[d] += weight * static_cast<real>(value[d]);
        }
        auto* const out = raw(y) + at * shape.channels + head * width;
        for (std::int64_t d = 0; d < width; ++d) out[d] = static_cast<T>(sums[d] / all);
      }
    }
    scratch.rewind(mark);
  }

 private:
  // Eight partial sums, which a compiler can vectorise.
  template <class Real, class T>
  static Real dot(T const* a, T const* b, std::int64_t n) {
    constexpr std::int64_t lanes = 8;
    Real sums[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        sums[lane] += static_cast<Real>(a[i + lane]) * static_cast<Real>(b[i + lane]);
    Real sum = 0;
    for (; i < n; ++i) sum += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
    for (auto const each : sums) sum += each;
    return sum;
  }
};

}  // namespace trireme::ops
