#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"

/// The sizes that determine a run's memory. As doubles: no product of sizes overflows.
struct memory_need {
  double parameters = 0;
  double channels = 0;
  double layers = 0;
  double context = 0;         ///< tokens of a sequence
  double sequences = 0;       ///< of the largest micro-batch
  double ranks = 1;           ///< of the world
  double ranks_here = 1;      ///< of them on this machine
  double moments = 2;         ///< moments of the optimizer per parameter
  bool each_has_all = false;  ///< each rank trains the whole model, with all of the optimizer's state
  bool on_device = false;     ///< it trains in the memory of a device, which the ranks here share
  bool simulated = false;     ///< that memory is this machine's

  /// Lower bounds for any strategy: a run that fits is never refused.
  [[nodiscard]] double least_bytes() const {
    double const evaluation = 4 * parameters * ranks_here;  // every rank's copy of the model that is written to disk
    double const units = 16384 * layers * ranks_here;       // half of a block's type-erased parts, however small
    return evaluation + units + (on_device && !simulated ? 0 : training_bytes());
  }
  [[nodiscard]] double least_device_bytes() const { return on_device ? training_bytes() : 0; }

 private:
  // In bfloat16 too: its values and gradients take as much with the values in float that are updated.
  [[nodiscard]] double training_bytes() const {
    auto const copies = each_has_all ? ranks_here : ranks_here / ranks;
    double const state = (8 + 4 * moments) * parameters * copies;  // values, gradients and moments in float
    double const activations = 16 * sequences * context * channels * layers * ranks_here / ranks;
    return state + activations;
  }
};

namespace detail {

/// The number after a name in a file with lines such as "MemAvailable:  123 kB".
inline std::optional<double> number_in(char const* path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    auto const first = std::min(line.find_first_not_of(" \t", name.size()), line.size());
    double number = 0;
    auto const read = std::from_chars(line.data() + first, line.data() + line.size(), number);
    return read.ec == std::errc() ? std::optional(number) : std::nullopt;  // "max": there is no limit
  }
  return std::nullopt;
}

/// The memory limit of this process's control groups: the lowest of its own and all above it.
inline std::optional<double> group_limit() {
  std::optional<double> least;
  auto const take = [&](std::string const& path) {
    if (auto const found = number_in(path.c_str(), "")) least = std::min(least.value_or(*found), *found);
  };
  take("/sys/fs/cgroup/memory.max");  // of a container that can see only its own
  take("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    bool const second = line.starts_with("0::");
    auto const first = line.find(":memory:");
    if (!second && first == line.npos) continue;
    auto path = second ? line.substr(3) : line.substr(first + 8);
    for (; path.size() > 1; path.resize(path.rfind('/'))) {
      take(second ? "/sys/fs/cgroup" + path + "/memory.max"
                  : "/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes");
    }
  }
  return least;
}

/// Bytes    that this process may still allocate; empty if that is not known.
inline std::optional<double> memory_left() {
  auto const free = number_in("/proc/meminfo", "MemAvailable:");
  auto const limit = group_limit();
  if (!free) return limit;
  auto const left = (*free + number_in("/proc/meminfo", "SwapFree:").value_or(0)) * 1024;
  return limit ? std::min(left, *limit) : left;
}

inline std::string readable_bytes(double bytes) {
  constexpr std::string_view units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return bytes < 1e6 ? fmt::format("{:.3g} {}", bytes, units[unit]) : fmt::format("{:.2e} {}", bytes, units[unit]);
}

}  // namespace detail

/// Throws config_error if a run needs more memory than there is, before it allocates any.
inline void expect_room(memory_need const& need) {
  auto const least = need.least_bytes();
  auto const left = detail::memory_left();
  if (!left || least <= *left) return;
  throw trireme::config_error(trireme::text(
      "training a model of ", fmt::format("{:.3g}", need.parameters), " parameters takes at least ",
      detail::readable_bytes(least), " for the ", need.ranks_here, " of ", trireme::how_many(need.ranks, "rank"),
      " on this machine, which has ", detail::readable_bytes(*left),
      " left; choose fewer --layers, --channels, --context, --experts or --ranks, "
      "or more --micro-batches"));
}
/// The same for the memory of a device; `bytes` is 0 if it is not known.
/// @returns a sentence with both numbers; empty if there is no device, or it is not known what it has.
inline std::string expect_device_room(memory_need const& need, std::size_t bytes) {
  if (!need.on_device || bytes == 0) return {};
  auto const least = need.least_device_bytes();
  auto const has = static_cast<double>(bytes);
  auto const numbers = trireme::text("training a model of ", fmt::format("{:.3g}", need.parameters),
                                     " parameters takes at least ", detail::readable_bytes(least),
                                     " of the device's memory for ", trireme::how_many(need.ranks_here, "rank"),
                                     " on it, and the device has ", detail::readable_bytes(has));
  if (least <= has) return numbers;
  throw trireme::config_error(
      trireme::text(numbers, "; choose fewer --layers, --channels, --context or --experts, or more --micro-batches"));
}
