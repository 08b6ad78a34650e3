#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/ops/sets/set.hpp"

namespace trireme::ops {

// The set of an exchange of parameters: every trainer, make_exchange, and communicators (comm/space_kernels.hpp).
//
//   fill(y, value)                          y[i] = value
//   copy(y, x)                              y[i] = x[i], rounded to the type of y. The views may be the same. For
//                                           communicators also of std::uint8_t.
//   add(y, x)                               y[i] += x[i]
//   scale(y, factor)                        y[i] *= factor
//   accumulate(y, x, weight)                y[i] += weight * x[i]; x may be of another type
//   upload(y, memory), download(memory, x)  elements from and to memory of this process
//   initialise(y, start, seed, name, first) the initial values of a range of a parameter, from its element `first` on;
//                                           element i of the parameter depends on (seed, name, i) alone
//   hash(x, name, first)                    the wrapping sum of hash_element(name, first + i, bits of x[i])
//                                           (core/hash.hpp): hashes of parts add up
//   sum_of_squares(x, exact_sum&)           adds the sum of squares of each block of 1024 elements, in double; the
//                                           first block starts at the view's first element
//   finite(x)                               whether no element is infinite or NaN
//   reduce(outputs, terms, op, divisor)     outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order. The set
//                                           asks for reduction::sum; a communicator has those others that reduce takes.
//                                           A mean is the sum divided by `divisor`, an int.
//
// Shapes   all views of one call have the same number of elements; y and x are contiguous.
// Numerics bfloat16 and float16 are computed in float and rounded once. Sums have the order of the terms.
// Threads  called by each rank's thread; different outputs at the same time.

namespace detail {

template <class K, class T, class Space>
concept stores = requires(tensor_view<T, Space> y, tensor_view<T const, Space> x, std::span<T> memory, initial start) {
  K::fill(y, 0.0);
  K::upload(y, std::span<T const>(memory));
  K::download(memory, x);
  { K::hash(x, std::uint64_t{}, std::int64_t{}) } -> std::convertible_to<std::uint64_t>;
  K::initialise(y, start, std::uint64_t{}, std::uint64_t{}, std::int64_t{});
};
template <class K, class To, class From, class Space>
concept converts = requires(tensor_view<To, Space> y, tensor_view<From const, Space> x) {
  K::copy(y, x);
};
template <class K, class Env, class Space>
concept sums = requires(tensor_view<typename Env::gradient, Space> y,
                        tensor_view<typename Env::gradient const, Space> x,
                        tensor_view<typename Env::param const, Space> theirs, exact_sum& squares,
                        std::span<tensor_view<typename Env::gradient, Space> const> outputs,
                        std::span<tensor_view<typename Env::gradient const, Space> const> terms) {
  K::add(y, x);
  K::scale(y, 1.0);
  K::accumulate(y, theirs, 1.0);
  K::sum_of_squares(x, squares);
  K::reduce(outputs, terms, reduction::sum{});
  { K::finite(x) } -> std::convertible_to<bool>;
};
// clang-format 14 would indent each term of this conjunction further than the one before it.
// clang-format off
template <class K, class Env, class Space>
concept exchanges =
    stores<K, typename Env::param, Space> && stores<K, typename Env::master, Space> &&
    stores<K, typename Env::gradient, Space> &&
    converts<K, typename Env::param, typename Env::master, Space> &&
    converts<K, typename Env::master, typename Env::param, Space> &&
    converts<K, typename Env::param, typename Env::gradient, Space> &&
    converts<K, typename Env::reduce, typename Env::gradient, Space> &&
    converts<K, typename Env::gradient, typename Env::reduce, Space> && sums<K, Env, Space>;
// clang-format on

}  // namespace detail

/// Whether a memory space has the kernels of an exchange of parameters in a precision.
template <class Space, class Env>
concept exchange_kernels = complete_kernels<Space> || detail::exchanges<on<Space>, Env, Space>;

}  // namespace trireme::ops
