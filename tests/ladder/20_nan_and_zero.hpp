#pragma once

#include <limits>

#include "support.hpp"

namespace ladder {

/// The value of rank `rank` of `ranks` at index i: NaN of either sign on one rank, zeros of both signs, infinities, the
/// smallest numbers, and normal ones.
template <class T>
T special_value(int rank, int ranks, std::int64_t i) {
  using limits = std::numeric_limits<float>;
  bool const chosen = rank == static_cast<int>((i / 8) % ranks);
  auto const plain = static_cast<float>((i * 7 + rank * 3) % 11 - 5);
  auto const nan = i / 8 % 2 == 0 ? limits::quiet_NaN() : -limits::quiet_NaN();
  switch (i % 8) {
    case 0:
      return T(chosen ? nan : plain);
    case 1:
      return T(chosen ? 0.0F : -0.0F);
    case 2:
      return T(chosen ? -0.0F : 0.0F);
    case 3:
      return T(chosen ? nan : rank % 2 == 0 ? limits::infinity() : -limits::infinity());
    case 4:
      return T(chosen ? -limits::infinity() : -plain);
    case 5:
      return T(chosen ? 0x1p-24F : -0x1p-24F);  // the smallest of float16
    case 6:
      return T(chosen ? nan : -0.0F);
    default:
      return T(plain);
  }
}

/// NaN wins, and -0 < +0, in max and min of every length: shorter than a vector, with a rest after the vectors, and cut
/// into blocks. All ranks have the same bits, also of NaN.
template <class Op, class T, class World>
void extremes(World& world, Op op, std::int64_t count) {
  int const p = world.size();
  constexpr bool largest = std::is_same_v<Op, reduction::max>;
  auto const values_at = [&](int rank, std::int64_t i) { return static_cast<double>(special_value<T>(rank, p, i)); };
  auto const wanted = [&](std::int64_t i) {
    double best = values_at(0, i);
    for (int rank = 1; rank < p; ++rank) {
      double const next = values_at(rank, i);
      bool const is_larger = next > best || (next == best && std::signbit(best) && !std::signbit(next));
      bool const is_smaller = next < best || (next == best && !std::signbit(best) && std::signbit(next));
      if (!std::isnan(best) && (std::isnan(next) || (largest ? is_larger : is_smaller))) best = next;
    }
    return best;
  };
  auto const whole = count * p;
  std::vector<T> given;
  for (std::int64_t i = 0; i < whole; ++i) given.push_back(special_value<T>(world.rank(), p, i));
  auto const check = [&](auto const& got, std::int64_t first, std::int64_t n, char const* operation, how way) {
    for (std::int64_t i = first; i < first + n; ++i) {
      auto const is = static_cast<double>(got[static_cast<std::size_t>(i)]);
      auto const should = wanted(i);
      bool const right = std::isnan(should) ? std::isnan(is) : is == should && std::signbit(is) == std::signbit(should);
      expect(right, where<T>(world, operation, whole, way), largest ? ", max" : ", min", ": element ", i, " is ", is,
             " instead of ", should);
    }
  };
  for (auto const way : {how{false, false}, how{true, true}}) {
    message<T, World> all(world, whole, way, given.data());
    call(
        way, [&] { world.all_reduce(all.view(), op); }, [&] { return world.all_reduce_async(all.view(), op); });
    auto const got = all.read();
    check(got, 0, whole, "all_reduce", way);
    std::vector<T> const mine(got.begin(), got.end());
    world.broadcast(all.view(), p - 1);
    expect_same(all.read(), 0, mine.data(), whole, where<T>(world, "all_reduce on another rank", whole, way));

    all.fill(given.data());
    call(
        way, [&] { world.reduce_scatter(all.view(), op); }, [&] { return world.reduce_scatter_async(all.view(), op); });
    check(all.read(), count * world.rank(), count, "reduce_scatter", way);
    if constexpr (trireme::has_reduce<World, T, Op, space_of_world<World>>) {
      all.fill(given.data());
      world.reduce(all.view(), p - 1, op);
      if (world.rank() == p - 1) check(all.read(), 0, whole, "reduce", way);
    }
  }
}

template <class World>
void nan_and_zero(World& world) {
  if (!is_ordered<World>() && World::name.find("nccl") != std::string_view::npos)
    return skipped(world, "meaning of NaN of its own");
  auto const on = [&]<class T>(T) {
    for (std::int64_t const count : {1, 5, 33, 130, 1001, 6000}) {
      extremes<reduction::max, T>(world, reduction::max{}, count);
      extremes<reduction::min, T>(world, reduction::min{}, count);
    }
  };
  on(float{});
  on(double{});
  on(trireme::bfloat16{});
  on(trireme::float16{});
}

}  // namespace ladder
