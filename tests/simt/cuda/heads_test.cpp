// Heads in CUDA memory, against those of the host.
#include <array>
#include <cstdint>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/heads.hpp"
#include "trireme/ops/host/visible_keys.hpp"
#include "trireme/ops/sets/heads.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace on_device;

namespace {

using on_host = ops::host_heads;
template <class Precision>
constexpr bool has_heads = ops::detail::arranges<kernels, ops::detail::set_views<cuda, environment<Precision, cuda>>>;
static_assert(has_heads<precision::fp32> && has_heads<precision::fp64> && has_heads<precision::bf16> &&
              has_heads<precision::fp16>);
// Widths of packs and others, as many keys as queries and fewer.
constexpr std::array<ops::head_layout, 6> layouts{
    {{5, 3, 3, 6}, {4, 6, 2, 34}, {3, 4, 1, 2}, {2, 2, 2, 32}, {3, 4, 2, 64}, {2, 3, 3, 272}}};
constexpr std::int64_t sample_count = large ? 200 : 2;

template <class T>
tensor_view<T const, cuda> read_only(shifted<T> const& it) {
  return it.view;
}

}  // namespace

TEST_CASE("rotations on a device are the host's, also when they are asked for again", "[heads]") {
  ops::rotary_scaling const slower{.factor = 8, .original = 64};
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t const positions : {0, 1, 7, 600}) {
      for (std::int64_t const first : {0, 5}) {
        for (auto const& scaling : {ops::rotary_scaling{}, slower}) {
          std::vector<float> want(static_cast<std::size_t>(positions * 16));
          std::vector<double> precise(want.size());
          shifted<float> const table(want);
          shifted<double> const precise_table(precise);
          kernels::rotations(table.view.reshaped({positions, 16}), first, 1e4, scaling);
          kernels::rotations(precise_table.view.reshaped({positions, 16}), first, 1e4, scaling);
          on_host::rotations(tensor_view(want).reshaped({positions, 16}), first, 1e4, scaling);
          on_host::rotations(tensor_view(precise).reshaped({positions, 16}), first, 1e4, scaling);
          CHECK(table.here() == want);
          CHECK(precise_table.here() == precise);
        }
      }
    }
  }
  shifted<float> const odd(std::vector<float>(15));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::rotations(odd.view.reshaped({3, 5}), 0, 1e4);
        }) == "trireme::ops::rotations: sizes 1 and 0 differ");
}

TEST_CASE("heads are arranged and rotated on a device as on the host", "[heads]") {
  for_types([]<class T>(T) {
    using real = ops::accumulate_t<T>;
    for (auto const& how : layouts) {
      for (std::int64_t const shift : {0, 1}) {
        for (bool const turns : {true, false}) {
          CAPTURE(how.heads, how.key_heads, how.width, shift, turns, sizeof(T));
          auto const rows = sample_count * how.context;
          auto const x = numbers<T>(rows * how.columns(), 1), dqkv = numbers<T>(rows * 3 * how.heads * how.width, 2);
          std::vector<real> table(turns ? static_cast<std::size_t>(how.context * how.width) : 0);
          if (turns) on_host::rotations(tensor_view(table).reshaped({how.context, how.width}), 3, 100);
          std::vector<T> qkv(dqkv.size()), dx(x.size());
          on_host::arrange_heads(tensor_view(qkv), tensor_view(x), tensor_view(table), how);
          on_host::arrange_heads_backward(tensor_view(dx), tensor_view(dqkv), tensor_view(table), how);
          shifted<T> const there_x(x, shift), there_dqkv(dqkv, shift), there_qkv(qkv, shift), there_dx(dx, shift);
          shifted<real> const there_table(table);
          kernels::fill(there_qkv.view, 0.0);
          kernels::fill(there_dx.view, 0.0);
          kernels::arrange_heads(there_qkv.view, there_x.view, there_table.view, how);
          kernels::arrange_heads_backward(there_dx.view, there_dqkv.view, there_table.view, how);
          CHECK(same(there_qkv.here(), qkv));
          CHECK(same(there_dx.here(), dx));
          if (how.grouped()) continue;
          kernels::arrange_heads(there_x.view, there_x.view, there_table.view, how);
          kernels::arrange_heads_backward(there_dqkv.view, there_dqkv.view, there_table.view, how);
          CHECK(same(there_x.here(), qkv));
          CHECK(same(there_dqkv.here(), dx));
        }
      }
    }
  });
  ops::head_layout const odd{2, 3, 3, 5};
  auto const x = numbers<float>(4 * odd.columns(), 1);
  shifted<float> const there(x), to(x);
  kernels::fill(to.view, 0.0);
  kernels::arrange_heads(to.view, there.view, tensor_view<float const, cuda>(), odd);
  CHECK(to.here() == x);
  CHECK(sentence_of<assertion_error>([&] {
          kernels::arrange_heads(to.view.flat(0, 90), there.view, tensor_view<float const, cuda>(), odd);
        }) == "trireme::ops::arrange_heads: sizes 90 and 180 differ");
}

