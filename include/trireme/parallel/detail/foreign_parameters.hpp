#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"

namespace trireme::parallel::detail {

/// Parameters in the caller's memory, none of them tied. Their gradients are copied into buckets and back.
template <class Env>
class foreign_parameters {
 public:
  using element = typename Env::param;
  using space = typename Env::space;
  using view = tensor_view<element, space>;
  static constexpr bool lent = true;
  static constexpr std::string_view equal_start =
      "from the same values: world.broadcast(values, 0) gives it those of rank 0";

  explicit foreign_parameters(std::vector<foreign_parameter<element, space>> all) : all_(std::move(all)) {}

  /// Whether gradients have memory only while a unit uses them.
  [[nodiscard]] static bool in_units(auto const&) noexcept { return false; }
  static void expect_possible(auto const& strategy, bool) {
    if (!sums_in_a_tree(strategy)) return;
    throw config_error(text("trireme::exchange: ", describe(strategy),
                            " needs to know the micro-batches, which a model with its own memory does not provide; "
                            "leave .reproducible out, or describe the model in units"));
  }
  /// No layer is bound to a bucket.
  [[nodiscard]] std::vector<parameter<Env>*> const& layers() const noexcept { return none_; }
  [[nodiscard]] int count() const noexcept { return static_cast<int>(all_.size()); }

  /// Errors   config_error if two of them have the same name, or if one has different numbers of gradients and values.
  [[nodiscard]] std::vector<parameter_info> infos() const {
    std::vector<parameter_info> infos;
    for (auto const& each : all_) {
      if (each.value.size() != each.gradient.size()) {
        throw config_error(text("trireme::exchange: parameter \"", each.name, "\" has ", each.value.size(),
                                " values but ", how_many(each.gradient.size(), "gradient")));
      }
      for (auto const& other : infos) {
        if (other.name == each.name) {
          throw config_error(text("trireme::exchange: two parameters are named \"", each.name, "\"; rename one"));
        }
      }
      infos.push_back({each.name, each.value.extents(), {}, each.value.rank() > 1});
      infos.back().fused = each.fused;
      infos.back().stacked = each.stacked;
    }
    return infos;
  }

  /// From now on the gradients of parameter number `use` are in `gradient`.
  /// Errors   config_error if their number differs from that of the values.
  void gradient_at(int use, view gradient) {
    auto& it = all_[static_cast<std::size_t>(use)];
    if (it.value.size() != gradient.size()) {
      throw config_error(text("trireme::exchange: parameter \"", it.name, "\" has ", it.value.size(),
                              " values, but its gradient is moved to ", gradient.size()));
    }
    it.gradient = gradient;
  }

  /// The values have been written: updates the caller's copies.
  void follow() const {
    for (auto const& each : all_) {
      if (each.follow) each.follow();
    }
  }

  /// All values, and all gradients, of one tensor.
  [[nodiscard]] view value(bucket_plan::entry const& entry) const { return of(entry).value.flat(); }
  [[nodiscard]] view gradient(bucket_plan::entry const& entry) const { return of(entry).gradient.flat(); }

 private:
  [[nodiscard]] foreign_parameter<element, space> const& of(bucket_plan::entry const& entry) const {
    return all_[static_cast<std::size_t>(entry.uses.front())];
  }

  std::vector<foreign_parameter<element, space>> all_;
  std::vector<parameter<Env>*> none_;
};

}  // namespace trireme::parallel::detail
