#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/embedding_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// Whether rows of T are summed to rows of G.
template <class G, class T>
concept cuda_sums = cuda_float<T> &&(std::is_same_v<G, T> || std::is_same_v<G, accumulate_t<T>>);

}  // namespace detail

/// Lookup of rows of a table by tokens, in CUDA memory.
///
/// Views are checked as on<host> checks them, but for the tokens, which the host does not read: a token outside the
/// table counts as a row of 0, and its gradient is added nowhere. Work is queued on cuda::stream() of the calling
/// thread.
///
/// Numerics embed and embed_segments have the host's bits. Gradients are sums in the accumulate type and are rounded
///          once; their order depends on the tokens and shapes alone. A word's rows are added to its row of dtable in
///          their order if it has up to 32, so these have the host's bits if dtable is float or double. The rows of
///          other words are summed in pieces of 32, the pieces in eight equal parts, and then the parts. dpositions[t]
///          is summed in the order of samples; if it has fewer than 2^17 elements and there are more than 64 samples,
///          in pieces of 64, and those in sixteen equal parts.
/// Bytes    backward passes use cuda_scratch: 16 bytes a token, and one row of sums for 16 rows of dy.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if the sizes do not fit; device_error with CUDA's message if work cannot be queued.
struct cuda_embedding {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// y[b, t] = table[tokens[b, t]] + positions[t]; rows of the table that another rank holds count as 0.
  /// Shapes   y (B, T, C) or (B*T, C); tokens (B, T); table (V, C); positions (P, C) with P >= T, or empty.
  template <detail::cuda_float T>
  static void embed(view<T> y, view<std::int32_t const> tokens, input<T> table, input<T> positions,
                    table_range part = {}) {
    auto const channels = table.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed", y.size(), tokens.size() * channels);
    expect_positions("embed", positions, context, channels);
    detail::expect_cuda("embed", cuda_kernels::embed(cuda::stream(), dtype_of<T>, raw(y), raw(tokens), raw(table),
                                                     positions.empty() ? nullptr : raw(positions), tokens.size(),
                                                     context, channels, part.first, table.extent(0)));
  }

  /// dtable[tokens[b, t]] += dy[b, t]; dpositions[t] += dy[b, t].
  /// Shapes   as embed's, fewer than 2^31 tokens; dpositions may be empty. G is T or its accumulate type.
  template <class G, class T>
  requires detail::cuda_sums<G, std::remove_const_t<T>>
  static void embed_backward(view<G> dtable, output<G> dpositions, view<T> dy, view<std::int32_t const> tokens,
                             table_range part = {}) {
    auto const channels = dtable.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed_backward", dy.size(), tokens.size() * channels);
    expect_positions("embed_backward", dpositions, context, channels);
    cuda_kernels::embed_backward_call call{.of_gradients = dtype_of<G>,
                                           .dtable = raw(dtable),
                                           .dpositions = dpositions.empty() ? nullptr : raw(dpositions),
                                           .of = dtype_of<std::remove_const_t<T>>,
                                           .dy = raw(dy),
                                           .tokens = raw(tokens),
                                           .rows = tokens.size(),
                                           .context = context,
                                           .channels = channels,
                                           .first = part.first,
                                           .words = dtable.extent(0)};
    call.scratch = detail::cuda_scratch("embed_backward", cuda_kernels::embed_backward_scratch(call));
    detail::expect_cuda("embed_backward", cuda_kernels::embed_backward(cuda::stream(), call));
  }

  /// y[b, t] += table[s], where s is the number of separators before t in the sample, at most the index of the last
  /// row.
  /// Shapes   y (B, T, C) or (B*T, C); tokens (B, T); table (S, C).
  template <detail::cuda_float T>
  static void embed_segments(view<T> y, view<std::int32_t const> tokens, std::int32_t separator, input<T> table) {
    detail::same_size("embed_segments", y.size(), tokens.size() * table.extent(1));
    if (tokens.empty()) return;
    auto* const segments =
        static_cast<std::int32_t*>(detail::cuda_scratch("embed_segments", segment_bytes(tokens.size())));
    count_separators("embed_segments", segments, tokens, separator, table.extent(0));
    detail::expect_cuda("embed_segments",
                        cuda_kernels::add_embedded(cuda::stream(), dtype_of<T>, raw(y), segments, raw(table),
                                                   tokens.size(), table.extent(1), table.extent(0)));
  }
  /// dtable[s] += dy[b, t].
  template <class G, class T>
  requires detail::cuda_sums<G, std::remove_const_t<T>>
  static void embed_segments_backward(view<G> dtable, view<T> dy, view<std::int32_t const> tokens,
                                      std::int32_t separator) {
    auto const channels = dtable.extent(1);
    detail::same_size("embed_segments_backward", dy.size(), tokens.size() * channels);
    if (tokens.empty()) return;
    cuda_kernels::embed_backward_call call{.of_gradients = dtype_of<G>,
                                           .dtable = raw(dtable),
                                           .of = dtype_of<std::remove_const_t<T>>,
                                           .dy = raw(dy),
                                           .rows = tokens.size(),
                                           .context = tokens.extent(tokens.rank() - 1),
                                           .channels = channels,
                                           .words = dtable.extent(0)};
    auto const own = segment_bytes(tokens.size());
    auto* const scratch = static_cast<char*>(
        detail::cuda_scratch("embed_segments_backward", own + cuda_kernels::embed_backward_scratch(call)));
    auto* const segments = reinterpret_cast<std::int32_t*>(scratch);
    count_separators("embed_segments_backward", segments, tokens, separator, dtable.extent(0));
    call.tokens = segments;
    call.scratch = scratch + own;
    detail::expect_cuda("embed_segments_backward", cuda_kernels::embed_backward(cuda::stream(), call));
  }

 private:
  template <class P>
  static void expect_positions(char const* who, P const& positions, std::int64_t context, std::int64_t channels) {
    expects(assertion_level::light, positions.empty() || positions.size() >= context * channels, [&] {
      return text("trireme::ops::", who, ": ", how_many(context, "position"), " needed, but only ", positions.extent(0),
                  " in the table");
    });
  }
  static void count_separators(char const* who, std::int32_t* segments, view<std::int32_t const> tokens,
                               std::int32_t separator, std::int64_t rows) {
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::expect_cuda(
        who, cuda_kernels::count_separators(cuda::stream(), segments, raw(tokens), tokens.size() / context, context,
                                            separator, static_cast<std::int32_t>(rows - 1)));
  }
  static std::size_t segment_bytes(std::int64_t tokens) {
    return (static_cast<std::size_t>(tokens) * sizeof(std::int32_t) + 255) / 256 * 256;
  }
};

}  // namespace trireme::ops
