#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"

namespace trireme::parallel::detail {

/// Sums of all ranks' gradients, computed in place if ranks share an address space: nothing is sent.
template <class Element, class Space>
class direct_sums {
 public:
  using view = tensor_view<Element, Space>;
  using term = tensor_view<Element const, Space>;
  using kernels = ops::on<Space>;

  /// Collective. Adds the next bucket, with this rank's gradients.
  template <class Comm>
  void add_bucket(Comm& world, view own) {
    peers_.push_back(world.peers(own));
  }
  /// Elements [first, first + count) of a bucket on each rank; valid until the next call.
  [[nodiscard]] std::span<term const> terms_of(int bucket, std::int64_t first, std::int64_t count) {
    terms_.clear();
    for (auto const& peer : peers_[static_cast<std::size_t>(bucket)]) terms_.push_back(peer.flat(first, count));
    return terms_;
  }
  /// Replaces this rank's elements from `first` on by the sums over all ranks, and calls f(sums) for each block of them
  /// while it is in the second-level cache.
  template <class F>
  void reduce(int bucket, std::int64_t first, view own, F&& f) {
    constexpr std::int64_t stretch = 32 * block_elements;
    for (std::int64_t at = 0; at < own.size(); at += stretch) {
      auto const sums = own.flat(at, std::min(stretch, own.size() - at));
      kernels::reduce(std::span<view const>(&sums, 1), terms_of(bucket, first + at, sums.size()), reduction::sum{});
      f(term(sums));
    }
  }

 private:
  std::vector<std::vector<view>> peers_;  // by bucket
  std::vector<term> terms_;
};

}  // namespace trireme::parallel::detail
