#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/traffic.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/text.hpp"

/// The ladder: one source for every communicator, one rung a collective, in the memory space of the world. Rungs throw,
/// because Catch2's checks are for one thread only.
namespace ladder {

namespace reduction = trireme::reduction;
using trireme::shape;
using trireme::tensor;
using trireme::tensor_view;
using trireme::text;

template <class... Parts>
void expect(bool condition, Parts const&... what) {
  if (!condition) throw std::runtime_error(text(what...));
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

/// For the larger messages of every type, and the largest of every collective. Sanitizers find the same errors in small
/// messages as in large ones.
inline constexpr std::size_t medium_bytes = sanitized ? 6000 : 300'000;
inline constexpr std::size_t large_bytes = sanitized ? 200'000 : std::size_t{64} << 20;
inline constexpr int most_ranks = 8;

template <class World>
using space_of_world = typename trireme::space_of<World>::type;

/// Whether sums are in rank order; a world without this has `static constexpr bool ordered = false`.
template <class World>
constexpr bool is_ordered() {
  if constexpr (requires { World::ordered; })
    return World::ordered;
  else
    return true;
}

/// How to reach memory of a space; specialised by the tests of communicators that work in others.
template <class Space>
struct memory;
template <>
struct memory<trireme::host> {
  template <class T>
  static void put(tensor_view<T> to, T const* from) {
    if (to.size() > 0) std::memcpy(to.address(), from, to.bytes());
  }
  template <class T>
  static std::span<T const> get(tensor_view<T> from) {
    return from.span();
  }
};

/// How a call is made: on memory of the communicator's, and as a request.
struct how {
  bool allocated = false;
  bool async = false;
};

template <class Blocking, class Async>
void call(how way, Blocking blocking, Async async) {
  if (!way.async) return blocking();
  auto pending = async();
  pending.wait();
}

/// The value of rank `rank` at index `i`: floats of many magnitudes, so that a different order of summing changes the
/// bits.
template <class T>
T value(int rank, std::int64_t i) {
  auto const bits = trireme::mix(static_cast<std::uint64_t>(i) * 1000 + static_cast<std::uint64_t>(rank));
  auto const small = static_cast<double>(bits >> 40) / (1 << 24) - 0.5;
  auto const number = small * static_cast<double>(1 << (bits % (std::is_same_v<T, trireme::float16> ? 10 : 20)));
  if constexpr (std::is_same_v<T, double>)
    return number;
  else if constexpr (std::is_integral_v<T> || std::is_same_v<T, std::byte>)
    return static_cast<T>(bits);
  else
    return T(static_cast<float>(number));
}

/// The longest view of T on a rung whose messages are not the largest.
template <class T>
inline constexpr std::int64_t longest = std::max<std::int64_t>(static_cast<std::int64_t>(medium_bytes / sizeof(T)) + 3,
                                                               1001 * most_ranks);

/// A list that is made once for all ranks of this process: of `op` over `ranks`, or with no op what rank `ranks` has.
inline std::vector<std::byte> const& made_once(trireme::dtype type, trireme::comm::reduction_kind op, int ranks,
                                               std::size_t bytes, void (*make)(std::byte* to, int ranks)) {
  static std::mutex guard;
  static std::map<std::tuple<trireme::dtype, trireme::comm::reduction_kind, int>, std::vector<std::byte>> known;
  std::lock_guard const lock(guard);
  auto& place = known[{type, op, ranks}];
  if (place.empty()) {
    place.resize(bytes);
    make(place.data(), ranks);
  }
  return place;
}
template <class T>
void make_values(std::byte* to, int rank) {
  for (std::int64_t i = 0; i < longest<T>; ++i) reinterpret_cast<T*>(to)[i] = value<T>(rank, i);
}
template <class T>
T const* values(int rank) {
  // Bytes have a list of their own, under a reduction that they do not have.
  constexpr auto kind =
      std::is_same_v<T, std::byte> ? trireme::comm::reduction_kind::mean : trireme::comm::reduction_kind::none;
  return reinterpret_cast<T const*>(
      made_once(trireme::dtype_of<T>, kind, rank, static_cast<std::size_t>(longest<T>) * sizeof(T), &make_values<T>)
          .data());
}

/// One element of a reduction, computed directly: in rank order, 16-bit floats in float, rounded once.
template <class Op, class A>
A combined(A a, A b) {
  if constexpr (std::is_same_v<Op, reduction::max>)
    return a < b ? b : a;
  else if constexpr (std::is_same_v<Op, reduction::min>)
    return b < a ? b : a;
  else if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));  // wraps
  else
    return a + b;
}
/// The ranks [first, last): halves where their number is even, else cut at the largest power of two.
template <class A, class T>
A summed_in_a_tree(int first, int last, std::int64_t i) {
  int const n = last - first;
  if (n == 1) return static_cast<A>(value<T>(first, i));
  int cut = 1;
  while (2 * cut < n) cut *= 2;
  int const middle = first + (n % 2 == 0 ? n / 2 : cut);
  return summed_in_a_tree<A, T>(first, middle, i) + summed_in_a_tree<A, T>(middle, last, i);
}
template <class Op, class T>
void make_reduced(std::byte* to, int ranks) {
  using A = std::conditional_t<trireme::storage_float<T>, float, T>;
  for (std::int64_t i = 0; i < longest<T>; ++i) {
    auto result = static_cast<A>(value<T>(0, i));
    if constexpr (std::is_same_v<Op, reduction::pairwise>) {
      result = summed_in_a_tree<A, T>(0, ranks, i);
    } else {
      for (int rank = 1; rank < ranks; ++rank) result = combined<Op>(result, static_cast<A>(value<T>(rank, i)));
    }
    if constexpr (std::is_same_v<Op, reduction::mean>) result /= static_cast<A>(ranks);
    reinterpret_cast<T*>(to)[i] = static_cast<T>(result);
  }
}
template <class Op, class T>
T const* reduced(int ranks) {
  return reinterpret_cast<T const*>(made_once(trireme::dtype_of<T>, trireme::comm::reduction_of<Op>, ranks,
                                              static_cast<std::size_t>(longest<T>) * sizeof(T), &make_reduced<Op, T>)
                                        .data());
}

