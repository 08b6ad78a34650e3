// The heads of latent attention in CUDA memory have the bits of those in host memory.
#include "trireme/ops/cuda/latent_heads.hpp"

#include <cstdint>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "compared.hpp"
#include "trireme/ops/sets/latent.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compared::made;

namespace {

using on_host = ops::latent_heads_on<host>;
using on_device = ops::latent_heads_on<cuda>;

template <class Precision>
constexpr bool complete =
    ops::detail::arranges_latent<on_device, ops::detail::set_views<cuda, environment<Precision, cuda>>>;
static_assert(complete<precision::fp32> && complete<precision::fp64> && complete<precision::bf16> &&
              complete<precision::fp16>);

struct setting {
  ops::latent_layout layout;
  std::int64_t samples, offset;
};
std::vector<setting> settings() {
  std::vector<setting> all{
      {{3, 2, 5, 4, 7}, 2, 0},    // odd widths; queries are wider than values
      {{3, 3, 2, 2, 9}, 1, 0},    // values are wider
      {{4, 2, 16, 8, 16}, 2, 0},  // packs
      {{4, 2, 16, 8, 32}, 1, 3},  // the same at addresses that are not aligned
      {{2, 2, 8, 0, 8}, 2, 0},    // nothing is rotated
      {{5, 1, 0, 8, 8}, 1, 0},    // everything is
      {{4, 2, 16, 8, 16}, 0, 0},  // no rows
  };
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({{512, 16, 128, 64, 128}, 4, 0});
#endif
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("latent heads on a device are the host's", "[latent_heads]", float, double, bfloat16, float16) {
  using sums = ops::accumulate_t<TestType>;
  for (auto const& [how, samples, offset] : settings()) {
    CAPTURE(how.plain, how.rotary, how.values, samples, offset);
    auto const rows = samples * how.context;
    auto qkv = made<TestType>({rows, 3 * how.heads * how.width()}, 1, offset);
    auto queries = made<TestType>({rows, how.heads * how.query()}, 2, offset);
    auto pairs = made<TestType>({rows, how.heads * how.pair()}, 3, offset);
    auto key = made<TestType>({rows, how.rotary}, 4, offset);
    auto table = made<sums>({how.context, how.rotary}, 5);
    on_host::arrange(qkv.on_host(), queries.on_host(), pairs.on_host(), key.on_host(), table.on_host(), how);
    on_device::arrange(qkv.device(), queries.device(), pairs.device(), key.device(), table.device(), how);
    CHECK(qkv.difference() <= compared::of_contraction<TestType>);

    auto dqkv = made<TestType>({rows, 3 * how.heads * how.width()}, 6, offset);
    on_host::arrange_backward(queries.on_host(), pairs.on_host(), key.on_host(), dqkv.on_host(), table.on_host(), how);
    on_device::arrange_backward(queries.device(), pairs.device(), key.device(), dqkv.device(), table.device(), how);
    CHECK(queries.difference() <= compared::of_contraction<TestType>);
    CHECK(pairs.difference() <= 0);
    CHECK(key.difference() <= compared::of_contraction<TestType>);
  }
}

TEST_CASE("latent heads in CUDA memory that do not fit are refused", "[latent_heads]") {
  ops::latent_layout const how{4, 2, 16, 8, 16};
  auto const qkv = made<float>({4, 3 * 2 * 24}, 1), queries = made<float>({4, 48}, 2), pairs = made<float>({4, 64}, 3);
  auto const key = made<float>({4, 8}, 4), table = made<float>({3, 8}, 5);
  auto const said = sentence_of<assertion_error>(
      [&] { on_device::arrange(qkv.device(), queries.device(), pairs.device(), key.device(), table.device(), how); });
  CHECK(said ==
        "trireme::ops::latent_heads: 4 rows of 2 heads of 16 + 8 and 16 numbers, and a table of 4 positions, do not "
        "fit");
}
