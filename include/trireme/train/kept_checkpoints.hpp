#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"

namespace trireme::checkpoint {

/// Which of a run's checkpoints are kept when another one is saved: the newest, and those with the lowest held-out
/// loss. The others are removed.
///
/// Ranks    the same on all of them.
/// Errors   a save throws config_error if `last` is not positive, or `best` is negative.
struct keeping {
  std::int64_t last = 2;  ///< this many of the newest, including the one being saved
  std::int64_t best = 0;  ///< this many of those with the lowest held-out loss; they may be among the newest
  /// The held-out loss of the checkpoint being saved, stored in its manifest. A checkpoint without a loss is never
  /// among the best.
  double held_out = std::numeric_limits<double>::quiet_NaN();
};

/// A checkpoint in a directory.
struct kept {
  std::string path;  ///< trainer.load() takes it, too
  std::int64_t step = 0;
  double held_out = std::numeric_limits<double>::quiet_NaN();  ///< the value in `keeping` when it was saved
};

namespace detail {

inline void expect_some_kept(keeping const& how) {
  if (how.last < 1) {
    throw config_error(text("trireme::checkpoint::keeping: .last is ", how.last, "; keep at least the newest one"));
  }
  if (how.best < 0) throw config_error(text("trireme::checkpoint::keeping: .best is ", how.best, "; 0 keeps none"));
}

/// The held-out loss in a manifest, or NaN.
[[nodiscard]] inline double held_out_in(formats::json::value const& manifest) {
  auto const* const said = manifest.find("held_out");
  return said == nullptr ? std::numeric_limits<double>::quiet_NaN() : said->as_double();
}

/// A checkpoint of the run that saves.
struct own_checkpoint {
  std::int64_t step = 0;
  double held_out = std::numeric_limits<double>::quiet_NaN();
};

/// Whether one is better than the other; if the losses are equal, the newer one is.
[[nodiscard]] inline bool is_better(double loss, std::int64_t step, double than, std::int64_t than_step) noexcept {
  if (std::isfinite(loss) != std::isfinite(than)) return std::isfinite(loss);
  return std::isfinite(loss) && !exactly_equal(loss, than) ? loss < than : step > than_step;
}

/// The steps of the checkpoints to be removed, oldest first.
/// @param all  oldest first, including the one just saved.
[[nodiscard]] inline std::vector<std::int64_t> steps_to_remove(std::vector<own_checkpoint> all, keeping const& how) {
  auto const newest = std::min(all.size(), static_cast<std::size_t>(how.last));
  std::vector<own_checkpoint> older(all.begin(), all.end() - static_cast<std::ptrdiff_t>(newest));
  std::erase_if(all, [](own_checkpoint const& each) { return !std::isfinite(each.held_out); });
  std::sort(all.begin(), all.end(), [](own_checkpoint const& a, own_checkpoint const& b) {
    return is_better(a.held_out, a.step, b.held_out, b.step);
  });
  all.resize(std::min(all.size(), static_cast<std::size_t>(how.best)));
  std::vector<std::int64_t> out;
  for (auto const& each : older) {
    bool const stays =
        std::any_of(all.begin(), all.end(), [&](own_checkpoint const& best) { return best.step == each.step; });
    if (!stays) out.push_back(each.step);
  }
  return out;
}

}  // namespace detail

/// The checkpoints of a directory, oldest first. Those whose manifest cannot be read are left out.
///
/// Ranks    local.
/// Errors   io_error if the directory is missing or out of reach.
[[nodiscard]] inline std::vector<kept> kept_in(std::string const& directory,
                                               formats::file_system& files = formats::real_files()) {
  auto const home = detail::home_of_checkpoints(directory, files);
  std::vector<kept> all;
  for (auto const step : detail::steps_in(home)) {
    auto const name = detail::step_name(step);
    kept one{home.path_of(name), step};
    auto const look = [&](std::string const& where) {
      return detail::damage_in([&] { one.held_out = detail::held_out_in(detail::read_manifest(home.below(where))); });
    };
    auto damage = look(name);
    if (!damage.empty()) damage = look(std::string(detail::replaced_prefix) + name);  // load() renames it back
    if (damage.empty()) all.push_back(std::move(one));
  }
  return all;
}

/// The one with the lowest held-out loss, if any has a loss: `trainer.load(checkpoint::best_in(directory)->path)`.
[[nodiscard]] inline std::optional<kept> best_in(std::string const& directory,
                                                 formats::file_system& files = formats::real_files()) {
  auto const all = kept_in(directory, files);
  auto const best = std::min_element(all.begin(), all.end(), [](kept const& a, kept const& b) {
    return detail::is_better(a.held_out, a.step, b.held_out, b.step);
  });
  if (best == all.end() || !std::isfinite(best->held_out)) return std::nullopt;
  return *best;
}

}  // namespace trireme::checkpoint