/// A view of `count` elements in the world's space, with strangers' elements before and after it that must stay.
template <class T, class World>
class message {
 public:
  using space = space_of_world<World>;

  /// Filled with `from`, or with anything.
  [[gnu::noinline]] message(World& world, std::int64_t count, how way, T const* from = nullptr)
      : guard_(way.async ? static_cast<std::int64_t>(64 / sizeof(T)) : 1), count_(count) {  // aligned, or not
    auto const extents = shape{count + 2 * guard_};
    if constexpr (trireme::has_allocate<World, T, space>) {
      if (way.allocated) memory_ = world.template allocate<T>(extents);
    }
    if (memory_.size() == 0) memory_ = tensor<T, space>(extents);
    put(memory_.view().flat(0, guard_), strangers());
    put(memory_.view().flat(guard_ + count_, guard_), strangers());
    fill(from == nullptr ? values<T>(stranger) + guard_ : from);
  }
  void fill(T const* from) { put(view(), from); }
  [[nodiscard]] tensor_view<T, space> view() const { return memory_.view().flat(guard_, count_); }
  [[nodiscard]] tensor_view<T const, space> input() const { return view(); }
  /// The elements; throws if the guards have changed.
  [[nodiscard, gnu::noinline]] auto read() const {
    for (auto const first : {std::int64_t{0}, guard_ + count_}) {
      auto const now = memory<space>::get(memory_.view().flat(first, guard_));
      expect(std::memcmp(now.data(), strangers(), now.size() * sizeof(T)) == 0, "wrote ",
             first == 0 ? "before" : "behind", " a view of ", count_, " elements ",
             trireme::name_of(trireme::dtype_of<T>));
    }
    return memory<space>::get(view());
  }

 private:
  static constexpr int stranger = 99;
  static T const* strangers() { return values<T>(stranger); }
  static void put(tensor_view<T, space> to, T const* from) { memory<space>::put(to, from); }

  std::int64_t guard_;
  std::int64_t count_;
  tensor<T, space> memory_;
};

/// "all_reduce F32 x 7 on threads, rank 1 of 3"
[[gnu::noinline]] inline std::string sentence(std::string_view world, int rank, int size, char const* operation,
                                              trireme::dtype type, std::int64_t count, how way) {
  return text(operation, way.async ? "_async" : "", " ", trireme::name_of(type), " x ", count,
              way.allocated ? ", allocated," : "", " on ", world, ", rank ", rank, " of ", size);
}
template <class T, class World>
std::string where(World const& world, char const* operation, std::int64_t count, how way = {}) {
  return sentence(World::name, world.rank(), world.size(), operation, trireme::dtype_of<T>, count, way);
}

