#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/data/read_problem.hpp"

namespace trireme::detail {

/// The samples that the ranks of a training have left out because they cannot be read; the same on every rank.
class left_out_samples {
 public:
  /// @param most  0: none may be left out, and nothing is sent.
  explicit left_out_samples(std::int64_t most) : most_(most) {}

  [[nodiscard]] std::int64_t count() const noexcept { return static_cast<std::int64_t>(all_.size()); }

  /// Collective. Adds what each rank's loader has left out since the last call.
  /// @param failed  whether this rank has no batch: then the step is given up.
  /// Errors   sample_error on every rank if they are too many.
  template <class Comm>
  void add(Comm& world, std::span<data::read_problem const> here, bool failed) {
    if (most_ == 0) return;
    auto const own = here.subspan(std::min(known_, here.size()));
    std::int64_t largest[2] = {static_cast<std::int64_t>(own.size()), failed ? 1 : 0};
    world.all_reduce(tensor_view<std::int64_t>(largest, shape{2}), reduction::max{});
    known_ = here.size();
    if (largest[0] == 0) return;
    auto const each = static_cast<std::size_t>(largest[0]);
    std::vector<std::int64_t> numbers(each * static_cast<std::size_t>(world.size()));  // 0: none, else number + 1
    for (std::size_t i = 0; i < own.size(); ++i)
      numbers[each * static_cast<std::size_t>(world.rank()) + i] = own[i].sample + 1;
    world.all_reduce(tensor_view<std::int64_t>(numbers), reduction::sum{});
    std::int64_t last = -1;
    for (auto const number : numbers) {
      if (number == 0 || std::find(all_.begin(), all_.end(), number - 1) != all_.end()) continue;
      all_.push_back(number - 1);
      if (last < 0 && count() > most_) last = number - 1;
    }
    if (last < 0 || largest[1] > 0) return;  // a rank that has failed says why
    auto const reason = std::find_if(here.begin(), here.end(), [&](auto const& one) { return one.sample == last; });
    throw data::sample_error(
        text("trireme::trainer: fit(): more samples cannot be read than .bad_samples = ", most_,
             " permits; the last is ", last, reason == here.end() ? "" : text(" (", reason->reason, ")"),
             "; repair the data, or permit more"),
        last);
  }

 private:
  std::int64_t most_;
  std::size_t known_ = 0;  // of this rank's loader
  std::vector<std::int64_t> all_;
};

}  // namespace trireme::detail
