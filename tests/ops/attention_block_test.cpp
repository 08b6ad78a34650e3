#include "trireme/ops/host/attention_block.hpp"

#include <limits>
#include <vector>

#include "../catch.hpp"
#include "support.hpp"
#include "trireme/ops/host/attention.hpp"

using namespace trireme;

namespace {

template <class T>
struct problem {
  using A = ops::accumulate_t<T>;
  ops::attention_shape what;
  ops::dropout_site drop{};
  std::int64_t rows = what.batch * what.context;
  tensor<T> qkv = random_tensor<T>({rows, 3 * what.channels}, 1, 2);
  tensor<T> dy = random_tensor<T>({rows, what.channels}, 2);
  tensor<T> y = zeros<T>({rows, what.channels});
  tensor<T> dqkv = zeros<T>({rows, 3 * what.channels});
  tensor<A> lse = zeros<A>({what.batch, what.heads, what.context});
  arena<host> scratch{};

  void at_once() {
    ops::host_attention::attention(y.view(), lse, qkv, what, scratch, drop);
    ops::host_attention::attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, drop);
  }
  // In blocks of `each` positions, the nearest keys last.
  void in_blocks(std::int64_t each) {
    auto const blocks = what.context / each;
    auto const for_each_block = [&](auto&& f) {
      for (std::int64_t key = 0; key < blocks; ++key) {
        for (std::int64_t query = what.mask.causal ? key : 0; query < blocks; ++query)
          f(ops::attention_block{each, query * each, key * each, query * each, key * each, what.context});
      }
    };
    using copies = ops::host_elementwise;
    auto pairs = zeros<T>({rows, 2 * what.channels});
    auto sum = zeros<A>({rows, what.channels});
    auto dqueries = zeros<A>({rows, what.channels});
    auto dpairs = zeros<A>({rows, 2 * what.channels});
    copies::copy_columns(pairs.view(), 0, qkv.view(), what.channels, 2 * what.channels);
    copies::fill(lse.view(), -std::numeric_limits<double>::infinity());
    for_each_block([&](ops::attention_block const& at) {
      ops::host_attention_block::attend_block(sum, lse, qkv.view(), pairs, what, at, scratch, drop);
    });
    copies::copy(y.view(), sum.view());
    for_each_block([&](ops::attention_block const& at) {
      ops::host_attention_block::attend_block_backward(dqueries, dpairs, dy.view(), y, lse, qkv, pairs, what, at,
                                                       scratch, drop);
    });
    copies::copy_columns(dqkv.view(), 0, dqueries.view(), 0, what.channels);
    copies::copy_columns(dqkv.view(), what.channels, dpairs.view(), 0, 2 * what.channels);
  }
};

template <class T>
void compare(ops::attention_shape what, std::int64_t each, ops::dropout_site drop, double most) {
  problem<double> exact{what, drop};
  exact.at_once();
  at_each_level([&] {
    problem<T> blocks{what, drop};
    blocks.in_blocks(each);
    CHECK(distance(blocks.y, exact.y) < most);
    CHECK(distance(blocks.lse, exact.lse) < (most < tolerance<float> ? most : tolerance<float>));
    CHECK(distance(blocks.dqkv, exact.dqkv) < most);
  });
}

std::vector<std::int64_t> const samples{7, 3};

}  // namespace

TEST_CASE("blocks of attention merge to the whole attention, in every type, at every CPU level") {
  struct cut {
    ops::attention_shape what;
    std::int64_t each;
  };
  for (auto const& [what, each] :
       {cut{{2, 1, 1, 3}, 1}, cut{{2, 12, 3, 60}, 3}, cut{{1, 66, 2, 32}, 33}, cut{{2, 35, 2, 10}, 7},
        cut{{1, 64, 1, 48}, 32}, cut{{1, 200, 2, 128}, 100}, cut{{1, 40, 1, 8}, 40}, cut{{0, 8, 1, 8}, 4}}) {
    CAPTURE(what.context, each);
    ops::dropout_site const drop{0.25, {11, 4}, 9, std::span(samples).first(static_cast<std::size_t>(what.batch))};
    for (auto const& site : {ops::dropout_site{}, drop}) {
      compare<double>(what, each, site, 1e-13);
      compare<float>(what, each, site, tolerance<float>);
      compare<bfloat16>(what, each, site, tolerance<bfloat16>);
    }
  }
}

TEST_CASE("blocks of masked attention merge to the whole attention, also if a query does not see some blocks") {
  for (auto const mask : {ops::attention_mask{.causal = false}, ops::attention_mask{.window = 5},
                          ops::attention_mask{.window = 40}, ops::attention_mask{.causal = false, .window = 30}}) {
    CAPTURE(mask.causal, mask.window);
    ops::attention_shape const what{2, 105, 2, 20, 0, mask};
    for (auto const& site : {ops::dropout_site{}, ops::dropout_site{0.25, {11, 4}, 9, samples}}) {
      compare<double>(what, 35, site, 1e-13);
      compare<float>(what, 35, site, tolerance<float>);
      compare<bfloat16>(what, 35, site, tolerance<bfloat16>);
    }
  }
}

TEST_CASE("a block of keys after all queries changes nothing") {
  problem<float> p{{1, 8, 1, 4}};
  auto const pairs = zeros<float>({8, 8});
  auto sum = zeros<float>({8, 4});
  ops::host_elementwise::fill(p.lse.view(), -std::numeric_limits<double>::infinity());
  ops::host_attention_block::attend_block(sum, p.lse, p.qkv.view(), pairs, p.what, {4, 0, 4, 0, 4, 8}, p.scratch, {});
  for (auto const each : sum.span()) CHECK(each == 0);
  for (auto const each : p.lse.span()) CHECK(each == -std::numeric_limits<float>::infinity());
}
