#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/core/arena.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/attention_launch.hpp"
#include "trireme/ops/cuda/cudnn_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// Throws config_error for heads that the kernels of CUDA memory do not take.
inline void expect_cuda_head(char const* who, std::int64_t width) {
  if (width <= cuda_kernels::widest_head) return;
  throw config_error(text("trireme::ops::", who, ": heads of ", how_many(width, "column"),
                          " are not supported in CUDA memory, but of at most ", cuda_kernels::widest_head,
                          "; use more heads"));
}

/// What attention and its blocks have in common: types, sizes, dropout.
template <class T>
[[nodiscard]] cuda_kernels::attention_work cuda_attention_work(attention_shape const& shape, std::int64_t rows,
                                                               dropout_site_in<cuda> const& dropout) {
  auto const width = shape.head_channels();
  cuda_kernels::attention_work work;
  work.stream = cuda::stream();
  work.of = dtype_of<T>;
  work.batch = shape.batch;
  work.heads = shape.heads;
  work.width = width;
  work.rows = rows;
  work.keys = rows;
  work.scale = 1 / std::sqrt(static_cast<double>(width));
  work.mask = shape.mask;
  work.lse_next_head = shape.context;
  if (dropout.active()) {
    work.dropout = dropout.probability;
    work.random = dropout.key;
    work.site = dropout.site;
    work.samples = raw(dropout.samples);
  }
  work.first_head = shape.first_head;
  work.whole = shape.context;
  return work;
}

}  // namespace detail

/// Self-attention with several heads, and attention block by block, in CUDA memory: what host_attention and
/// host_attention_block compute.
///
/// 16-bit types without dropout and without `seen` use cuDNN where it is available and takes the shape, unless the
/// environment variable TRIREME_ATTENTION is `own`.
///
/// Shapes   as those of host_attention and host_attention_block; heads of at most 256 columns.
/// Bytes    scratch: none in the forward pass and a number a query and head in the backward pass, besides what cuDNN
///          needs. No (T, T) matrix.
/// Numerics softmax and sums in the accumulate type, in a fixed order: results repeat, and a sample's does not depend
///          on the others. With tensor cores, probabilities and their gradients are rounded to the element type for
///          products.
/// Threads  one caller per arena.
/// Errors   assertion_error (light) if the sizes do not fit; config_error for wider heads; device_error with CUDA's
///          message if work cannot be queued.
struct cuda_attention {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// y = softmax(mask(q k^T / sqrt(D))) v. Dropout, if any, applies to the probabilities, with the host's numbers.
  template <detail::cuda_float T>
  static void attention(view<T> y, output<accumulate_t<T>> lse, input<T> qkv, attention_shape shape,
                        arena<cuda>& scratch, dropout_site_in<cuda> const& dropout,
                        view<std::int32_t const> seen = {}) {
    check("attention", shape, qkv.size(), y.size(), lse.size(), seen.size(), dropout);
    if (y.empty()) return;
    if constexpr (storage_float<T>) {
      if (!dropout.active() && seen.empty()) {
        auto call = cudnn_call<T>(shape, raw(qkv), raw(y), raw(lse));
        if (cuda_kernels::cudnn_takes(call)) {
          with_workspace(scratch, cuda_kernels::cudnn_workspace(call, false),
                         [&](void* workspace) { queued("attention", cuda_kernels::cudnn_attention(call, workspace)); });
          return;
        }
      }
    }
    auto work = detail::cuda_attention_work<T>(shape, shape.context, dropout);
    whole_rows<T>(work, shape, raw(qkv), seen);
    work.y = rows_of<void*>(raw(y), shape, shape.channels);
    work.lse = raw(lse);
    queued("attention", cuda_kernels::attention(work));
  }

