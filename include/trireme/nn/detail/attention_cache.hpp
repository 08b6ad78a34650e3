#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/node.hpp"
#include "trireme/ops/cached_attention.hpp"
#include "trireme/ops/paged_attention.hpp"
#include "trireme/ops/sets/cache.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// Keys and values of the positions that samples have had so far, for passes that go on with them (pass::known). With a
/// window only the last ones that are still seen are kept, each in the place of one that is not. Or the pages of many
/// sequences (pass::paged), each position of which is kept.
///
/// Bytes    2 C numbers for each position of a sample, in twice as much memory at most; with a window for each of its
///          positions. Keys that serve several queries are kept once for each query; in pages once.
/// Errors   config_error for attention that is not causal, and for memory spaces without attend_cached() or
///          attend_paged().
template <class Env>
class attention_cache {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;
  using view = view_of<Env>;

 public:
  /// Keeps the keys and values of these rows, which are those of positions from pass.known on.
  /// @param attend_whole  attention among the rows themselves: all that there is to see at a sample's beginning.
  template <class Whole>
  void attend(pass<Env>& pass, view y, view qkv, attention_shape const& shape, Whole const& attend_whole) {
    expect_causal(shape);
    make_room(pass.known, shape);
    if (pass.known == 0) {
      attend_whole();
      // The places of a window begin again behind the last one.
      for (auto row = std::max<std::int64_t>(0, shape.context - places_); row < shape.context;) {
        auto const n = std::min(shape.context - row, places_ - row % places_);
        keep(qkv, shape, row, n, row);
        row += n;
      }
      return;
    }
    for (std::int64_t row = 0; row < shape.context; ++row) {
      auto const position = pass.known + row;
      keep(qkv, shape, row, 1, position);
      attend_one(pass, y, qkv, shape, row, std::min(position + 1, places_));
    }
  }

  /// Keeps the keys and values of rows of many sequences in their pages, and attends to them.
  /// @param key_heads  0: as many as heads.
  void attend_paged(pass<Env>& pass, view y, view qkv, attention_shape const& shape, std::int64_t key_heads) {
    expect_causal(shape);
    if constexpr (ops::paged_kernels<space, Env>) {
      ops::paged_heads const how{shape.heads, key_heads > 0 ? key_heads : shape.heads, shape.head_channels(),
                                 shape.mask.window};
      trireme::shape const all{pass.paged->pages_in_all, how.page_size()};
      if (pages_.extents() != all) pages_ = tensor<value, space>(all);
      ops::paged_attention_on<space>::attend_paged(y, pages_.view(), qkv, *pass.paged, how, pass.scratch);
    } else {
      throw config_error(
          "trireme::nn::attend: the kernels of this memory space have no attend_paged(); predict() whole samples, or "
          "serve in host memory");
    }
  }

 private:
  static void expect_causal(attention_shape const& shape) {
    if (shape.mask.causal) return;
    throw config_error(
        "trireme::nn::attend: positions that see those behind them cannot be computed one after the other; predict() "
        "whole samples");
  }
  void make_room(std::int64_t known, attention_shape const& shape) {
    constexpr std::int64_t few = 64;
    auto const window = shape.mask.window, all = known + shape.context;
    bool const fits = kept_.extents() == trireme::shape{shape.batch * places_, 2 * shape.channels} &&
                      (window > 0 ? places_ == window : all <= places_);
    if (fits) return;
    auto const positions = window > 0 ? window : std::max(few, 2 * all);
    tensor<value, space> more({shape.batch * positions, 2 * shape.channels});
    auto const width = 2 * shape.channels;
    if (known > 0) {
      kernels::copy_blocks(more.view(), {0, positions * width, width}, kept_.view(), {0, places_ * width, width},
                           {shape.batch, std::min(known, std::min(positions, places_)), width});
    }
    kept_ = std::move(more);
    places_ = positions;
  }
  // The keys and values of n rows from `row` on, for positions from `position` on, which lie one after the other.
  void keep(view qkv, attention_shape const& shape, std::int64_t row, std::int64_t n, std::int64_t position) {
    auto const width = 2 * shape.channels, whole = 3 * shape.channels;
    kernels::copy_blocks(kept_.view(), {position % places_ * width, places_ * width, width}, qkv,
                         {row * whole + shape.channels, shape.context * whole, whole}, {shape.batch, n, width});
  }
  void attend_one(pass<Env>& pass, view y, view qkv, attention_shape const& shape, std::int64_t row,
                  std::int64_t count) {
    using attention = ops::cached_attention_on<space>;
    if constexpr (ops::cache_kernels<space, Env>) {
      attention::attend_cached(y, qkv, kept_.view(), shape, row, count, pass.scratch);
    } else {
      throw config_error(
          "trireme::nn::attend: the kernels of this memory space have no attend_cached(); predict() whole samples");
    }
  }

  tensor<value, space> kept_;   // (samples * places, 2 C): keys and values
  std::int64_t places_ = 0;     // for positions of a sample
  tensor<value, space> pages_;  // (pages, numbers of a page)
};

}  // namespace trireme::nn::detail