TEST_CASE("norms of heads on a device are the host's", "[heads]") {
  for_types([]<class T>(T) {
    using real = ops::accumulate_t<T>;
    for (auto const& how : layouts) {
      for (std::int64_t const shift : {0, 1}) {
        CAPTURE(how.heads, how.key_heads, how.width, shift, sizeof(T));
        auto const rows = (sanitizer() == "thread" ? 5 : 20) * sample_count;
        auto const x = numbers<T>(rows * how.columns(), 1), dy = numbers<T>(rows * how.columns(), 2);
        auto const query_gain = numbers<T>(how.width, 3), key_gain = numbers<T>(how.width, 4);
        std::vector<T> y(x.size()), dx(x.size());
        std::vector<real> rstd(static_cast<std::size_t>(rows * (how.heads + how.key_heads)));
        auto of_query = numbers<real>(how.width, 5), of_key = numbers<real>(how.width, 6);
        shifted<T> const there_x(x, shift), there_dy(dy, shift), there_y(y, shift), there_dx(dx, shift);
        shifted<T> const there_query(query_gain, shift), there_key(key_gain, shift);
        shifted<real> const there_rstd(rstd), there_of_query(of_query), there_of_key(of_key);
        on_host::normalise_heads(tensor_view(y), tensor_view(rstd), tensor_view(x), tensor_view(query_gain),
                                 tensor_view(key_gain), how, 1e-5);
        on_host::normalise_heads_backward(tensor_view(dx), tensor_view(of_query), tensor_view(of_key), tensor_view(dy),
                                          tensor_view(x), tensor_view(rstd), tensor_view(query_gain),
                                          tensor_view(key_gain), how);
        kernels::normalise_heads(there_y.view, there_rstd.view, there_x.view, there_query.view, there_key.view, how,
                                 1e-5);
        kernels::normalise_heads_backward(there_dx.view, there_of_query.view, there_of_key.view, there_dy.view,
                                          there_x.view, there_rstd.view, there_query.view, there_key.view, how);
        auto const step = step_of<T>, near = sizeof(T) == 8 ? 1e-11 : 1e-5;
        CHECK(close(there_rstd.here(), rstd, near, 0));
        CHECK(close(there_y.here(), y, step, near));
        CHECK(close(there_dx.here(), dx, step, near));
        auto const sums = near * 40 * static_cast<double>(large ? 100 : 1);
        CHECK(close(there_of_query.here(), of_query, sums, sums));
        CHECK(close(there_of_key.here(), of_key, sums, sums));
        kernels::normalise_heads_backward(there_dy.view, there_of_query.view, there_of_key.view, there_dy.view,
                                          there_x.view, there_rstd.view, there_query.view, there_key.view, how);
        CHECK(same(there_dy.here(), there_dx.here()));
        kernels::normalise_heads(there_x.view, there_rstd.view, there_x.view, there_query.view, there_key.view, how,
                                 1e-5);
        CHECK(same(there_x.here(), there_y.here()));
      }
    }
  });
}

TEST_CASE("the keys that tokens let each position see on a device are the host's", "[heads]") {
  std::vector<std::int32_t> made;
  constexpr std::int64_t rows = 8;
  for (std::int64_t const context : {1, 7, 300}) {
    made.assign(static_cast<std::size_t>(rows * context), 0);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::int32_t>(i * 2654435761U % 11 + 2);
    auto const at = [&](std::int64_t row, std::int64_t position) -> std::int32_t& {
      return made[static_cast<std::size_t>(row * context + position)];
    };
    for (std::int64_t i = 0; i < context; ++i) {
      at(2, i) = 0;                                             // padding only
      if (i < context / 3) at(3, i) = 0;                        // at the front
      if (i > context / 2) at(4, i) = 0;                        // at the end
      if (i < context / 3 || i > context / 2) at(5, i) = 0;     // at both
      at(6, i) = i % 2 == 0 ? 1 : 5;                            // documents of two tokens
      at(7, i) = i == context - 1 || i == context / 2 ? 1 : 5;  // the last token ends one
    }
    for (auto const& mask :
         {ops::token_mask{0, 1}, ops::token_mask{-1, 1}, ops::token_mask{0, -1}, ops::token_mask{}}) {
      CAPTURE(context, mask.padding, mask.separator);
      std::vector<std::int32_t> seen(2 * made.size());
      shifted<std::int32_t> const there_seen(seen), tokens(made);
      ops::host_visible_keys::visible_keys(tensor_view(seen).reshaped({rows, context, 2}),
                                           tensor_view<std::int32_t const>(made).reshaped({rows, context}), mask);
      kernels::visible_keys(there_seen.view.reshaped({rows, context, 2}), read_only(tokens).reshaped({rows, context}),
                            mask);
      CHECK(there_seen.here() == seen);
    }
  }
  made.assign(30, 4);
  made[13] = made[17] = 0;
  shifted<std::int32_t> const seen(std::vector<std::int32_t>(60)), tokens(made);
  CHECK(sentence_of<config_error>([&] {
          kernels::visible_keys(seen.view.reshaped({3, 10, 2}), read_only(tokens).reshaped({3, 10}), {0, 1});
        }) ==
        "trireme::nn::attend: sample 1 of a micro-batch has the padding token 0 at position 3, between words; pad "
        "samples at their ends only");
}
