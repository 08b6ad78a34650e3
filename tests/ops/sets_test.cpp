#include "../catch.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/ops/phantom.hpp"
#include "trireme/ops/sets/batch_norm.hpp"
#include "trireme/ops/sets/blocks.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/sets/experts.hpp"
#include "trireme/ops/sets/heads.hpp"
#include "trireme/ops/sets/images.hpp"
#include "trireme/ops/sets/latent.hpp"
#include "trireme/ops/sets/pages.hpp"
#include "trireme/ops/sets/parts.hpp"
#include "trireme/ops/sets/update.hpp"
#include "trireme/ops/sets/values.hpp"
#include "trireme/ops/sets/whole_tensors.hpp"
#include "trireme/precision/precision.hpp"

// Host and phantom say that their kernels are complete, so a program does not look at their functions. Here each one is
// looked at, as in a space that does not say so.

using namespace trireme;

namespace {

/// A memory space without kernels.
struct drawer : host {};

template <class Space, class Precision>
constexpr bool has_sets() {
  using env = environment<Precision, Space>;
  using v = ops::detail::set_views<Space, env>;
  using k = ops::on<Space>;
  static_assert(ops::detail::exchanges<k, env, Space>);
  static_assert(ops::detail::multiplies<k, v, Space>);
  static_assert(ops::detail::attends<k, v, Space>);
  static_assert(ops::detail::normalises<k, v>);
  static_assert(ops::detail::embeds<k, v>);
  static_assert(ops::detail::activates<k, v, Space>);
  static_assert(ops::detail::scores<k, v, Space>);
  static_assert(ops::detail::arranges<k, v>);
  static_assert(ops::detail::takes_parts<k, v, Space>);
  static_assert(ops::detail::attends_blocks<k, v, Space>);
  static_assert(ops::detail::routes<k, v, Space>);
  static_assert(ops::detail::moves_windows<ops::images_on<Space>, v>);
  static_assert(ops::detail::normalises_columns<ops::batch_norm_on<Space>, v>);
  static_assert(ops::detail::arranges_latent<ops::latent_heads_on<Space>, v>);
  using u = ops::detail::update_views<Space, env>;
  static_assert(ops::detail::updates_adamw<k, u> && ops::detail::updates_sgd<k, u>);
  using c = ops::detail::codec_views<Space, env>;
  static_assert(ops::detail::selects<k, c> && ops::detail::multiplies_small<k, c>);
  static_assert(ops::detail::codes_numbers<k, c> && ops::detail::draws_elements<k, c>);
  static_assert(ops::detail::selects_by_sample<k, c>);
  using w = ops::detail::whole_tensor_views<Space, env>;
  static_assert(ops::detail::takes_tensors_out<k, w>);
  static_assert(ops::detail::updates_lamb<ops::whole_tensors_on<Space>, w>);
  static_assert(ops::detail::updates_adafactor<ops::whole_tensors_on<Space>, w>);
  static_assert(ops::detail::updates_muon<ops::whole_tensors_on<Space>, w>);
  static_assert(ops::detail::runs_functions<k, v>);
  return true;
}
template <class Precision>
constexpr bool both = has_sets<host, Precision>() && has_sets<phantom, Precision>();
static_assert(both<precision::fp32> && both<precision::fp64> && both<precision::bf16>);

using env = environment<precision::fp32, drawer>;
static_assert(!ops::exchange_kernels<drawer, env> && !ops::dense_kernels<drawer, env>);
static_assert(ops::paged_kernels<host, environment<precision::bf16>>);
static_assert(!ops::paged_kernels<phantom, environment<precision::fp32, phantom>>);

}  // namespace

TEST_CASE("host and phantom have every kernel of every set, in each precision", "[ops][sets]") {
  CHECK(both<precision::fp32>);
  CHECK(both<precision::fp64>);
  CHECK(both<precision::bf16>);
}
