#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/formats/model_files.hpp"

namespace trireme::data {

/// A weight that is a number, or a function of the step: double(std::int64_t step).
class weight_of_step {
 public:
  weight_of_step(double fixed)
      : call_([fixed](std::int64_t) { return fixed; }) {}  // NOLINT(google-explicit-constructor)
  template <class F>
  requires std::is_invocable_r_v<double, F const&, std::int64_t> weight_of_step(F call)
      : call_(std::move(call)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] double operator()(std::int64_t step) const { return call_(step); }

 private:
  std::function<double(std::int64_t)> call_;
};

/// A source of a curriculum, and its share of the samples of a step relative to the other weights.
struct curriculum_source {
  shared_dataset data;
  weight_of_step weight;
};

/// The length of a curriculum.
struct curriculum_length {
  std::int64_t batch = 0;  ///< samples of a step, over all ranks, as in fit_options
  std::int64_t steps = 0;
  friend bool operator==(curriculum_length const&, curriculum_length const&) = default;
};

/// A mixture of datasets whose weights change from step to step.
///
///     data::curriculum const mixed{{.batch = 64, .steps = 1000},
///                                  {{easy, [](std::int64_t step) { return 1 - step / 1000.0; }}, {hard, 1}}};
///
/// A step is .batch samples. The mixture sets its own order, whose first epoch is all of the .steps; in later epochs
/// the weights stay those of the last step. Within a source the order is a permutation, a new one in each pass; a
/// source that is exhausted begins its next pass. A weight may be 0 for a while.
///
/// Windows of tokens may also grow with the step:
///
///     data::curriculum const growing{{.batch = 64, .steps = 1000}, {{windows, 1}},
///                                    [](std::int64_t step) { return step < 500 ? 256 : 1024; }};
///
/// Behind so many tokens inputs are 0 and targets -1, which losses ignore: with causal attention, steps are those of
/// shorter windows. They take the time of whole ones; to save it, call fit() on shorter windows first.
///
/// The order is a function of (seed, epoch, position), the same on any number of ranks and after a resume, so weights
/// and lengths must depend on the step alone. They are read when the curriculum is made; a run that resumes needs the
/// same ones.
///
/// Method   each sample is of the source that is the furthest behind the sum of its shares. This is stored for
///          one in 64 samples and repeated from there, so finding a sample takes less than a microsecond.
/// Bytes    16 for each source and 64 samples, 8 for each source and step, 8 for each step with windows that grow.
/// Errors   config_error for a length that is not positive, if there are no sources, if their samples differ in form,
///          for weights that are negative, infinite or all 0, and for lengths of windows that are not tokens or have
///          fewer of them.
/// @models trireme::dataset, trireme::has_sample_order, trireme::has_placed_read
/// @see data::blend, whose weights do not change
class curriculum : public detail::made_of_equal_sources {
 public:
  /// The tokens of a window in a step.
  using window_of_step = std::function<std::int64_t(std::int64_t step)>;

  curriculum(curriculum_length length, std::initializer_list<curriculum_source> sources,
             window_of_step const& window = {})
      : curriculum(length, std::vector<curriculum_source>(sources), window) {}
  curriculum(curriculum_length length, std::vector<curriculum_source> const& sources, window_of_step const& window = {})
      : made_of_equal_sources(datasets_of(sources), who), length_(checked(length)) {
    if (window) find_windows(window);
    std::vector<double> shares;
    for (std::int64_t step = 0; step < length.steps; ++step) add_shares(sources, step, shares);
    auto const count = static_cast<std::ptrdiff_t>(sources.size());
    std::vector<double> last(shares.end() - count, shares.end());
    first_ = std::make_shared<course const>(std::move(shares), sources.size(), length_);
    later_ = std::make_shared<course const>(std::move(last), sources.size(), length_);
  }

  /// The share of a source in a step.
  [[nodiscard]] double share(std::size_t source, std::int64_t step) const {
    return first_->share(source, std::clamp<std::int64_t>(step, 0, length_.steps - 1));
  }
  /// The tokens of a window in a step; 0 if windows are whole.
  [[nodiscard]] std::int64_t window(std::int64_t step) const {
    return windows_ ? (*windows_)[static_cast<std::size_t>(std::clamp<std::int64_t>(step, 0, length_.steps - 1))] : 0;
  }
  /// The source of a sample, by its number.
  [[nodiscard]] std::size_t source_of(std::int64_t id) const noexcept { return sources_.source_of(id); }

  [[nodiscard]] std::int64_t epoch_size() const noexcept { return length_.batch * length_.steps; }
  [[nodiscard]] std::int64_t id_at(std::uint64_t seed, std::uint64_t epoch, std::int64_t position) const {
    auto const at = turn_of(epoch, position);
    return sources_.id_of(at.source, at.nth, seed);
  }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(nullptr, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(&place, ids, inputs, targets);
  }

 private:
  static constexpr char const* who = "trireme::data::curriculum";
  static constexpr std::int64_t stride = 64;
  struct turn {
    std::size_t source;
    std::uint64_t nth;  // samples of that source before it
  };

