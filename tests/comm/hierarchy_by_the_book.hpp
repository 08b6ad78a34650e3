#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/text.hpp"

/// Every collective of a hierarchical world against a direct reference. Throws, because Catch2's checks are for one
/// thread only.
namespace by_the_book {

using trireme::bfloat16;
using trireme::tensor_view;
namespace reduction = trireme::reduction;

template <class... Parts>
void expect(bool condition, Parts const&... what) {
  if (!condition) throw std::runtime_error(trireme::text(what...));
}
template <class T>
bool same_bits(T const& a, T const& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// The value of rank `rank` at index `i`: floats of many magnitudes, so that a different order of summing changes the
/// bits.
template <class T>
T value(int rank, std::int64_t i) {
  auto const bits = trireme::mix(static_cast<std::uint64_t>(i) * 1000 + static_cast<std::uint64_t>(rank));
  auto const number = (static_cast<double>(bits >> 40) / (1 << 24) - 0.5) * static_cast<double>(1 << (bits % 20));
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(bits);
  else
    return T(static_cast<float>(number));
}
template <class T>
std::vector<T> values(int rank, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(value<T>(rank, i));
  return out;
}

/// One element of a reduction: each node in the order of its places, then the nodes, each time rounded; a mean divides
/// once, before the last rounding.
template <class T, class Op>
T reduced(int places, int nodes, std::int64_t i, Op) {
  if (nodes == 1) std::swap(places, nodes);
  using A = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
  auto const both = [](A a, A b) {
    if constexpr (std::is_same_v<Op, reduction::max>)
      return a < b ? b : a;
    else if constexpr (std::is_same_v<Op, reduction::min>)
      return b < a ? b : a;
    else
      return static_cast<A>(a + b);
  };
  A total{};
  for (int node = 0; node < nodes; ++node) {
    auto sum = static_cast<A>(value<T>(node * places, i));
    for (int place = 1; place < places; ++place) sum = both(sum, static_cast<A>(value<T>(node * places + place, i)));
    auto const rounded = static_cast<A>(static_cast<T>(sum));
    total = node == 0 ? rounded : both(total, rounded);
  }
  if constexpr (std::is_same_v<Op, reduction::mean>) total /= static_cast<A>(places * nodes);
  return static_cast<T>(total);
}

template <class T>
void expect_equal(std::vector<T> const& mine, std::vector<T> const& wanted, char const* what, int rank) {
  expect(mine.size() == wanted.size(), what, ": ", mine.size(), " elements");
  for (std::size_t i = 0; i < mine.size(); ++i)
    expect(same_bits(mine[i], wanted[i]), what, ", ", trireme::name_of(trireme::dtype_of<T>), " x ", mine.size(),
           ", rank ", rank, ", element ", i);
}

template <class T, class World, class Op>
void reductions(World& world, int places, int nodes, std::int64_t count, Op op) {
  auto const p = world.size();
  auto const r = world.rank();
  std::vector<T> wanted(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) wanted[static_cast<std::size_t>(i)] = reduced<T>(places, nodes, i, op);
  auto mine = values<T>(r, count);
  world.all_reduce(tensor_view{mine}, op);
  expect_equal(mine, wanted, "all_reduce", r);

  for (int root : {0, p / 2, p - 1}) {
    mine = values<T>(r, count);
    world.reduce(tensor_view{mine}, root, op);
    expect_equal(mine, r == root ? wanted : values<T>(r, count), "reduce", r);
  }

  auto const each = (count + p - 1) / p;
  mine = values<T>(r, each * p);
  world.reduce_scatter(tensor_view{mine}, op);
  for (std::int64_t i = r * each; i < (r + 1) * each; ++i)
    expect(same_bits(mine[static_cast<std::size_t>(i)], reduced<T>(places, nodes, i, op)), "reduce_scatter of ", each,
           " each, rank ", r, ", element ", i);

  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < p; ++rank) counts.push_back((rank * 5 + 2) % 4 * each / 4);
  auto const own = std::accumulate(counts.begin(), counts.begin() + r, std::int64_t{0});
  mine = values<T>(r, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  world.reduce_scatter(mine, counts, op);
  for (std::int64_t i = own; i < own + counts[static_cast<std::size_t>(r)]; ++i)
    expect(same_bits(mine[static_cast<std::size_t>(i)], reduced<T>(places, nodes, i, op)), "ragged reduce_scatter of ",
           mine.size(), ", rank ", r, ", element ", i);
}

/// The number of elements that rank `from` sends to rank `to` in the ragged all_to_all.
inline std::int64_t ragged(int from, int to, std::int64_t count) { return (from * 7 + to * 3) % 5 * count / 5; }

template <class T, class World>
void moves(World& world, std::int64_t each) {
  auto const p = world.size();
  auto const r = world.rank();
  auto const all = values<T>(99, each * p);
  auto const slice = [&](std::vector<T> const& of, std::int64_t k) {
    return std::vector<T>(of.begin() + k * each, of.begin() + (k + 1) * each);
  };

  auto mine = std::vector<T>(all.size());
  std::copy_n(all.begin() + r * each, each, mine.begin() + r * each);
  world.all_gather(tensor_view{mine});
  expect_equal(mine, all, "all_gather", r);

  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < p; ++rank) counts.push_back(ragged(rank, 1, each));
  auto const total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  auto const before = std::accumulate(counts.begin(), counts.begin() + r, std::int64_t{0});
  auto const some = values<T>(98, total);
  mine.assign(some.size(), T{});
  std::copy_n(some.begin() + before, counts[static_cast<std::size_t>(r)], mine.begin() + before);
  world.all_gather(tensor_view{mine}, counts);
  expect_equal(mine, some, "ragged all_gather", r);

  for (int root : {0, p / 2, p - 1}) {
    mine = r == root ? all : std::vector<T>(all.size());
    world.broadcast(tensor_view{mine}, root);
    expect_equal(mine, all, "broadcast", r);

    auto part = slice(all, r);
    mine.assign(r == root ? all.size() : 0, T{});
    world.gather(tensor_view{std::as_const(part)}, tensor_view{mine}, root);
    if (r == root) expect_equal(mine, all, "gather", r);

    part.assign(static_cast<std::size_t>(each), T{});
    auto const from = r == root ? all : std::vector<T>();
    world.scatter(tensor_view{from}, tensor_view{part}, root);
    expect_equal(part, slice(all, r), "scatter", r);
  }

  auto const out = values<T>(r, each * p);
  mine.assign(out.size(), T{});
  world.all_to_all(tensor_view{out}, tensor_view{mine});
  for (int from = 0; from < p; ++from)
    expect_equal(slice(mine, from), slice(values<T>(from, each * p), r), "all_to_all", r);

  std::vector<std::int64_t> sent, received;
  std::vector<T> wanted;
  for (int rank = 0; rank < p; ++rank) {
    sent.push_back(ragged(r, rank, each));
    received.push_back(ragged(rank, r, each));
    std::int64_t first = 0;
    for (int to = 0; to < r; ++to) first += ragged(rank, to, each);
    auto const theirs = values<T>(rank, first + received.back());
    wanted.insert(wanted.end(), theirs.begin() + first, theirs.end());
  }
  auto const going = values<T>(r, std::accumulate(sent.begin(), sent.end(), std::int64_t{0}));
  mine.assign(wanted.size(), T{});
  world.all_to_all(tensor_view{going}, sent, tensor_view{mine}, received);
  expect_equal(mine, wanted, "ragged all_to_all", r);
}

/// A ring, each step a message to the next rank and to the one across.
template <class World>
void exchanges(World& world, std::int64_t count) {
  auto const p = world.size();
  auto const r = world.rank();
  for (int step : {1, p / 2, p - 1}) {
    auto const out = values<float>(r, count);
    auto mine = std::vector<float>(static_cast<std::size_t>(count));
    auto const to = (r + step) % p;
    auto const from = (r + p - step) % p;
    world.exchange({trireme::send_to(to, tensor_view{out}), trireme::receive_from(from, tensor_view{mine})});
    expect_equal(mine, values<float>(from, count), "exchange", r);
  }
}

/// Many requests at a time, waited for in another order.
template <class World>
void requests(World& world, int places, int nodes, std::int64_t count) {
  auto const p = world.size();
  auto const r = world.rank();
  std::array<std::vector<double>, 3> sums;
  for (auto& each : sums) each = values<double>(r, count);
  auto sent = values<double>(r, p);
  auto got = std::vector<double>(static_cast<std::size_t>(p));
  auto first = world.all_reduce_async(tensor_view{sums[0]});
  auto meeting = world.barrier_async();
  auto second = world.all_reduce_async(tensor_view{sums[1]}, reduction::max{});
  auto dealt = world.all_to_all_async(tensor_view{std::as_const(sent)}, tensor_view{got});
  auto third = world.all_reduce_async(tensor_view{sums[2]}, reduction::mean{});
  if (r % 2 == 0) {
    third.wait();
    meeting.wait();
    while (!first.test()) {
    }
  } else {
    while (!dealt.test()) {
    }
    first.wait();
    second.wait();
  }
  second.wait();
  third.wait();
  dealt.wait();
  first.wait();
  for (std::int64_t i = 0; i < count; ++i) {
    auto const k = static_cast<std::size_t>(i);
    expect(same_bits(sums[0][k], reduced<double>(places, nodes, i, reduction::sum{})), "sum in flight, element ", i);
    expect(same_bits(sums[1][k], reduced<double>(places, nodes, i, reduction::max{})), "max in flight, element ", i);
    expect(same_bits(sums[2][k], reduced<double>(places, nodes, i, reduction::mean{})), "mean in flight, element ", i);
  }
  for (int from = 0; from < p; ++from)
    expect(same_bits(got[static_cast<std::size_t>(from)], value<double>(from, r)), "all_to_all in flight");
}

template <class World>
void every_collective(World& world, int places, int nodes, std::int64_t largest) {
  expect(world.size() == places * nodes, "size is ", world.size());
  for (int i = 0; i < 20; ++i) world.barrier();
  for (std::int64_t const count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{1001}, largest}) {
    reductions<float>(world, places, nodes, count, reduction::sum{});
    reductions<bfloat16>(world, places, nodes, count, reduction::mean{});
    reductions<double>(world, places, nodes, count, reduction::min{});
    reductions<std::int32_t>(world, places, nodes, count, reduction::sum{});
    moves<float>(world, count / world.size() + count % 2);
    moves<std::uint8_t>(world, count / world.size());
    exchanges(world, count);
    requests(world, places, nodes, count);
  }
}

}  // namespace by_the_book