  /// The gradient of attention: dqkv is written. y and lse are the results of the forward pass.
  template <detail::cuda_float T>
  static void attention_backward(view<T> dqkv, input<T> dy, input<T> y, input<accumulate_t<T>> lse, input<T> qkv,
                                 attention_shape shape, arena<cuda>& scratch, dropout_site_in<cuda> const& dropout,
                                 view<std::int32_t const> seen = {}) {
    check("attention_backward", shape, qkv.size(), y.size(), lse.size(), seen.size(), dropout);
    detail::same_size("attention_backward", dqkv.size(), qkv.size());
    detail::same_size("attention_backward", dy.size(), y.size());
    if (y.empty()) return;
    if constexpr (storage_float<T>) {
      if (!dropout.active() && seen.empty()) {
        // The call's y and lse are only read.
        auto call = cudnn_call<T>(shape, raw(qkv), const_cast<T*>(raw(y)), const_cast<float*>(raw(lse)));
        call.dy = raw(dy);
        call.dqkv = raw(dqkv);
        if (cuda_kernels::cudnn_takes(call)) {
          with_workspace(scratch, cuda_kernels::cudnn_workspace(call, true), [&](void* workspace) {
            queued("attention_backward", cuda_kernels::cudnn_attention_backward(call, workspace));
          });
          return;
        }
      }
    }
    auto work = detail::cuda_attention_work<T>(shape, shape.context, dropout);
    whole_rows<T>(work, shape, raw(qkv), seen);
    auto const c = shape.channels;
    backward_inputs<T>(work, shape, raw(dy), raw(y), raw(lse));
    work.dqueries = rows_of<void*>(raw(dqkv), shape, 3 * c);
    work.dkey = rows_of<void*>(raw(dqkv) + c, shape, 3 * c);
    work.dvalue = rows_of<void*>(raw(dqkv) + 2 * c, shape, 3 * c);
    backward<T>("attention_backward", work, scratch);
  }

  /// Updates y and lse to include these keys. They start as 0 and minus infinity.
  template <detail::cuda_float T>
  static void attend_block(output<accumulate_t<T>> y, output<accumulate_t<T>> lse, view<T> qkv, input<T> pairs,
                           attention_shape shape, attention_block at, arena<cuda>& /*scratch*/,
                           dropout_site_in<cuda> const& dropout) {
    check("attend_block", shape, at, qkv.size(), pairs.size(), y.size(), lse.size(), dropout);
    if (y.empty() || at.rows == 0) return;
    auto work = block_work<T>(shape, at, raw(qkv), raw(pairs), dropout);
    work.y = rows_of<void*>(raw(y) + at.query_row * shape.channels, shape, shape.channels);
    work.lse = raw(lse) + at.query_row;
    queued("attend_block", cuda_kernels::attention(work));
  }

  /// Adds the gradients between these queries and keys to dqueries (B*T, C) and dpairs (B*T, 2C). y and lse are those
  /// over all keys.
  template <detail::cuda_float T>
  static void attend_block_backward(output<accumulate_t<T>> dqueries, output<accumulate_t<T>> dpairs, view<T> dy,
                                    input<T> y, input<accumulate_t<T>> lse, input<T> qkv, input<T> pairs,
                                    attention_shape shape, attention_block at, arena<cuda>& scratch,
                                    dropout_site_in<cuda> const& dropout) {
    check("attend_block_backward", shape, at, qkv.size(), pairs.size(), y.size(), lse.size(), dropout);
    detail::same_size("attend_block_backward", dqueries.size(), y.size());
    detail::same_size("attend_block_backward", dpairs.size(), pairs.size());
    detail::same_size("attend_block_backward", dy.size(), y.size());
    if (y.empty() || at.rows == 0) return;
    auto const c = shape.channels;
    auto work = block_work<T>(shape, at, raw(qkv), raw(pairs), dropout);
    backward_inputs<T>(work, shape, raw(dy) + at.query_row * c, raw(y) + at.query_row * c, raw(lse) + at.query_row);
    work.dqueries = rows_of<void*>(raw(dqueries) + at.query_row * c, shape, c);
    work.dkey = rows_of<void*>(raw(dpairs) + at.key_row * 2 * c, shape, 2 * c);
    work.dvalue = rows_of<void*>(raw(dpairs) + at.key_row * 2 * c + c, shape, 2 * c);
    backward<T>("attend_block_backward", work, scratch);
  }

 private:
  static void queued(char const* who, int code) { detail::expect_cuda(who, code); }

