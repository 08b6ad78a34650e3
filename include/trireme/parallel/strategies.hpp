#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/slot.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/text.hpp"

namespace trireme::parallel {

/// Data parallelism: every rank has the whole model and a part of each batch; gradients are summed, bucket by bucket,
/// while backward still runs. The default.
///
/// Bytes    per rank and step: 2 n (p-1)/p elements of the wire type, n gradients, p ranks.
/// Needs    has_all_reduce; has_all_gather for compressors whose payloads cannot be summed.
struct data {
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  friend bool operator==(data const&, data const&) = default;

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "data";
};

/// ZeRO: data parallelism whose state is cut into one shard a rank. Stage 1 shards the optimizer's state: gradients
/// are reduce-scattered, each rank updates its shard, and the new parameters are gathered.
///
/// Bytes    per rank and step: n (p-1)/p of the wire type and n (p-1)/p of the parameter type.
/// Needs    has_reduce_scatter and has_all_gather; has_all_to_all for compressors whose payloads cannot be summed.
///          Where ranks share an address space the update reads all ranks' gradients and writes all ranks' parameters.
/// Method   [Rajbhandari et al., "ZeRO", 2020].
template <int Stage>
struct zero {
  static_assert(Stage == 1, "trireme::parallel::zero: this version has stage 1");
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  friend bool operator==(zero const&, zero const&) = default;

  static constexpr distribution optimizer_state = distribution::shard;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "zero1";
};

[[nodiscard]] inline std::string to_string(data const& d) {
  return text("parallel::data{.bucket_bytes = ", d.bucket_bytes, "}");
}
template <int Stage>
[[nodiscard]] std::string to_string(zero<Stage> const& z) {
  return text("parallel::zero<", Stage, ">{.bucket_bytes = ", z.bucket_bytes, "}");
}

}  // namespace trireme::parallel
