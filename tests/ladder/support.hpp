#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/text.hpp"

/// The ladder: one source for every communicator, one rung a collective. Rungs throw, because Catch2's checks are for
/// one thread only.
namespace ladder {

using trireme::tensor_view;
using trireme::text;

template <class... Parts>
void expect(bool condition, Parts const&... what) {
  if (!condition) throw std::runtime_error(text(what...));
}

/// What rank `rank` puts into place `i`: anything, and floats of many magnitudes, so that another order of summing
/// shows.
template <class T>
T value(int rank, std::int64_t i) {
  auto const bits = trireme::mix(static_cast<std::uint64_t>(i) * 1000 + static_cast<std::uint64_t>(rank));
  auto const small = static_cast<double>(bits >> 40) / (1 << 24) - 0.5;
  auto const number = small * static_cast<double>(1 << (bits % 20));
  if constexpr (std::is_same_v<T, double>)
    return number;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(bits);
  else
    return T(static_cast<float>(number));
}

template <class T>
std::vector<T> const& values_of_rank(int rank, std::int64_t count) {
  thread_local std::vector<T> known;
  thread_local int of = -1;
  if (of != rank) known.clear();
  of = rank;
  for (auto i = static_cast<std::int64_t>(known.size()); i < count; ++i) known.push_back(value<T>(rank, i));
  return known;
}
template <class T>
std::vector<T> values(int rank, std::int64_t count) {
  auto const& all = values_of_rank<T>(rank, count);
  return {all.begin(), all.begin() + count};
}

/// One place of a reduction by the book: in rank order, bfloat16 in float, rounded once.
template <class T, class Op>
T reduced(int ranks, std::int64_t i, Op) {
  using A = std::conditional_t<std::is_same_v<T, trireme::bfloat16>, float, T>;
  auto result = static_cast<A>(value<T>(0, i));
  for (int rank = 1; rank < ranks; ++rank) {
    auto const next = static_cast<A>(value<T>(rank, i));
    if constexpr (std::is_same_v<Op, trireme::reduction::sum>)
      result = static_cast<A>(result + next);
    else if constexpr (std::is_same_v<Op, trireme::reduction::max>)
      result = result < next ? next : result;
    else
      result = next < result ? next : result;
  }
  return static_cast<T>(result);
}

template <class T>
bool same_bits(T const& a, T const& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// "all_reduce F32 x 7 on threads, rank 1 of 3"
template <class T, class World>
std::string where(World const& world, char const* operation, std::int64_t count) {
  return text(operation, " ", trireme::name_of(trireme::dtype_of<T>), " x ", count, " on ", World::name, ", rank ",
              world.rank(), " of ", world.size());
}

/// Large messages are checked at every 13th element and at both ends: by the book is slow.
inline std::int64_t next_checked(std::int64_t i, std::int64_t count) {
  return count < 5000 || i < 100 || i >= count - 100 ? i + 1 : std::min(i + 13, count - 100);
}

/// Calls `visit(T{}, count)` for every element type and for the sizes 0, 1, odd, and about 1 MiB.
template <class Visit>
void for_types_and_sizes(Visit visit) {
  auto const sizes = [&]<class T>(T zero) {
    for (std::int64_t const count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{1001},
                                     static_cast<std::int64_t>((1 << 20) / sizeof(T)) + 3})
      visit(zero, count);
  };
  sizes(float{});
  sizes(double{});
  sizes(trireme::bfloat16{});
  sizes(std::int32_t{});
  sizes(std::int64_t{});
  sizes(std::uint64_t{});
  sizes(std::uint8_t{});
}

}  // namespace ladder