  static void check(char const* who, attention_shape const& shape, std::int64_t qkv, std::int64_t y, std::int64_t lse,
                    std::int64_t seen, dropout_site_in<cuda> const& dropout) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    if (seen != 0) detail::same_size(who, seen, 2 * rows);
    check_heads(who, shape, dropout);
  }
  static void check(char const* who, attention_shape const& shape, attention_block const& at, std::int64_t qkv,
                    std::int64_t pairs, std::int64_t y, std::int64_t lse, dropout_site_in<cuda> const& dropout) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, pairs, rows * 2 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    expects(assertion_level::light, at.query_row + at.rows <= shape.context && at.key_row + at.rows <= shape.context,
            [&] {
              return text("trireme::ops::", who, ": ", how_many(at.rows, "query"), " from position ", at.first_query,
                          " on, over keys from ", at.first_key, agreeing(at.rows, " on, does", " on, do"), " not fit ",
                          how_many(shape.context, "row"));
            });
    check_heads(who, shape, dropout);
  }
  static void check_heads(char const* who, attention_shape const& shape, dropout_site_in<cuda> const& dropout) {
    expects(assertion_level::light, shape.heads > 0 && shape.channels % shape.heads == 0, [&] {
      return text("trireme::ops::", who, ": ", how_many(shape.channels, "channel"),
                  agreeing(shape.channels, " does", " do"), " not divide into ", how_many(shape.heads, "head"));
    });
    if (dropout.active()) detail::same_size(who, dropout.sample_count(), shape.batch);
    detail::expect_cuda_head(who, shape.head_channels());
  }

  template <class Address>
  static cuda_kernels::attention_rows<Address> rows_of(Address address, attention_shape const& shape,
                                                       std::int64_t next_row) {
    return {address, next_row, shape.context * next_row};
  }
  template <class T>
  static void whole_rows(cuda_kernels::attention_work& work, attention_shape const& shape, T const* qkv,
                         view<std::int32_t const> seen) {
    auto const c = shape.channels;
    work.queries = rows_of<void const*>(qkv, shape, 3 * c);
    work.key = rows_of<void const*>(qkv + c, shape, 3 * c);
    work.value = rows_of<void const*>(qkv + 2 * c, shape, 3 * c);
    if (!seen.empty()) work.seen = raw(seen);
  }
  template <class T>
  static cuda_kernels::attention_work block_work(attention_shape const& shape, attention_block const& at, T const* qkv,
                                                 T const* pairs, dropout_site_in<cuda> const& dropout) {
    auto work = detail::cuda_attention_work<T>(shape, at.rows, dropout);
    auto const c = shape.channels;
    work.queries = rows_of<void const*>(qkv + at.query_row * 3 * c, shape, 3 * c);
    work.key = rows_of<void const*>(pairs + at.key_row * 2 * c, shape, 2 * c);
    work.value = rows_of<void const*>(pairs + at.key_row * 2 * c + c, shape, 2 * c);
    work.ahead = at.first_query - at.first_key;
    work.first_query = at.first_query;
    work.first_key = at.first_key;
    work.whole = at.whole;
    work.merges = true;
    return work;
  }
  template <class T>
  static void backward_inputs(cuda_kernels::attention_work& work, attention_shape const& shape, T const* dy, T const* y,
                              accumulate_t<T> const* lse) {
    work.dy = rows_of<void const*>(dy, shape, shape.channels);
    work.y = rows_of<void*>(const_cast<T*>(y), shape, shape.channels);  // the backward pass reads it
    work.lse = const_cast<accumulate_t<T>*>(lse);                       // and this
  }
  template <class T>
  static void backward(char const* who, cuda_kernels::attention_work& work, arena<cuda>& scratch) {
    auto const mark = scratch.mark();
    work.delta = raw(scratch.template take<accumulate_t<T>>({work.batch * work.heads * work.rows}));
    queued(who, cuda_kernels::attention_backward(work));
    scratch.rewind(mark);
  }

  template <class T>
  static cuda_kernels::attention_call cudnn_call(attention_shape const& shape, T const* qkv, T* y, float* lse) {
    cuda_kernels::attention_call call;
    call.stream = cuda::stream();
    call.of = dtype_of<T>;
    call.batch = shape.batch;
    call.context = shape.context;
    call.heads = shape.heads;
    call.width = shape.head_channels();
    call.causal = shape.mask.causal;
    call.window = shape.mask.window;
    call.scale = 1 / std::sqrt(static_cast<double>(call.width));
    call.qkv = qkv;
    call.y = y;
    call.lse = lse;
    return call;
  }
  template <class Body>
  static void with_workspace(arena<cuda>& scratch, std::size_t bytes, Body const& body) {
    auto const mark = scratch.mark();
    body(bytes == 0 ? nullptr : raw(scratch.template take<std::byte>({static_cast<std::int64_t>(bytes)})));
    scratch.rewind(mark);
  }
};

}  // namespace trireme::ops
