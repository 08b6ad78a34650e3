#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// Consecutive elements in memory of the caller.
struct stretch {
  std::byte* at = nullptr;
  std::int64_t count = 0;
};

/// Which elements of a collective this rank has for each other one, and where each other one's belong.
class rank_stretches {
 public:
  /// @param parts     of a ragged all_to_all; they outlive the command.
  /// @param by_value  of a broadcast: everything at once, not a slice a rank.
  void begin(command const& it, std::span<part const> parts, int rank, int size, bool by_value) {
    it_ = it;
    parts_ = parts;
    rank_ = rank;
    by_value_ = by_value;
    slices_.clear();
    std::int64_t first = 0;
    for (int each = 0; each < size; ++each) {
      if (it.what.kind == collective::broadcast) {
        slices_.push_back(slice_of(it.what.count, it.element_bytes, each, size));
        continue;
      }
      auto const count = it.counts.empty() ? it.what.count / size : it.counts[static_cast<std::size_t>(each)];
      slices_.push_back({first, count});
      first += count;
    }
  }

  [[nodiscard]] interval slice_for(int peer) const noexcept { return slices_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] stretch from(std::int64_t first, std::int64_t count) const noexcept {
    return {const_cast<std::byte*>(static_cast<std::byte const*>(it_.from)) + bytes(first), count};
  }
  [[nodiscard]] stretch to(std::int64_t first, std::int64_t count) const noexcept {
    return {static_cast<std::byte*>(it_.to) + bytes(first), count};
  }

  /// What this rank tells `peer` first. (Large reductions go their own way.)
  [[nodiscard]] stretch outgoing(int peer) const noexcept {
    auto const count = it_.what.count;
    bool const to_root = peer == it_.what.root;
    bool const of_root = rank_ == it_.what.root;
    switch (it_.what.kind) {
      case collective::all_reduce:
        return from(0, count);
      case collective::reduce:
      case collective::gather:
        return to_root ? from(0, count) : stretch{};
      case collective::scatter:
        return of_root ? from(peer * count, count) : stretch{};
      case collective::broadcast:
        if (!of_root) return {};
        return by_value_ ? from(0, count) : from(slice_for(peer).first, slice_for(peer).count);
      case collective::all_gather:
        return from(slice_for(rank_).first, slice_for(rank_).count);
      case collective::reduce_scatter:
        return from(slice_for(peer).first, slice_for(peer).count);
      case collective::all_to_all:
        if (parts_.empty()) return from(slice_for(peer).first, slice_for(peer).count);
        return {parts_[static_cast<std::size_t>(peer)].address, parts_[static_cast<std::size_t>(peer)].count};
      default:
        return {};
    }
  }
  /// Where what `peer` tells this rank belongs; nowhere in reductions.
  [[nodiscard]] stretch incoming(int peer) const noexcept {
    auto const count = it_.what.count;
    bool const from_root = peer == it_.what.root;
    switch (it_.what.kind) {
      case collective::gather:
        return rank_ == it_.what.root ? to(peer * count, count) : stretch{};
      case collective::scatter:
        return from_root ? to(0, count) : stretch{};
      case collective::broadcast:
        if (!from_root) return {};
        return by_value_ ? to(0, count) : to(slice_for(rank_).first, slice_for(rank_).count);
      case collective::all_gather:
        return to(slice_for(peer).first, slice_for(peer).count);
      case collective::all_to_all: {
        if (parts_.empty()) return to(slice_for(peer).first, slice_for(peer).count);
        auto const& part = parts_[slices_.size() + static_cast<std::size_t>(peer)];
        return {part.address, part.count};
      }
      default:
        return {};
    }
  }

 private:
  [[nodiscard]] std::int64_t bytes(std::int64_t count) const noexcept {
    return count * static_cast<std::int64_t>(it_.element_bytes);
  }

  command it_;
  std::span<part const> parts_;
  int rank_ = 0;
  bool by_value_ = false;
  std::vector<interval> slices_;
};

}  // namespace trireme::comm::detail
