#pragma once

// A parallel strategy as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/trireme.hpp>

namespace user {

using namespace trireme;

/// Ranks train alone and average their parameters after every `period` steps; what they keep besides is how often.
struct averaging {
  using policy_category = slot::parallel;
  std::int64_t period = 4;
  std::int64_t bucket_bytes = 4096;
  int ways = 0;
  friend bool operator==(averaging const&, averaging const&) = default;

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "averaging";
  static constexpr bool local_steps = true;  // each rank takes steps alone: gradients are not summed

  template <class Env, class Comm>
  class instance {
   public:
    static constexpr parallel::strategy_hooks has{.end = true, .numbers = true};

    instance(averaging const& what, parallel::owned_state<Env, Comm> const& state)
        : period_(what.period), state_(state) {}
    std::int64_t period() const { return period_; }
    bool end(std::int64_t step) {
      if ((step + 1) % period_ != 0) return false;
      for (auto const& each : state_.all) state_.replicas.all_reduce(each.value, reduction::mean{});
      ++meetings_;
      return true;
    }
    template <class F>
    void visit_numbers(F&& f) {
      f("averaging/meetings", meetings_);
    }
    std::int64_t meetings() const { return meetings_; }

   private:
    std::int64_t period_;
    parallel::owned_state<Env, Comm> state_;
    std::int64_t meetings_ = 0;
  };
};
inline std::string to_string(averaging const& a) { return text("averaging{.period = ", a.period, "}"); }

}  // namespace user
