#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/comm/buffers.hpp"
#include "trireme/comm/geometry.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

/// A call as one of two that differ: with its label, also if it has none and the other one does.
[[nodiscard]] inline std::string labelled_call(call const& it, call const& other) {
  bool const bare = it.label.owner == 0 && other.label.owner != 0;
  return to_string(it) + (bare ? " for no exchange or trainer" : to_string(it.label));
}
[[nodiscard]] inline std::string_view remedy_of(call const& a, call const& b) noexcept {
  return a.label.owner == b.label.owner ? "; make every rank call the same collectives in the same order"
                                        : "; make and use exchanges and trainers, and call collectives of your own, in "
                                          "the same order on every rank";
}
[[nodiscard]] inline std::string differing_calls(std::string_view who, std::uint64_t number, int a, call const& of_a,
                                                 int b, call const& of_b) {
  return text(who, ": call number ", number, " differs between ranks: rank ", a, " called ", labelled_call(of_a, of_b),
              ", rank ", b, " called ", labelled_call(of_b, of_a), remedy_of(of_a, of_b));
}

/// "8 elements of F32"
[[nodiscard]] inline std::string describe(raw_transfer const& it) {
  return text(how_many(it.count, "element"), " of ", trireme::name_of(it.type));
}
[[nodiscard]] inline std::string differing_transfers(std::string_view who, int from, raw_transfer const& sent, int to,
                                                     raw_transfer const& received) {
  return text(who, ": a message differs between its ends: rank ", from, " sends ", describe(sent), " to rank ", to,
              ", which expects ", describe(received), "; use the same type and count on both sides of an exchange");
}

/// Throws config_error unless equal slices are equal and the root is a rank (level light).
inline void expect_right(std::string_view who, call const& what, int size) {
  if (!asserts(assertion_level::light)) return;
  auto const& of = row_of(what.kind);
  bool const sliced = of.into == cut::equal && what.shape == 0;
  if (sliced && what.count % size != 0)
    throw config_error(text(who, "::", name_of(what.kind), ": ", how_many(what.count, "element"),
                            agreeing(static_cast<std::uint64_t>(what.count), " does", " do"), " not divide into ", size,
                            " equal slices; pad the view to a multiple of the number of ranks"));
  bool const rooted = of.moves[0].senders == side::root || of.moves[0].receivers == side::root;
  if (rooted && (what.root < 0 || what.root >= size))
    throw config_error(
        text(who, "::", name_of(what.kind), ": root ", what.root, " is not one of the ", how_many(size, "rank")));
}

/// Throws config_error unless the two views of a collective fit each other (level light).
inline void expect_sizes(std::string_view who, call const& what, std::int64_t from, std::int64_t to, int rank,
                         int size) {
  if (!asserts(assertion_level::light)) return;
  if (what.kind == collective::all_to_all && from != to)
    throw config_error(text(who, "::all_to_all: ", how_many(from, "element"), agreeing(from, " goes", " go"),
                            " out but ", to, agreeing(to, " comes", " come"), " in; give both views one size"));
  if (rank != what.root) return;
  bool const gathers = what.kind == collective::gather;
  if ((gathers || what.kind == collective::scatter) && (gathers ? to : from) != what.count * size)
    throw config_error(text(who, "::", name_of(what.kind), ": the root's whole view has ", gathers ? to : from,
                            " elements, but ", how_many(size, "rank"), " with ", what.count, " each need ",
                            what.count * size));
}

/// Throws config_error unless there is one count a rank and they add up to the view (level light).
inline void expect_counts(std::string_view who, collective kind, std::span<std::int64_t const> counts,
                          std::int64_t elements, int size) {
  if (!asserts(assertion_level::light)) return;
  if (counts.size() != static_cast<std::size_t>(size))
    throw config_error(text(who, "::", name_of(kind), ": ", how_many(counts.size(), "count"), " for ",
                            how_many(size, "rank"), "; give one count a rank"));
  std::int64_t sum = 0;
  for (auto const each : counts) {
    if (each < 0)
      throw config_error(text(who, "::", name_of(kind), ": a count is ", each, "; counts must be at least 0"));
    sum += each;
  }
  if (sum != elements)
    throw config_error(text(who, "::", name_of(kind), ": the counts add up to ", sum, " but the view has ",
                            how_many(elements, "element"), "; make them equal"));
}

inline void expect_peer(std::string_view who, int peer, int size) {
  if (asserts(assertion_level::light) && (peer < 0 || peer >= size))
    throw config_error(text(who, "::exchange: peer ", peer, " is not one of the ", how_many(size, "rank")));
}

inline void expect_color(std::string_view who, int color) {
  if (asserts(assertion_level::light) && color < 0)
    throw config_error(text(who, "::split: color ", color, " is negative; number the groups from 0"));
}

/// A hash of a list of counts; never 0.
[[nodiscard]] inline std::uint32_t fingerprint(std::span<std::int64_t const> counts) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    sum += mix(static_cast<std::uint64_t>(counts[i]) * 0x9e37'79b9'7f4a'7c15ULL + i);
  return static_cast<std::uint32_t>(sum >> 32U) | 1U;
}

/// An empty list with the same memory each time, so that making a command allocates nothing.
[[nodiscard]] inline std::vector<raw_transfer>& transfers_of_this_thread() {
  thread_local std::vector<raw_transfer> raw_transfers;
  raw_transfers.clear();
  return raw_transfers;
}

/// The parts of a ragged view, one a rank, in rank order.
template <class T, class Space>
void append_transfers(std::vector<raw_transfer>& raw_transfers, bool sent, tensor_view<T, Space> values,
                      std::span<std::int64_t const> counts) {
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    auto const own = sendable(values.flat(first, counts[rank]));
    using value = std::remove_const_t<std::remove_pointer_t<decltype(own.address())>>;
    raw_transfers.push_back({static_cast<int>(rank), sent, dtype_of<value>, own.size(),
                             const_cast<std::byte*>(reinterpret_cast<std::byte const*>(own.address()))});
    first += counts[rank];
  }
}

}  // namespace trireme::comm::detail
