#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/nn/node.hpp"
#include "trireme/ops/paged_attention.hpp"
#include "trireme/ops/sets/pages.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// Keys and values of the positions that sequences have had so far, in pages, for passes over rows of sequences
/// (pass::paged).
///
/// Bytes    2 numbers for each channel of a key head and each position of all pages. If a pass has more pages than the
///          one before, the others are copied.
/// Errors   config_error for attention that is not causal, and for memory spaces without attend_paged().
template <class Env>
class attention_pages {
  using space = typename Env::space;
  using value = typename Env::compute;
  using view = view_of<Env>;

 public:
  /// Keeps the keys and values of these rows, and attends to those of their sequences.
  /// @param key_heads  0: as many as heads.
  void attend(pass<Env>& pass, view y, view qkv, attention_shape const& shape, std::int64_t key_heads) {
    if (!shape.mask.causal) {
      throw config_error(
          "trireme::nn::attend: positions that see those behind them cannot be computed one after the other; predict() "
          "whole samples");
    }
    if constexpr (ops::paged_kernels<space, Env>) {
      ops::paged_heads const how{shape.heads, key_heads > 0 ? key_heads : shape.heads, shape.head_channels(),
                                 shape.mask.window};
      make_room({pass.paged->pages_in_all, how.page_size()});
      ops::paged_attention_on<space>::attend_paged(y, pages_.view(), qkv, *pass.paged, how, pass.scratch);
    } else {
      throw config_error(
          "trireme::nn::attend: the kernels of this memory space have no attend_paged(); predict() whole samples, or "
          "serve in host memory");
    }
  }

 private:
  void make_room(shape const& all) {
    if (pages_.extents() == all) return;
    tensor<value, space> more(all);
    if (pages_.extents().rank() == 2 && pages_.extents()[1] == all[1]) {
      auto const kept = std::min(pages_.extents()[0], all[0]);
      ops::on<space>::copy(more.view().rows(0, kept), pages_.view().rows(0, kept));
    }
    pages_ = std::move(more);
  }

  tensor<value, space> pages_;  // (pages, numbers of a page)
};

}  // namespace trireme::nn::detail
