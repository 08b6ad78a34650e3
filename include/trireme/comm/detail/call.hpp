#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/assertion.hpp"

namespace trireme::comm::detail {

enum class collective : std::uint8_t {
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  peers,
  split
};

[[nodiscard]] constexpr std::string_view name_of(collective kind) noexcept {
  constexpr std::string_view names[] = {"barrier",    "all_reduce", "reduce_scatter", "all_gather",
                                        "all_to_all", "broadcast",  "peers",          "split"};
  return names[static_cast<std::size_t>(kind)];
}

enum class reduction_kind : std::uint8_t { none, sum, max, min };

template <class Op>
inline constexpr reduction_kind reduction_of = reduction_kind::none;
template <>
inline constexpr reduction_kind reduction_of<reduction::sum> = reduction_kind::sum;
template <>
inline constexpr reduction_kind reduction_of<reduction::max> = reduction_kind::max;
template <>
inline constexpr reduction_kind reduction_of<reduction::min> = reduction_kind::min;

/// sum, max or min.
template <class Op>
concept reduction_operation = reduction_of<Op>
!= reduction_kind::none;

/// What one rank asks for: the part that every rank must ask for alike.
struct call {
  collective kind = collective::barrier;
  dtype type = dtype::u8;
  reduction_kind op = reduction_kind::none;
  bool by_value = false;  ///< so small that the values travel with the announcement
  std::int32_t root = -1;
  std::int64_t count = 0;
  friend bool operator==(call const&, call const&) = default;
};

/// "all_reduce(F32, 1024 elements, sum)"
[[nodiscard]] inline std::string to_string(call const& what) {
  std::string out{name_of(what.kind)};
  if (what.kind == collective::barrier || what.kind == collective::split) return out;
  out += text("(", trireme::name_of(what.type));
  if (what.kind != collective::peers) out += text(", ", what.count, what.count == 1 ? " element" : " elements");
  if (what.op != reduction_kind::none) {
    constexpr std::string_view names[] = {"", "sum", "max", "min"};
    out += text(", ", names[static_cast<std::size_t>(what.op)]);
  }
  if (what.root >= 0) out += text(", root ", what.root);
  return out + ")";
}

/// "60s", "1500ms": a duration as the source that makes it.
[[nodiscard]] inline std::string to_string(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? text(time.count() / 1000, "s") : text(time.count(), "ms");
}

[[nodiscard]] inline std::string differing_calls(std::string_view who, std::uint64_t number, int a, call const& of_a,
                                                 int b, call const& of_b) {
  return text(who, ": call number ", number, " differs between ranks: rank ", a, " called ", to_string(of_a), ", rank ",
              b, " called ", to_string(of_b), "; make every rank call the same collectives in the same order");
}

/// Throws config_error unless `count` elements divide into equal slices (level light).
inline void expect_slices(std::string_view who, collective kind, std::int64_t count, int size) {
  if (asserts(assertion_level::light) && count % size != 0)
    throw config_error(text(who, "::", name_of(kind), ": ", count, " elements do not divide into ", size,
                            " equal slices; pad the view to a multiple of the number of ranks"));
}

inline void expect_root(std::string_view who, int root, int size) {
  if (asserts(assertion_level::light) && (root < 0 || root >= size))
    throw config_error(text(who, "::broadcast: root ", root, " is not one of the ", size, " ranks"));
}

inline void expect_equal_sizes(std::string_view who, std::int64_t from, std::int64_t to) {
  if (asserts(assertion_level::light) && from != to)
    throw config_error(
        text(who, "::all_to_all: ", from, " elements go out but ", to, " come in; give both views one size"));
}

inline void expect_color(std::string_view who, int color) {
  if (asserts(assertion_level::light) && color < 0)
    throw config_error(text(who, "::split: color ", color, " is negative; number the groups from 0"));
}

}  // namespace trireme::comm::detail
