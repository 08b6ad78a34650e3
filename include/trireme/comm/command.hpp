#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/comm/rows.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm {

/// How a command combines the ranks' elements; `own`: by a function of the program.
enum class reduction_kind : std::uint8_t { none, sum, max, min, mean, pairwise, own };

/// Their names, in the same order.
inline constexpr std::string_view reduction_names[] = {"none", "sum", "max", "min", "mean", "pairwise", "own"};

[[nodiscard]] constexpr std::string_view name_of(reduction_kind kind) noexcept {
  return reduction_names[static_cast<std::size_t>(kind)];
}

/// The kind of a reduction's type.
template <class Op>
inline constexpr reduction_kind reduction_of =
    std::is_base_of_v<reduction::own, Op> ? reduction_kind::own : reduction_kind::none;
template <>
inline constexpr reduction_kind reduction_of<reduction::sum> = reduction_kind::sum;
template <>
inline constexpr reduction_kind reduction_of<reduction::max> = reduction_kind::max;
template <>
inline constexpr reduction_kind reduction_of<reduction::min> = reduction_kind::min;
template <>
inline constexpr reduction_kind reduction_of<reduction::mean> = reduction_kind::mean;
template <>
inline constexpr reduction_kind reduction_of<reduction::pairwise> = reduction_kind::pairwise;

/// For whom a call is: the exchanges and trainers of a world label their collectives, so that those of two of them, or
/// of one and the program, are not taken for each other where kind, type and count are equal. Bytes that another rank
/// has written are a label, whatever they are.
struct call_label {
  enum class owner_kind : std::uint8_t { exchange, trainer };
  /// What a call is about, if not a bucket.
  enum part_name : std::uint16_t { anything, vote, values, gradients, first_bucket };
  static constexpr int most_buckets = 32700;  ///< later ones count from 0 again

  std::uint16_t owner = 0;  ///< 0: the program; otherwise 2 * number + kind. Numbers count from 1 on each communicator.
  std::uint16_t part = anything;

  [[nodiscard]] static constexpr std::uint16_t owner_of(owner_kind kind, std::uint32_t number) noexcept {
    return static_cast<std::uint16_t>((1 + (number - 1) % 32767) * 2 + static_cast<std::uint32_t>(kind));
  }
  /// The gradients of a bucket, or its values.
  [[nodiscard]] static constexpr std::uint16_t bucket(int number, bool of_values = false) noexcept {
    return static_cast<std::uint16_t>(first_bucket + 2 * (number % most_buckets) + (of_values ? 1 : 0));
  }
  friend bool operator==(call_label const&, call_label const&) = default;
};

/// " for bucket 2 of exchange 1"; empty for calls of the program.
[[nodiscard]] inline std::string to_string(call_label const& it) {
  if (it.owner == 0) return {};
  std::string const owner = text(it.owner % 2 == 0 ? "exchange " : "trainer ", it.owner / 2);
  if (int const bucket = it.part - call_label::first_bucket; bucket >= 0)
    return text(bucket % 2 == 0 ? " for bucket " : " for the values of bucket ", bucket / 2, " of ", owner);
  constexpr std::string_view parts[] = {" for ", " for the vote of ", " for the values of ", " for the gradients of "};
  return std::string(parts[it.part]) + owner;
}

/// The part of a command that must be equal on all ranks. Trivially copyable: ranks send it to each other.
struct call {
  collective kind = collective::barrier;
  dtype type = dtype::u8;
  reduction_kind op = reduction_kind::none;
  /// Set by the engine of shared memory: the values are sent within the announcement. It is part of the call, so that
  /// ranks that differ in it (host memory on one, device memory on another) get an error instead of waiting.
  bool by_value = false;
  std::int32_t root = -1;
  /// Elements: of the whole view; in gather and scatter of one rank's part; in ragged all_to_all and exchange 0,
  /// because it differs between ranks.
  std::int64_t count = 0;
  /// For a ragged reduce_scatter or all_gather a hash of its counts, for a ragged all_to_all 1; otherwise 0.
  std::uint32_t shape = 0;
  call_label label{};
  friend bool operator==(call const&, call const&) = default;
};

static_assert(sizeof(call) == 24 && std::is_trivially_copyable_v<call>, "calls travel as bytes, without gaps");

