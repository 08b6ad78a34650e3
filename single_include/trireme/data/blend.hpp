// Trireme 0.1.0: trireme/data/blend.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b8b14957e99018b34bb7b697fa8fa93e03586df0a9ae2102b5dd9f10e7e25b0c
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/combined.hpp"

// ---- trireme/data/blend.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// A source of a blend, and its share of the samples relative to the other weights.
struct blend_source {
  shared_dataset data;
  double weight;
};

/// A mixture of datasets, which sets its own order: each prefix of the order holds each source within one sample of its
/// weight.
///
///     auto const mixed = data::blend{{stories, 0.7}, {code, 0.3}};
///
/// Within a source the order is a permutation, a new one in each pass. A source that is exhausted begins its next pass,
/// so small sources with large weights repeat: passes() says how often in an epoch, first_exhausted() which source is
/// the first. An epoch has as many samples as all sources together; passes continue from one epoch to the next.
///
/// The order is a function of (seed, epoch, position), so a run resumes from two numbers. A source that is added
/// changes the number of samples: a loader refuses to continue within an epoch, unless seek(place.next_epoch()) asks
/// for it. Other weights are not noticed. Datasets made of a blend (concat, subset, split) have its samples but
/// not its order; data::map keeps it.
///
/// Method   weights become parts of a period of at most 2^20 samples, whose order is that of [Tijdeman, "The chairman
///          assignment problem", 1980]: after n samples of k sources each count differs from n times its part by at
///          most 1 - 1 / (2 k - 2).
/// Numerics weights that are not exact parts of a period of at most 2^16 samples are rounded to 2^20 parts; share()
///          returns what is used.
/// Bytes    6 for each sample of a period.
/// Errors   config_error if there are no sources or more than 256, if their samples differ in shape or type, or if a
///          weight is not positive or is less than 2^-20 of all.
/// @models trireme::dataset, trireme::has_sample_order, trireme::has_placed_read
class blend : public detail::made_of_equal_sources {
 public:
  blend(std::initializer_list<blend_source> sources) : blend(std::vector<blend_source>(sources)) {}
  explicit blend(std::vector<blend_source> const& sources) : made_of_equal_sources(datasets_of(sources), who) {
    auto const refuse = [](auto const&... parts) { return config_error(text(who, ": ", parts...)); };
    if (sources.size() > most_sources) {
      throw refuse(sources.size(), " sources, but at most ", most_sources, " are mixed; concatenate some of them");
    }
    std::vector<double> weights;
    for (auto const& each : sources) {
      if (!(each.weight > 0) || each.weight > std::numeric_limits<double>::max()) {
        throw refuse("source ", weights.size(), " has the weight ", each.weight,
                     ", but weights are positive, finite numbers");
      }
      weights.push_back(each.weight);
    }
    period_ = std::make_shared<period const>(parts_of(weights));
    auto const& parts = period_->parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] == 0) {
        throw refuse("the weight of source ", i, ", ", weights[i],
                     ", is less than 2^-20 of all weights; leave the source out, or give it a larger weight");
      }
    }
  }

  /// The share of a source that is used.
  [[nodiscard]] double share(std::size_t source) const {
    return static_cast<double>(period_->parts.at(source)) / static_cast<double>(period_->length());
  }
  /// How often a source is passed through in an epoch: 2 if each of its samples is used twice, 0.5 if half are used.
  [[nodiscard]] double passes(std::size_t source) const {
    return share(source) * static_cast<double>(size()) / static_cast<double>(sources_.all().at(source).size());
  }
  /// Which source is exhausted first, and after how many samples of the blend, about. It then begins again, in a new
  /// order.
  struct exhausted {
    std::size_t source;
    std::int64_t samples;
  };
  [[nodiscard]] exhausted first_exhausted() const {
    exhausted out{0, std::numeric_limits<std::int64_t>::max()};
    for (std::size_t i = 0; i < sources_.all().size(); ++i) {
      auto const samples = std::ceil(static_cast<double>(sources_.all()[i].size()) / share(i));
      if (samples < static_cast<double>(out.samples)) out = {i, static_cast<std::int64_t>(samples)};
    }
    return out;
  }
  /// The source of a sample, by its number.
  [[nodiscard]] std::size_t source_of(std::int64_t id) const noexcept { return sources_.source_of(id); }

  [[nodiscard]] std::int64_t epoch_size() const noexcept { return size(); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t seed, std::uint64_t epoch, std::int64_t position) const noexcept {
    auto const at = place_of(epoch, position);
    auto const source = std::size_t{period_->sources[at % static_cast<std::uint64_t>(period_->length())]};
    return sources_.id_of(source, nth_of(source, at), seed);
  }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(nullptr, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(&place, ids, inputs, targets);
  }

 private:
  /// A place of the whole order, through all epochs.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t epoch, std::int64_t position) const noexcept {
    return epoch * static_cast<std::uint64_t>(size()) + static_cast<std::uint64_t>(position);
  }
  /// How many samples of the source at that place are before it.
  [[nodiscard]] std::uint64_t nth_of(std::size_t source, std::uint64_t at) const noexcept {
    auto const length = static_cast<std::uint64_t>(period_->length());
    return at / length * static_cast<std::uint64_t>(period_->parts[source]) + period_->before[at % length];
  }
  void read(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    // A sample that occurs twice in an epoch of the blend gets other random numbers.
    sources_.read(at, ids, inputs, targets, [&](std::size_t row, std::size_t source) {
      return sources_.pass_of(source, nth_of(source, place_of(at->epoch, at->position) + row));
    });
  }
  static constexpr char const* who = "trireme::data::blend";
  static constexpr std::size_t most_sources = 256;

  static std::vector<shared_dataset> datasets_of(std::vector<blend_source> const& sources) {
    std::vector<shared_dataset> out;
    for (auto const& each : sources) out.push_back(each.data);
    return out;
  }

  /// Weights as parts of the shortest period in which they are whole numbers, if it has at most 2^16 samples; else of
  /// 2^20 samples.
  static std::vector<std::int64_t> parts_of(std::vector<double> const& weights) {
    auto const largest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (auto const weight : weights) sum += weight / largest;
    auto const exact = [&](std::size_t i, std::int64_t length) {
      return weights[i] / largest / sum * static_cast<double>(length);
    };
    std::vector<std::int64_t> out(weights.size());
    for (std::int64_t length = 1; length <= 1 << 16; ++length) {
      bool whole = true;
      for (std::size_t i = 0; whole && i < weights.size(); ++i) {
        auto const part = exact(i, length);
        out[i] = std::llround(part);
        whole = out[i] > 0 && std::abs(part - static_cast<double>(out[i])) <= 1e-9;
      }
      if (whole && std::accumulate(out.begin(), out.end(), std::int64_t{0}) == length) return out;
    }
    constexpr std::int64_t length = 1 << 20;
    std::vector<std::size_t> order(weights.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = 0; i < weights.size(); ++i) out[i] = static_cast<std::int64_t>(exact(i, length));
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {  // the largest rest first
      return exact(a, length) - static_cast<double>(out[a]) > exact(b, length) - static_cast<double>(out[b]);
    });
    auto left = length - std::accumulate(out.begin(), out.end(), std::int64_t{0});
    for (std::size_t i = 0; left > 0; --left) ++out[order[i++ % order.size()]];
    return out;
  }

  /// The order of sources in a period.
  struct period {
    std::vector<std::int64_t> parts;       // samples of each source
    std::vector<std::uint16_t> sources{};  // of each sample
    std::vector<std::uint32_t> before{};   // samples of the same source before it in the period

    explicit period(std::vector<std::int64_t> of) : parts(std::move(of)) {
      auto const whole = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
      auto const twice = 2 * static_cast<std::int64_t>(parts.size()) - 2;
      std::vector<std::int64_t> counts(parts.size());
      for (std::int64_t n = 1; n <= whole; ++n) {
        // Of the sources that may have one more sample, the one that must have it the soonest.
        std::size_t best = parts.size();
        std::int64_t time = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          auto const behind = n * parts[i] - counts[i] * whole;
          if (behind * twice < whole) continue;
          auto const left = whole * (twice - 1) - behind * twice;
          if (best == parts.size() || left * parts[best] < time * parts[i]) best = i, time = left;
        }
        if (best == parts.size()) best = 0;  // a single source
        sources.push_back(static_cast<std::uint16_t>(best));
        before.push_back(static_cast<std::uint32_t>(counts[best]++));
      }
    }
    [[nodiscard]] std::int64_t length() const noexcept { return static_cast<std::int64_t>(sources.size()); }
  };

  std::shared_ptr<period const> period_;
};

}  // namespace trireme::data
