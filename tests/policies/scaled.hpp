#pragma once

// A precision as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <cstdint>
#include <string_view>

#include <trireme/trireme.hpp>

namespace user {

using namespace trireme;

/// Float with a running scale.
struct scaled {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 1e-5;
  static constexpr std::string_view name = "scaled";
  friend bool operator==(scaled const&, scaled const&) = default;

  class instance {
   public:
    explicit instance(scaled const&) {}
    double scale() const { return scale_; }
    bool decide(bool finite) {
      scale_ = finite && scale_ < 4096 ? 2 * scale_ : 16;
      return finite;
    }
    std::int64_t normal_skips() const { return 30; }
    template <class F>
    void visit_numbers(F&& f) {
      f("precision/scale", scale_);
    }

   private:
    double scale_ = 16;
  };
};

}  // namespace user