/// Throws unless both have the same bits; `at` describes the first different element, counted from `first`.
[[gnu::noinline]] inline void expect_bits(void const* got, void const* wanted, std::int64_t first, std::int64_t count,
                                          std::size_t element_bytes, std::string const& at) {
  if (count == 0 || std::memcmp(got, wanted, static_cast<std::size_t>(count) * element_bytes) == 0) return;
  std::size_t byte = 0;
  while (static_cast<char const*>(got)[byte] == static_cast<char const*>(wanted)[byte]) ++byte;
  expect(false, at, ": element ", first + static_cast<std::int64_t>(byte / element_bytes), " is wrong");
}
/// The elements of `got` from `first` on are `wanted`.
template <class T, class Got>
void expect_same(Got const& got, std::int64_t first, T const* wanted, std::int64_t count, std::string const& at) {
  expect_bits(got.data() + first, wanted, first, count, sizeof(T), at);
}
/// What a collective counted as sent.
[[gnu::noinline]] inline void expect_bytes(std::uint64_t counted, std::int64_t elements, std::size_t element_bytes,
                                           std::string const& at) {
  expect(counted == static_cast<std::uint64_t>(elements) * element_bytes, at, ": counted ", counted, " bytes");
}

/// The same for results of a reduction, whose last bits an unordered communicator may choose.
template <class Op, class T, class World, class Got>
void expect_reduced(World const& world, Got const& got, std::int64_t first, std::int64_t count, std::string const& at) {
  auto const* const wanted = reduced<Op, T>(world.size());
  constexpr bool exact =
      std::is_integral_v<T> || std::is_same_v<Op, reduction::max> || std::is_same_v<Op, reduction::min>;
  if constexpr (exact || is_ordered<World>()) {
    expect_same(got, first, wanted + first, count, at);
  } else {
    double const last_place = sizeof(T) == 8 ? 0x1p-52 : sizeof(T) == 4 ? 0x1p-23 : 0x1p-8;
    for (std::int64_t i = first; i < first + count; ++i) {
      double size = 0;
      for (int rank = 0; rank < world.size(); ++rank) size += std::fabs(static_cast<double>(values<T>(rank)[i]));
      auto const off =
          std::fabs(static_cast<double>(got[static_cast<std::size_t>(i)]) - static_cast<double>(wanted[i]));
      expect(off <= last_place * world.size() * size, at, ": element ", i, " is off by ", off);
    }
  }
}

/// Calls visit(T{}) for each type with arithmetic, and for bytes.
template <class Visit>
void for_numbers(Visit visit) {
  visit(float{});
  visit(double{});
  visit(trireme::bfloat16{});
  visit(trireme::float16{});
  visit(std::int8_t{});
  visit(std::uint8_t{});
  visit(std::int32_t{});
  visit(std::uint32_t{});
  visit(std::int64_t{});
  visit(std::uint64_t{});
}
template <class Visit>
void for_types(Visit visit) {
  for_numbers(visit);
  visit(std::byte{});
}

/// Calls visit(op) for the reductions of T.
template <class T, class Visit>
void for_reductions(Visit visit) {
  visit(reduction::sum{});
  visit(reduction::max{});
  visit(reduction::min{});
  if constexpr (!std::is_integral_v<T>) {
    visit(reduction::mean{});
    visit(reduction::pairwise{});
  }
}

/// The sizes 0, 1, odd, whole cache lines and some hundred KB, each in several ways. With `slices`, the counts are of
/// one among so many.
struct counted_call {
  std::int64_t count;
  how way;
};
[[gnu::noinline]] inline std::vector<counted_call> calls(int slices, std::size_t element_bytes) {
  constexpr how ways[] = {{false, false}, {true, false}, {false, true}, {true, true}};
  std::vector<counted_call> all;
  for (std::int64_t const count : {0, 1, 7, 64, 1001})
    for (auto const way : ways) all.push_back({count, way});
  auto const medium = (static_cast<std::int64_t>(medium_bytes / element_bytes) + 3) / slices;
  all.push_back({medium, ways[0]});
  all.push_back({medium, ways[3]});
  return all;
}
template <class T, class Visit>
void for_counts(int slices, Visit visit) {
  for (auto const& [count, way] : calls(slices, sizeof(T))) visit(count, way);
}

/// Prints once, on rank 0, which part of a rung is left out because a capability is missing.
template <class World>
void skipped(World const& world, char const* what) {
  if (world.rank() == 0) std::printf("ladder: %s has no %s: skipped\n", std::string(World::name).c_str(), what);
}

/// Bytes that `action` counts as sent.
template <class World, class Action>
std::uint64_t bytes_of(World const& world, Action action) {
  auto const before = world.traffic().bytes_sent;
  action();
  return world.traffic().bytes_sent - before;
}

/// Uneven parts: of rank r of p, `count` and slightly more or less; every third is empty.
inline std::vector<std::int64_t> ragged(int ranks, std::int64_t count, int seed = 0) {
  std::vector<std::int64_t> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back((rank + seed) % 3 == 1 ? 0 : count - count * ((rank + seed) % 4) / 8);
  return parts;
}
inline std::int64_t sum_of(std::span<std::int64_t const> parts) {
  std::int64_t sum = 0;
  for (auto const each : parts) sum += each;
  return sum;
}

}  // namespace ladder
