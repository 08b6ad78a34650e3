#pragma once

#include <cstdint>

#include "trireme/core/arena.hpp"
#include "trireme/ops/cached_attention.hpp"
#include "trireme/ops/paged_attention.hpp"
#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of the key-value cache, in a struct cached_attention_on<Space> of its own: attention of one position of each
// sample over keys and values that were kept (trainer.generate). Documented in ops/cached_attention.hpp. Without it a
// model trains and predicts whole samples, and generating is a config_error.
//
//   attend_cached(y, qkv, kept, shape, row, count, scratch)
//
// For serving (serve::engine) paged_attention_on<Space> has attention of rows of many sequences over pages of keys and
// values. Documented in ops/paged_attention.hpp; without it an engine throws a config_error.
//
//   attend_paged(y, kept, qkv, rows, heads, scratch)

namespace detail {

template <class K, class V, class Space>
concept attends_cached = requires(typename V::y y, typename V::x x, attention_shape const& shape,
                                  arena<Space>& scratch) {
  K::attend_cached(y, x, x, shape, std::int64_t{}, std::int64_t{}, scratch);
};

template <class K, class V, class Space>
concept attends_paged = requires(typename V::y y, typename V::x x, paged_rows const& rows, paged_heads const& how,
                                 arena<Space>& scratch) {
  K::attend_paged(y, y, x, rows, how, scratch);
};

}  // namespace detail

/// Whether a memory space has attention over pages.
template <class Space, class Env>
concept paged_kernels = detail::attends_paged<paged_attention_on<Space>, detail::set_views<Space, Env>, Space>;

/// Whether a memory space has the kernels of the key-value cache.
template <class Space, class Env>
concept cache_kernels = detail::attends_cached<cached_attention_on<Space>, detail::set_views<Space, Env>, Space>;

}  // namespace trireme::ops