  /// The order of sources in an epoch.
  class course {
   public:
    /// @param shares  of each source in the first step, then in the second one, and so on; then they stay.
    course(std::vector<double> shares, std::size_t sources, curriculum_length length)
        : shares_(std::move(shares)), sources_(sources), length_(length), end_(sources) {
      std::vector<double> behind(sources);
      for (std::int64_t n = 0; n < length.batch * length.steps; ++n) {
        if (n % stride == 0) {
          counts_.insert(counts_.end(), end_.begin(), end_.end());
          behind_.insert(behind_.end(), behind.begin(), behind.end());
        }
        ++end_[next(n, behind.data())];
      }
    }
    [[nodiscard]] turn at(std::int64_t position) const {
      auto const block = static_cast<std::size_t>(position / stride) * sources_;
      std::vector<double> behind(behind_.begin() + static_cast<std::ptrdiff_t>(block),
                                 behind_.begin() + static_cast<std::ptrdiff_t>(block + sources_));
      std::vector<std::uint64_t> before(sources_);
      std::size_t source = 0;
      for (auto n = position / stride * stride; n <= position; ++n) ++before[source = next(n, behind.data())];
      return {source, counts_[block + source] + before[source] - 1};
    }
    [[nodiscard]] std::uint64_t count(std::size_t source) const noexcept { return end_[source]; }
    [[nodiscard]] double share(std::size_t source, std::int64_t step) const noexcept {
      auto const last = static_cast<std::int64_t>(shares_.size() / sources_) - 1;
      return shares_[static_cast<std::size_t>(std::min(step, last)) * sources_ + source];
    }

   private:
    std::size_t next(std::int64_t n, double* behind) const noexcept {
      std::size_t best = 0;
      double most = -std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < sources_; ++i) {
        auto const own = share(i, n / length_.batch);
        behind[i] += own;
        if (own > 0 && behind[i] > most) best = i, most = behind[i];
      }
      behind[best] -= 1;
      return best;
    }
    std::vector<double> shares_;
    std::size_t sources_;
    curriculum_length length_;
    std::vector<std::uint64_t> end_;     // samples of each source in the epoch
    std::vector<std::uint64_t> counts_;  // before each 64th sample
    std::vector<double> behind_;         // and how far each source is behind its shares there
  };

  static curriculum_length checked(curriculum_length const& of) {
    constexpr auto most = std::int64_t{1} << 36;
    if (of.batch < 1 || of.steps < 1 || of.batch > most / of.steps) {
      throw config_error(text(who, ": .batch = ", of.batch, " and .steps = ", of.steps,
                              ", but both must be at least 1, and all steps have at most 2^36 samples"));
    }
    return of;
  }
  static std::vector<shared_dataset> datasets_of(std::vector<curriculum_source> const& sources) {
    std::vector<shared_dataset> out;
    for (auto const& each : sources) out.push_back(each.data);
    return out;
  }
  static void add_shares(std::vector<curriculum_source> const& sources, std::int64_t step, std::vector<double>& to) {
    double sum = 0;
    auto const first = to.size();
    for (auto const& each : sources) {
      auto const weight = each.weight(step);
      if (!(weight >= 0) || weight > std::numeric_limits<double>::max() / static_cast<double>(sources.size())) {
        throw config_error(text(who, ": in step ", step, " source ", to.size() - first, " has the weight ", weight,
                                ", but weights are 0 or positive, finite numbers"));
      }
      to.push_back(weight);
      sum += weight;
    }
    if (!(sum > 0)) throw config_error(text(who, ": in step ", step, " all weights are 0"));
    for (auto i = first; i < to.size(); ++i) to[i] /= sum;
  }

  [[nodiscard]] turn turn_of(std::uint64_t epoch, std::int64_t position) const {
    if (epoch == 0) return first_->at(position);
    auto out = later_->at(position);
    out.nth += first_->count(out.source) + (epoch - 1) * later_->count(out.source);
    return out;
  }
  void read(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    sources_.read(at, ids, inputs, targets, [&](std::size_t row, std::size_t) {
      auto const where = turn_of(at->epoch, (at->position + static_cast<std::int64_t>(row)) % epoch_size());
      return sources_.pass_of(where.source, where.nth);
    });
    if (at == nullptr || !windows_) return;
    auto const whole = input_shape().size();
    for (std::size_t row = 0; row < ids.size(); ++row) {
      auto const position = (at->position + static_cast<std::int64_t>(row)) % epoch_size();
      auto const tokens = window(at->epoch == 0 ? position / length_.batch : length_.steps);
      auto const first = static_cast<std::int64_t>(row) * whole + tokens;
      std::fill_n(static_cast<std::int32_t*>(inputs) + first, whole - tokens, 0);
      std::fill_n(static_cast<std::int32_t*>(targets) + first, whole - tokens, -1);
    }
  }
  void find_windows(window_of_step const& window) {
    if (input_type() != dtype::i32 || target_type() != dtype::i32 || input_shape().rank() != 1 ||
        input_shape() != target_shape()) {
      throw config_error(text(who, ": the samples are not windows of tokens, so they cannot be shorter"));
    }
    auto found = std::make_shared<std::vector<std::int64_t>>();
    for (std::int64_t step = 0; step < length_.steps; ++step) {
      found->push_back(window(step));
      if (found->back() < 1 || found->back() > input_shape().size()) {
        throw config_error(text(who, ": in step ", step, " windows have ", how_many(found->back(), "token"),
                                ", but there are from 1 to ", input_shape().size()));
      }
    }
    windows_ = std::move(found);
  }

  curriculum_length length_;
  std::shared_ptr<course const> first_, later_;
  std::shared_ptr<std::vector<std::int64_t> const> windows_;  // of each step, if they are not whole
};

}  // namespace trireme::data
