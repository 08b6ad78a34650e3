#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

// What a memory space of your own needs: a class with name, alignment, allocate and deallocate (core/space.hpp), the
// operations that communicators use (comm/space_kernels.hpp), and kernels, a struct ops::on<Space> of static functions.
// A trainer of a plain model needs exchange_kernels and the kernels of its optimizer and compressor (adamw or sgd;
// select_largest and scatter); a trainer of the layers of nn also needs layer_kernels.

namespace detail {

template <class K, class T, class Space>
concept stores = requires(tensor_view<T, Space> y, tensor_view<T const, Space> x, std::span<T> memory, initial start) {
  K::fill(y, 0.0);                           // every element becomes this number
  K::upload(y, std::span<T const>(memory));  // y = elements in host memory
  K::download(memory, x);                    // elements in host memory = x
  // A sum over the elements of a hash of (name, index in the tensor, bits): hashes of parts add up.
  { K::hash(x, std::uint64_t{}, std::int64_t{}) } -> std::convertible_to<std::uint64_t>;
  // Initial values of the elements from an index on; each depends on (seed, name, index) alone.
  K::initialise(y, start, std::uint64_t{}, std::uint64_t{}, std::int64_t{});
};
template <class K, class To, class From, class Space>
concept converts = requires(tensor_view<To, Space> y, tensor_view<From const, Space> x) {
  K::copy(y, x);  // y = x, each element rounded to y's type
};

}  // namespace detail

// clang-format 14 would indent each term of this conjunction further than the one before it.
// clang-format off
/// The kernels of an exchange of parameters in a precision: storing, converting between element types, summing, and
/// checking. Sums and hashes are exact in the sense of core/exact_sum.hpp and core/hash.hpp.
template <class Space, class Env>
concept exchange_kernels =
    detail::stores<on<Space>, typename Env::param, Space> &&
    detail::stores<on<Space>, typename Env::master, Space> &&
    detail::stores<on<Space>, typename Env::gradient, Space> &&
    detail::converts<on<Space>, typename Env::param, typename Env::master, Space> &&
    detail::converts<on<Space>, typename Env::master, typename Env::param, Space> &&
    detail::converts<on<Space>, typename Env::param, typename Env::gradient, Space> &&
    detail::converts<on<Space>, typename Env::reduce, typename Env::gradient, Space> &&
    detail::converts<on<Space>, typename Env::gradient, typename Env::reduce, Space> &&
    requires(tensor_view<typename Env::gradient, Space> y, tensor_view<typename Env::gradient const, Space> x,
             tensor_view<typename Env::param const, Space> theirs, exact_sum& squares,
             std::span<tensor_view<typename Env::gradient, Space> const> outputs,
             std::span<tensor_view<typename Env::gradient const, Space> const> terms) {
      on<Space>::add(y, x);                                   // y += x
      on<Space>::accumulate(y, theirs, 1.0);                  // y += weight * theirs
      on<Space>::sum_of_squares(x, squares);                  // adds the sum of each block of 1024 squares, exactly
      on<Space>::reduce(outputs, terms, reduction::sum{});    // each y = the sum of the x's, in their order
      { on<Space>::finite(x) } -> std::convertible_to<bool>;  // whether no element is infinite or NaN
    };
// clang-format on

namespace detail {

template <class K, class Env, class Space>
concept multiplies = requires(tensor_view<typename Env::compute, Space> y, tensor_view<typename Env::gradient, Space> g,
                              weights<typename Env::param, Space>& w, arena<Space>& scratch,
                              tensor_view<typename Env::accumulate, Space> sums, attention_shape const& shape,
                              dropout_site const& drop, tensor_view<std::int32_t const, Space> seen) {
  K::linear(y, y, w, {});                                      // y = residual + act(x w + bias)
  K::linear_backward_input(y, y, w, {});                       // dx (+)= (dy w^T) * act'(before)
  K::linear_backward_weight(g, g, y, y, orientation::in_out);  // dw += x^T dy; db += the sum of dy's rows
  K::attention(y, sums, y, shape, scratch, drop, seen);        // softmax(mask(q k^T / sqrt(d))) v
  K::attention_backward(y, y, y, sums, y, shape, scratch, drop, seen);
};
template <class K, class Env, class Space>
concept normalises = requires(tensor_view<typename Env::compute, Space> y, tensor_view<typename Env::gradient, Space> g,
                              tensor_view<typename Env::accumulate, Space> sums,
                              tensor_view<std::int32_t const, Space> tokens) {
  K::layer_norm(y, sums, sums, y, y, y, 1e-5);  // y = (x - mean) rstd gain + bias, row by row
  K::layer_norm_backward(y, g, g, y, y, sums, sums, y, false);
  K::embed(y, tokens, y, y);           // y = rows of the table, and of the positions
  K::embed_backward(g, g, y, tokens);  // adds rows of dy to those of the table's gradient
};
template <class K, class Env, class Space>
concept scores = requires(tensor_view<typename Env::compute, Space> y, tensor_view<std::int32_t const, Space> tokens,
                          tensor_view<float const, Space> numbers, dropout_site const& drop) {
  { K::cross_entropy(y, tokens, 1.0, true) } -> std::same_as<loss_sum>;   // and logits become their gradient
  { K::squared_error(y, y, numbers, 1.0) } -> std::same_as<loss_sum>;     // and dy is written
  K::activate_backward(y, y, y, activation::gelu);                        // dx = dy act'(x)
  K::dropout(y, drop);                                                    // y * mask / (1 - p)
  K::copy_columns(y, std::int64_t{}, y, std::int64_t{}, std::int64_t{});  // some columns of x into some of y
};

}  // namespace detail

/// The kernels of the layers of nn, besides those of an exchange. (Experts also need those of routing; tensor and
/// context groups need those of parts; an expression needs those of its layers: rms_norm and rms_norm_backward,
/// elementwise_product, activate, arrange_heads and its companions, visible_keys. The shortest complete example is
/// ops/phantom.hpp.)
template <class Space, class Env>
concept layer_kernels = exchange_kernels<Space, Env> && detail::multiplies<on<Space>, Env, Space> &&
    detail::normalises<on<Space>, Env, Space> && detail::scores<on<Space>, Env, Space>;

/// Spaces of this library, whose kernels are complete and are not checked.
template <class Space>
inline constexpr bool has_all_kernels = std::is_same_v<Space, host> || std::is_same_v<Space, phantom>;

}  // namespace trireme::ops
