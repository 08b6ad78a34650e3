// test-sanitize: none
#include "trireme/compression/one_of.hpp"

#include <string_view>

#include "../support/training.hpp"
#include "trireme/compression/compression.hpp"

using namespace trireme;
using compression::cast;
using compression::error_feedback;
using compression::power_sgd;
using compression::top_k;

namespace {

using sparse = error_feedback<top_k>;
using any = compression::one_of<cast<bf16>, sparse, power_sgd>;

template <class Parallel, class Compression>
constexpr std::string_view broken = trireme::detail::broken_rule<
    trireme::detail::combination<nn::gpt, comm::threads_world, Parallel, precision::fp32, Compression>>;

static_assert(compressor<any, environment<precision::fp32>, comm::threads_world>);
static_assert(!compressor<compression::one_of<top_k, int>, environment<precision::fp32>, comm::threads_world>);
static_assert(broken<parallel::zero<1>, any>.empty());
static_assert(broken<parallel::zero<2>, any> == "error-feedback-needs-one-exchange");
static_assert(broken<parallel::zero<2>, compression::one_of<top_k, power_sgd>> ==
              "collective-compressor-needs-one-exchange");
static_assert(broken<parallel::zero<2>, compression::one_of<top_k, cast<bf16>>>.empty());

using by_size = compression::by_size<compression::none, sparse>;
using by_name = compression::by_name<power_sgd, cast<bf16>>;
static_assert(collective_compressor<by_size, environment<precision::fp32>, comm::threads_world>);
static_assert(collective_compressor<by_name, environment<precision::fp32>, comm::threads_world>);
static_assert(broken<parallel::zero<1>, by_size>.empty());
static_assert(broken<parallel::zero<2>, by_name> == "collective-compressor-needs-one-exchange");
static_assert(broken<parallel::tensor, by_size> == "collective-compressor-needs-whole-tensors");
static_assert(has_patterns<compression::one_of<top_k, by_name>> && !has_patterns<any>);

}  // namespace

TEST_CASE("a compressor chosen at run time gives the same bits as that compressor used directly", "[compression]") {
  auto const same = [](auto const& chosen) {
    toy::check_equal(toy::twelve_steps.on(2, toy::steady, any{chosen}).back(),
                     toy::twelve_steps.on(2, toy::steady, chosen).back());
  };
  same(cast<bf16>{});
  same(sparse{.inner = {.ratio = 0.1F}});
  same(power_sgd{.rank = 2});
}

TEST_CASE("a compressor chosen at run time is printed and compared like that compressor", "[compression]") {
  CHECK(describe(any{power_sgd{.rank = 3}}) == "compression::power_sgd{.rank = 3}");
  CHECK(describe(any{}) == "compression::cast<bf16>{}");
  CHECK(any{power_sgd{.rank = 3}} == any{power_sgd{.rank = 3}});
  CHECK(any{power_sgd{.rank = 3}} != any{sparse{}});
}
