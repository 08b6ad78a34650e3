#pragma once

#include <cstdint>

#include "trireme/core/arena.hpp"
#include "trireme/ops/paged_attention.hpp"
#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of attention over pages, in a struct paged_attention_on<Space> of its own: rows of many sequences attend to
// keys and values that earlier passes have kept (serve::engine, generate()). Documented in ops/paged_attention.hpp.
// Without it a model trains and predicts whole samples, and going on with a text is a config_error.
//
//   attend_paged(y, kept, qkv, rows, heads, scratch)

namespace detail {

template <class K, class V, class Space>
concept attends_paged = requires(typename V::y y, typename V::x x, paged_rows const& rows, paged_heads const& how,
                                 arena<Space>& scratch) {
  K::attend_paged(y, y, x, rows, how, scratch);
};

}  // namespace detail

/// Whether a memory space has attention over pages.
template <class Space, class Env>
concept paged_kernels = detail::attends_paged<paged_attention_on<Space>, detail::set_views<Space, Env>, Space>;

}  // namespace trireme::ops
