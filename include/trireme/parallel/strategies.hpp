#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/slot.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"

namespace trireme::parallel {

/// Data parallelism: every rank has the whole model and a part of each batch; gradients are summed, bucket by bucket,
/// during backward. The default.
///
/// Bytes    per rank and step: 2 n (p-1)/p elements of the wire type, n gradients, p ranks.
/// Ranks    reproducible: a power of two of ranks, each with the same number of logical micro-batches.
/// Numerics reproducible: gradients of logical micro-batches are summed in one fixed tree, so that weights have the
///          same bits for any number of ranks. It keeps log2(m) + 1 more gradients, m micro-batches a rank.
/// Needs    has_all_reduce; has_all_gather for compressors whose payloads cannot be summed.
struct data {
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  bool reproducible = false;  ///< the same bits for any number of ranks; every rank's share is whole micro-batches
  int ways = 0;               ///< ranks that split samples; 0: the ranks that other axes leave
  friend bool operator==(data const&, data const&) = default;

  void validate() const {
    expect_number("parallel::data", ".bucket_bytes", bucket_bytes, at_least_one);
    expect_number("parallel::data", ".ways", ways, not_negative);
  }

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr bool takes_shares = true;
  static constexpr std::string_view name = "data";
};

/// ZeRO: data parallelism with its state divided into one shard a rank. Stage 1 shards the optimizer's state: gradients
/// are reduce-scattered, each rank updates its shard, and the new parameters are gathered. Stage 2 also shards
/// gradients: a unit's gradients are whole only from its backward until they are reduced. Stage 3 also shards
/// parameters: a unit's parameters are gathered before it runs and dropped afterwards.
///
/// Bytes    per rank and step, m micro-batches a rank: stage 1 n (p-1)/p of the wire type and n (p-1)/p of the
///          parameter type; stage 2 m times the first; stage 3 m times the first and about 2 m times the second (the
///          last unit is not gathered twice). From stage 2 on each use of a tied tensor is reduced on its own.
/// Numerics stage 1 equals data bit for bit. From stage 2 on each micro-batch is summed over the ranks first, then the
///          micro-batches: equal to data if each rank has one micro-batch and no tensor is tied, else up to rounding.
///          reproducible: as for data; from stage 2 on it then keeps whole gradients if a rank has several
///          micro-batches.
/// Needs    has_reduce_scatter and has_all_gather; has_all_to_all for compressors whose payloads cannot be summed. If
///          ranks share an address space, stage 1 reads all ranks' gradients, and stages 1 and 2 write all ranks'
///          parameters.
/// Method   [Rajbhandari et al., "ZeRO", 2020].
template <int Stage>
struct zero {
  static_assert(Stage >= 1 && Stage <= 3, "trireme::parallel::zero: the stage must be 1, 2 or 3");
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  bool reproducible = false;  ///< the same bits for any number of ranks; every rank's share is whole micro-batches
  int ways = 0;               ///< ranks that split samples; 0: the ranks that other axes leave
  friend bool operator==(zero const&, zero const&) = default;

  void validate() const {
    expect_number("parallel::zero", ".bucket_bytes", bucket_bytes, at_least_one);
    expect_number("parallel::zero", ".ways", ways, not_negative);
  }

  static constexpr distribution optimizer_state = distribution::shard;
  static constexpr distribution gradients = Stage >= 2 ? distribution::shard : distribution::replicate;
  static constexpr distribution parameters = Stage >= 3 ? distribution::shard : distribution::replicate;
  static constexpr bool takes_shares = Stage <= 2;
  static constexpr std::string_view name = Stage == 1 ? "zero1" : Stage == 2 ? "zero2" : "zero3";
};

namespace detail {

template <class S>
[[nodiscard]] std::string options_of(S const& s) {
  return text("{.bucket_bytes = ", s.bucket_bytes, s.reproducible ? ", .reproducible = true" : "",
              s.ways != 0 ? text(", .ways = ", s.ways) : "", "}");
}

}  // namespace detail

[[nodiscard]] inline std::string to_string(data const& d) { return "parallel::data" + detail::options_of(d); }
template <int Stage>
[[nodiscard]] std::string to_string(zero<Stage> const& z) {
  return text("parallel::zero<", Stage, ">", detail::options_of(z));
}

}  // namespace trireme::parallel
