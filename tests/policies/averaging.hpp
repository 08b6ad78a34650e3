#pragma once

// A parallel strategy as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

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

  template <class Env, class Comm, class Compressor>
  class instance : public parallel::local_exchange<Env, Comm, Compressor> {
    using base = parallel::local_exchange<Env, Comm, Compressor>;

   public:
    template <class Parameters, class... More>
    instance(Parameters all, Comm& replicas, averaging const& what, Compressor const& compressor, More&&... more)
        : base(std::move(all), replicas, what.bucket_bytes, compressor, std::forward<More>(more)...),
          period_(what.period) {}
    std::int64_t period() const { return period_; }
    bool end(std::int64_t step) {
      if ((step + 1) % period_ != 0) return false;
      this->for_each_tensor([&](int bucket, auto const& piece) {
        this->world().all_reduce(this->master_of(bucket, piece), reduction::mean{});
      });
      this->refresh_parameters();
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
    std::int64_t meetings_ = 0;
  };
};
inline std::string to_string(averaging const& a) { return text("averaging{.period = ", a.period, "}"); }

}  // namespace user
