#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::parallel {

/// Collective. Gives every rank the values of `root`.
///
/// Bytes    a broadcast. If the communicator has none for these values, an all_reduce of their bytes as integers, to
///          which the other ranks add zeros: twice the bytes, the same bits.
template <class Comm, class T, class Space>
void broadcast(Comm& world, tensor_view<T, Space> values, int root) {
  if constexpr (has_broadcast<Comm, T, Space>) {
    world.broadcast(values, root);
  } else {
    if (world.size() == 1 || values.size() == 0) return;
    std::vector<T> here(static_cast<std::size_t>(values.size()));
    auto const bytes = here.size() * sizeof(T);
    std::vector<std::uint64_t> words((bytes + 7) / 8);
    if (world.rank() == root) {
      if constexpr (std::is_same_v<Space, host>) {
        std::memcpy(words.data(), values.address(), bytes);
      } else {
        ops::on<Space>::download(std::span<T>(here), tensor_view<T const, Space>(values));
        std::memcpy(words.data(), here.data(), bytes);
      }
    }
    world.all_reduce(tensor_view<std::uint64_t>(words), reduction::sum{});
    if (world.rank() == root) return;
    if constexpr (std::is_same_v<Space, host>) {
      std::memcpy(values.address(), words.data(), bytes);
    } else {
      std::memcpy(here.data(), words.data(), bytes);
      ops::on<Space>::upload(values, std::span<T const>(here));
    }
  }
}

/// Collective. The sum over all ranks, or the mean. If the communicator has none for these values, it is computed in
/// double.
template <class Op, class Comm, class T, class Space>
void sum_of_all(Comm& world, tensor_view<T, Space> values, Op op) {
  if constexpr (has_all_reduce<Comm, T, Op, Space>) {
    world.all_reduce(values, op);
  } else {
    std::vector<T> here(static_cast<std::size_t>(values.size()));
    ops::on<Space>::download(std::span<T>(here), tensor_view<T const, Space>(values));
    std::vector<double> sum(here.size());
    for (std::size_t i = 0; i < here.size(); ++i) sum[i] = static_cast<double>(here[i]);
    world.all_reduce(tensor_view<double>(sum), reduction::sum{});
    double const divisor = std::is_same_v<Op, reduction::mean> ? world.size() : 1;
    for (std::size_t i = 0; i < here.size(); ++i) here[i] = static_cast<T>(sum[i] / divisor);
    ops::on<Space>::upload(values, std::span<T const>(here));
  }
}

/// Collective. Whether all ranks have the same integer.
template <class Comm>
[[nodiscard]] bool is_same_everywhere(Comm& world, std::uint64_t number) {
  auto const bits = static_cast<std::int64_t>(number);
  std::int64_t bounds[2] = {bits, ~bits};
  world.all_reduce(tensor_view<std::int64_t>(bounds, shape{2}), reduction::min{});
  return bounds[0] == ~bounds[1];
}

namespace detail {

/// Collective. Returns one rank's text on every rank.
template <class Comm>
[[nodiscard]] std::string value_of_rank(Comm& world, int rank, std::string const& own) {
  auto length = static_cast<std::int64_t>(own.size());
  broadcast(world, tensor_view<std::int64_t>(&length, shape{1}), rank);
  std::vector<std::uint8_t> letters(static_cast<std::size_t>(length) + 1);  // so that an empty text has a message, too
  if (world.rank() == rank) std::memcpy(letters.data(), own.data(), own.size());
  broadcast(world, tensor_view<std::uint8_t>(letters), rank);
  return {reinterpret_cast<char const*>(letters.data()), static_cast<std::size_t>(length)};
}

}  // namespace detail
}  // namespace trireme::parallel
