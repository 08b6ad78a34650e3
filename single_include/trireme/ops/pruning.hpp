// Trireme 0.1.0: trireme/ops/pruning.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 0e48d152dfd08348ab43fa75d5f7767b9e69e479cdf8d1c3fa9fd9c76751d3bc
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/ops/pruning.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

namespace trireme::ops {

/// The kernels of optim::pruned in one memory space. A mask has the type of the values: 1 where an element is pruned, 0
/// elsewhere.
///
///     smallest(mask, value, count)          marks the `count` elements of smallest magnitude, earlier ones first
///     two_of_four(mask, value, distance)    marks two of each four elements at this distance: the smaller ones, and of
///                                           equal ones the earlier ones
///     clear(value, mask)                    value = 0 where the mask is 1
///
/// Shapes   value and mask (n). A distance d divides n into blocks of 4 d; element i of a group of four is at i d.
/// Threads  thread-safe on different tensors.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct pruning_on;

namespace detail {

struct pruning_checks {
 protected:
  template <class Value, class Mask>
  static void check(char const* who, Value const& value, Mask const& mask, std::int64_t distance = 0) {
    expects(assertion_level::light,
            value.size() == mask.size() && distance >= 0 && (distance == 0 || value.size() % (4 * distance) == 0), [&] {
              return text("trireme::ops::", who, ": ", value.size(), " values, a mask of ", mask.size(),
                          " and fours at a distance of ", distance, " do not fit");
            });
  }
};

}  // namespace detail

template <>
struct pruning_on<host> : detail::pruning_checks {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, host>>;

  template <class M>
  static void smallest(view<M> mask, input<M> value, std::int64_t count) {
    check("smallest", value, mask);
    auto const n = value.size();
    count = std::clamp<std::int64_t>(count, 0, n);
    M const* const from = raw(value);
    M* const to = raw(mask);
    std::fill_n(to, n, M{0});
    if (count == 0) return;
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), [&](std::int64_t a, std::int64_t b) {
      auto const x = std::abs(from[a]), y = std::abs(from[b]);
      return x < y || (!(y < x) && a < b);
    });
    for (std::int64_t i = 0; i < count; ++i) to[order[static_cast<std::size_t>(i)]] = M{1};
  }
  template <class M>
  static void two_of_four(view<M> mask, input<M> value, std::int64_t distance) {
    check("two_of_four", value, mask, distance);
    M const* const from = raw(value);
    M* const to = raw(mask);
    for (std::int64_t block = 0; block < value.size(); block += 4 * distance) {
      for (std::int64_t at = block; at < block + distance; ++at) {
        for (int i = 0; i < 4; ++i) {
          auto const mine = std::abs(from[at + i * distance]);
          int before = 0;  // elements that are pruned sooner
          for (int j = 0; j < 4; ++j) {
            auto const other = std::abs(from[at + j * distance]);
            before += other < mine || (!(mine < other) && j < i) ? 1 : 0;
          }
          to[at + i * distance] = before < 2 ? M{1} : M{0};
        }
      }
    }
  }
  template <class M>
  static void clear(view<M> value, input<M> mask) {
    check("clear", value, mask);
    M* const to = raw(value);
    for (std::int64_t i = 0; i < value.size(); ++i) to[i] = raw(mask)[i] > 0 ? M{0} : to[i];
  }
};

template <class Space>
requires without_elements<Space>
struct pruning_on<Space> : detail::pruning_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;

  template <class M>
  static void smallest(view<M> mask, input<M> value, std::int64_t) {
    note_kernel<Space>("smallest", mask, value);
    check("smallest", value, mask);
  }
  template <class M>
  static void two_of_four(view<M> mask, input<M> value, std::int64_t distance) {
    note_kernel<Space>("two_of_four", mask, value);
    check("two_of_four", value, mask, distance);
  }
  template <class M>
  static void clear(view<M> value, input<M> mask) {
    note_kernel<Space>("clear", value, mask);
    check("clear", value, mask);
  }
};

/// Whether a memory space has the kernels of optim::pruned.
template <class Space, class Env>
concept pruning_kernels = requires(tensor_view<typename Env::master, Space> values) {
  pruning_on<Space>::smallest(values, values, std::int64_t{});
  pruning_on<Space>::two_of_four(values, values, std::int64_t{});
  pruning_on<Space>::clear(values, values);
};

}  // namespace trireme::ops