/// Reads the call of another rank without trusting it: returns false, and leaves `it` unchanged, if no call has these
/// bytes. All code that prints a call or looks it up in a table relies on this check.
[[nodiscard]] inline bool read_call(call& it, void const* bytes) noexcept {
  auto const byte_at = [&](std::size_t offset) {
    return std::to_integer<std::size_t>(static_cast<std::byte const*>(bytes)[offset]);
  };
  bool const known = byte_at(offsetof(call, kind)) < std::size(detail::collective_rows) &&
                     trireme::name_of(static_cast<dtype>(byte_at(offsetof(call, type)))) != "?" &&
                     byte_at(offsetof(call, op)) < std::size(reduction_names) && byte_at(offsetof(call, by_value)) <= 1;
  if (!known) return false;
  call read;
  std::memcpy(&read, bytes, sizeof read);
  if (read.root < -1 || read.count < 0) return false;
  it = read;
  return true;
}

/// "all_reduce(F32, 1024 elements, sum)"
[[nodiscard]] inline std::string to_string(call const& what) {
  std::string out{name_of(what.kind)};
  using enum collective;
  if (what.kind == barrier || what.kind == split || what.kind == duplicate || what.kind == exchange) return out;
  out += text("(", trireme::name_of(what.type));
  if (what.shape != 0) out += ", ragged";
  if (what.kind != peers && (what.shape == 0 || what.count > 0)) out += text(", ", how_many(what.count, "element"));
  if (what.op != reduction_kind::none) out += text(", ", name_of(what.op));
  if (what.root >= 0) out += text(", root ", what.root);
  return out + ")";
}

/// The operations of an engine on elements, in the memory space that holds them.
struct element_kernels {
  /// Copies bytes; both in this space.
  void (*copy)(void* to, void const* from, std::size_t bytes) = nullptr;
  /// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: in the tree over them); a mean is then
  /// divided by `divisor`. Null: no reduction.
  void (*combine)(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                  int divisor) = nullptr;
  /// Returns when all copies and reductions that this thread has started are done. Null: each is done at its return.
  void (*complete)() = nullptr;
  /// Whether the CPU may read and write the elements.
  bool touchable = true;
  /// There are no elements: a collective only synchronises.
  bool phantom = false;
};

/// One message of an exchange, or one rank's part of a ragged all_to_all.
struct raw_transfer {
  int peer = 0;
  bool sent = true;
  dtype type = dtype::u8;
  std::int64_t count = 0;
  std::byte* address = nullptr;
};

/// One rank's part in one collective, as data: collectives.hpp passes it to the engine, and decorators see it. In place
/// if `from` and `to` are the same.
///
///                  from                       to                        count
///   all_reduce     values                     values                    of values
///   reduce_scatter values                     values, slice rank()      of values, equal slices; or `counts`
///   reduce         values                     values at the root        of values
///   all_gather     values, slice rank()       values                    of values, equal slices; or `counts`
///   gather         part                       whole, at the root        of a part
///   scatter        whole, at the root         part                      of a part
///   broadcast      values, at the root        values                    of values
///   all_to_all     whole                      whole                     of a whole, equal slices; ragged:
///   `raw_transfers` exchange       (parts)                    (parts)                   0
/// Spans and memory belong to the caller: the spans need only live until start() returns, the memory until the request
/// is done.
struct command {
  call what;
  void const* from = nullptr;
  void* to = nullptr;
  std::size_t element_bytes = 1;
  element_kernels const* elements = nullptr;      ///< null in barrier, split, duplicate
  std::span<std::int64_t const> counts{};         ///< ragged reduce_scatter, all_gather: elements of each rank
  std::span<raw_transfer const> raw_transfers{};  ///< exchange; ragged all_to_all: to and from each rank, in rank order
  std::uint64_t bytes = 0;                        ///< bytes counted as sent
  std::uint32_t messages = 0;
  int divisor = 0;  ///< divisor of a mean; 0: the number of ranks. Other values only inside compositions.
};

/// "60s", "1500ms": the duration in C++ source.
[[nodiscard]] inline std::string to_string(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? text(time.count() / 1000, "s") : text(time.count(), "ms");
}

}  // namespace trireme::comm
