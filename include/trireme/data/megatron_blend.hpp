#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/listed_order.hpp"
#include "trireme/data/megatron_windows.hpp"

namespace trireme::data {

/// A file of a blend, as in megatron_windows, and its weight.
struct megatron_blend_file {
  std::string file;
  double weight = 0;  ///< of all files, or 0 for all of them: each counts as many samples as it has
  std::int64_t first_sequence = 0;
  std::int64_t last_sequence = -1;
  TRIREME_EXACT_BEGIN
  friend bool operator==(megatron_blend_file const&, megatron_blend_file const&) = default;
  TRIREME_EXACT_END
};

/// The samples of Megatron-LM's BlendedDataset of GPTDatasets, in its order (`--data-path 30 a 70 b`).
///
///     data::megatron_blend{.files = {{"a.bin", 30}, {"b.bin", 70}}, .context = 2048, .samples = 1000 * 256}.open()
///
/// Each file gives as many samples as its weight says, and .surplus more, in an order of its own; a sample is of the
/// file that is the furthest behind its weight. With weights that are all 0, as with `--data-path a b`, each file is
/// passed through once, and weighs as much as it has samples.
///
/// Bytes    those of megatron_windows for each file, 8 for each sample.
/// Errors   open() throws config_error for fields out of range, for weights of which some are 0, and where a file has
///          too few samples; else as megatron_windows.
/// @see data::blend, which mixes any sources and stores no order
struct megatron_blend {
  std::vector<megatron_blend_file> files{};
  std::int64_t context = 1024;  ///< Megatron-LM's --seq-length
  std::int64_t samples = 0;     ///< that the whole run takes: steps * global batch; 0, without weights: all
  std::uint32_t seed = 1234;    ///< --seed
  double surplus = 0.005;       ///< --mid-level-dataset-surplus
  std::int64_t vocabulary = 0;  ///< ids from it on are refused when they are read; 0: any is read
  std::int32_t separator = -1;  ///< the target after it is -1 (--eod-mask-loss); -1: none
  [[nodiscard]] listed_order open() const;
  TRIREME_EXACT_BEGIN
  friend bool operator==(megatron_blend const&, megatron_blend const&) = default;
  TRIREME_EXACT_END
};

/// "trireme::data::megatron_blend{.files = {{"a.bin", 0.3}, {"b.bin", 0.7}}, .context = 1024, ...}"
[[nodiscard]] inline std::string to_string(megatron_blend const& from) {
  std::string files;
  for (auto const& each : from.files) {
    files += text(files.empty() ? "" : ", ", "{\"", each.file, "\", ", each.weight);
    if (each.first_sequence != 0 || each.last_sequence != -1)
      files += text(", ", each.first_sequence, ", ", each.last_sequence);
    files += "}";
  }
  return text("trireme::data::megatron_blend{.files = {", files, "}, .context = ", from.context,
              ", .samples = ", from.samples, ", .seed = ", from.seed, ", .surplus = ", from.surplus,
              ", .vocabulary = ", from.vocabulary, ", .separator = ", from.separator, "}");
}

inline listed_order megatron_blend::open() const {
  auto const refuse = [](auto const&... parts) {
    return config_error(text("trireme::data::megatron_blend: ", parts...));
  };
  if (files.empty()) throw refuse(".files names no file; give at least one");
  auto const weighted =
      std::count_if(files.begin(), files.end(), [](auto const& each) { return !exactly_equal(each.weight, 0.0); });
  double sum = 0;
  for (auto const& each : files) {
    if (!(each.weight >= 0) || !std::isfinite(each.weight) || (weighted > 0 && exactly_equal(each.weight, 0.0))) {
      throw refuse(each.file, " has the weight ", each.weight, ", but all weights are positive, or all are 0");
    }
    sum += each.weight;
  }
  constexpr auto most = std::int64_t{1} << 31;
  if (samples < 0 || samples >= most || (weighted > 0 && samples == 0)) {
    throw refuse(".samples = ", samples, ", but it must be at least 1 and below 2^31 (0: all, without weights)");
  }
  if (!(surplus >= 0 && surplus <= 1000)) throw refuse(".surplus = ", surplus, ", but it is from 0 to 1000");

  // The rounding of each number is that of Megatron-LM's code.
  std::vector<megatron_samples> parts;
  std::vector<double> weights;
  std::int64_t size = 0;
  for (auto const& each : files) {
    auto const wanted = weighted > 0 ? std::ceil(static_cast<double>(samples) * (each.weight / sum)) : 0.0;
    auto const built = std::ceil(wanted * (1 + surplus));
    if (built >= static_cast<double>(most)) throw refuse(each.file, " needs 2^31 samples or more");
    parts.push_back(megatron_windows{.file = each.file,
                                     .context = context,
                                     .samples = static_cast<std::int64_t>(built),
                                     .seed = seed,
                                     .first_sequence = each.first_sequence,
                                     .last_sequence = each.last_sequence,
                                     .vocabulary = vocabulary,
                                     .separator = separator}
                        .open());
    weights.push_back(weighted > 0 ? each.weight / sum : static_cast<double>(parts.back().size()));
    size += weighted > 0 ? static_cast<std::int64_t>(wanted) : parts.back().size();
  }
  bool const exhausts = weighted == 0 && samples == 0;  // each file once, whatever its weight
  if (samples > 0) size = std::min(size, samples);
  double total = 0;
  for (auto const weight : weights) total += weight;
  for (auto& weight : weights) weight /= total;

  std::vector<std::int64_t> begins, taken(parts.size()), order;
  std::vector<shared_dataset> sources;
  std::int64_t begin = 0;
  for (auto const& each : parts) {
    begins.push_back(begin);
    begin += each.size();
    sources.emplace_back(each);
  }
  order.reserve(static_cast<std::size_t>(size));
  for (std::int64_t n = 0; n < size; ++n) {
    auto const place = std::max(static_cast<double>(n), 1.0);
    std::size_t best = parts.size();
    double furthest = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (exhausts && taken[i] == parts[i].size()) continue;
      auto const behind = weights[i] * place - static_cast<double>(taken[i]);
      if (best == parts.size() || behind > furthest) best = i, furthest = behind;
    }
    auto const nth = taken[best]++;
    if (nth >= parts[best].size()) {
      throw refuse(files[best].file, " has ", parts[best].size(), " samples, but more are needed; choose a larger ",
                   ".surplus, as Megatron-LM would have to");
    }
    order.push_back(begins[best] + parts[best].id_at(0, 0, nth));
  }
  return {concat(std::move(sources)), std::move(order)};
}

}  // namespace trireme::data
