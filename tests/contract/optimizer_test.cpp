#include "trireme/contract/optimizer.hpp"

#include <array>
#include <string_view>

#include "../catch.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;

/// The smallest optimizer, and models that each lack one requirement.
struct archetype {
  static constexpr std::array<std::string_view, 0> moment_names{};
  double clip = 0;
  double rate_at(std::int64_t) const { return 0; }
  void update(update_segment<env> const&, std::int64_t) const {}
  archetype() = default;
  archetype(archetype const&) = delete;
};
struct without_names : archetype {
  static constexpr int moment_names = 0;
};
struct without_rate : archetype {
  void rate_at(std::int64_t) const;
};
struct without_clip : archetype {
  void clip();
};
struct without_update : archetype {
  void update(int) const;
};
struct whole_archetype : archetype {
  static constexpr bool whole_tensors = true;
  static shape moment_shape(std::size_t, parameter_info const&) { return {}; }
  void update(tensor_update<env> const&, std::int64_t) const {}
};
struct without_shape : whole_archetype {
  void moment_shape() const;
};
struct without_flag : archetype {
  static shape moment_shape(std::size_t, parameter_info const&) { return {}; }
  void update(tensor_update<env> const&, std::int64_t) const {}
};
struct update_changes_it : archetype {
  void update(update_segment<env> const&, std::int64_t);
};

static_assert(optimizer<archetype, env>);
static_assert(!has_moment_names<without_names> && !optimizer<without_names, env>);
static_assert(!has_rate_at<without_rate> && !optimizer<without_rate, env>);
static_assert(!has_clip<without_clip> && !optimizer<without_clip, env>);
static_assert(!has_update<without_update, env> && !optimizer<without_update, env>);
static_assert(!has_update<update_changes_it, env> && !optimizer<update_changes_it, env>);

static_assert(whole_tensor_optimizer<whole_archetype, env> && !element_optimizer<whole_archetype, env>);
static_assert(!has_moment_shape<without_shape> && !optimizer<without_shape, env>);
static_assert(!declares_whole_tensors<without_flag> && !optimizer<without_flag, env>);
static_assert(element_optimizer<archetype, env> && !whole_tensor_optimizer<archetype, env>);

template <class O>
constexpr bool serves_all = optimizer<O, env>&& optimizer<O, environment<precision::fp64>>&&
    optimizer<O, environment<precision::bf16>>&& optimizer<O, environment<precision::fp32, phantom>>;
static_assert(serves_all<optim::adamw> && serves_all<optim::sgd>);
static_assert(serves_all<optim::lamb> && serves_all<optim::muon> && serves_all<optim::adafactor>);
static_assert(serves_all<optim::groups<optim::adamw>> && serves_all<optim::groups<optim::muon>>);

}  // namespace

TEST_CASE("the optimizer concept accepts the archetype and refuses one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
