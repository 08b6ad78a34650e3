// test-sanitize: none
#include "trireme/optim/adamw8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/bf16_only.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
namespace od = optim::detail;

TEST_CASE("codes of moments are right in the mean, and of numbers that they have exact", "[optim]") {
  constexpr int draws = 1 << 12;
  auto const mean = [&](auto&& decode) {
    double sum = 0;
    for (std::uint32_t i = 0; i < draws; ++i) sum += static_cast<double>(decode(i << 8)) / draws;
    return sum;
  };
  for (float const y : {1e-4F, 1e-3F, 0.01F, 0.3F, 1.0F, 1.7F, 100.0F, -3.3F, 447.0F}) {
    INFO(y);
    float8_e4m3 code;
    CHECK(mean([&](std::uint32_t random) {
            code.bits = od::code_of_mean(y, random);
            return static_cast<float>(code);
          }) == Approx(static_cast<double>(y)).epsilon(0.01));
    if (y < 1e-4F || y > od::largest_root) continue;
    CHECK(mean([&](std::uint32_t random) { return od::root_of_code(od::code_of_root(y, random)); }) ==
          Approx(static_cast<double>(y)).epsilon(0.01));
  }
  int different = 0;
  for (int i = 0; i < 256; ++i) {
    float8_e4m3 code;
    code.bits = static_cast<std::uint8_t>(i);
    auto const y = static_cast<float>(code);
    if (std::isnan(y)) continue;
    for (std::uint32_t const random : {0U, 0x7ffffU, 0xfffffU}) {
      different += od::code_of_mean(y, random) != code.bits;
      if (i > 0) different += od::code_of_root(od::root_of_code(code.bits), random) != i;
    }
  }
  CHECK(different == 0);
  CHECK(od::code_of_root(0, 0xfffff) == 0);
  CHECK(od::code_of_root(1e-20F, 0) == 1);  // it divides
  CHECK(od::code_of_root(od::largest_root, 0xfffff) == 255);
}

TEST_CASE("bfloat16 by chance is right in the mean", "[optim]") {
  for (float const x : {1.001F, -0.3333F, 1e-30F, 255.7F}) {
    double sum = 0;
    for (std::uint32_t random = 0; random < 0x10000; ++random)
      sum += static_cast<double>(static_cast<float>(od::bfloat16_by_chance(x, random))) / 0x10000;
    CHECK(sum == Approx(static_cast<double>(x)).epsilon(1e-6));
  }
  CHECK(std::isinf(static_cast<float>(od::bfloat16_by_chance(std::numeric_limits<float>::infinity(), 0xffff))));
  CHECK(std::isnan(static_cast<float>(od::bfloat16_by_chance(std::nanf(""), 0xffff))));
}

TEST_CASE("8-bit moments learn, resume bit for bit, equal their plan, and move to other ranks", "[optim]") {
  watchdog const guard("adamw8");
  optim::adamw8<> const small{.learning_rate = 1e-2};
  for (int const ranks : {1, 2}) {
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, small) == "");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, small, parallel::zero<1>{.bucket_bytes = 512}) == "");
  }
  CHECK(policy_cases::on_mlp.moves({2, 3}, small, parallel::zero<1>{}) == "");
  optim::adamw8<bfloat16> const smallest{.learning_rate = 1e-2};
  CHECK(policy_cases::on_mlp.holds_by_threads(1, 0.8, smallest, precision::bf16_only{}) == "");
  CHECK(policy_cases::on_mlp.holds_by_threads(2, 0.8, smallest, precision::bf16_only{}) == "");
}

TEST_CASE("8-bit moments take a quarter of the state", "[optim]") {
  optim::adamw8<> const small;
  optim::adamw8<bfloat16> const smallest;
  parameter_info const matrix{"w", {384, 1536}, {}, true}, bias{"b", {384}, {}, false};
  for (auto const& each : {matrix, bias}) {
    auto const bytes = small.moment_shape(0, each).size() * 4;
    CHECK(static_cast<double>(bytes) <= 0.27 * static_cast<double>(each.extents.size() * 4));
    CHECK(smallest.moment_shape(1, each).size() * 2 == bytes);
  }
}

TEST_CASE("without masters, small updates of weights are lost to rounding, but not if chance rounds", "[optim]") {
  // A weight of 1 and a gradient of 1: 100 steps of 1e-4 make it 0.99. The spacing below 1 is 0.0039.
  auto const after = [](auto const& optimizer) {
    using env = environment<precision::bf16_only>;
    parameter_info const info{"w", {512}, {}, false};
    tensor<bfloat16> value({512});
    for (auto& each : value.span()) each = bfloat16(1);
    tensor<float> gradient({512});
    for (auto& each : gradient.span()) each = 1;
    arena<host> scratch;
    tensor<bfloat16> first, second;
    if constexpr (has_moment_shape<std::decay_t<decltype(optimizer)>>) {
      first = tensor<bfloat16>(optimizer.moment_shape(0, info)),
      second = tensor<bfloat16>(optimizer.moment_shape(1, info));
    } else {
      first = tensor<bfloat16>({512}), second = tensor<bfloat16>({512});
    }
    for (auto* const each : {&first, &second}) std::fill(each->span().begin(), each->span().end(), bfloat16{});
    std::vector<tensor_view<bfloat16>> const moments{first.view(), second.view()};
    tensor_update<env> const what{info, value.view(), moments, tensor_view<float const>(gradient.view()),
                                  1,    {},           scratch};
    for (std::int64_t step = 0; step < 100; ++step) {
      if constexpr (has_moment_shape<std::decay_t<decltype(optimizer)>>) {
        optimizer.update(what, step);
      } else {
        optimizer.update(od::as_segment(what, std::span<tensor_view<bfloat16> const>(moments)), step);
      }
    }
    double sum = 0;
    for (auto const each : value.span()) sum += static_cast<double>(static_cast<float>(each)) / 512;
    return sum;
  };
  CHECK(after(optim::adamw8<bfloat16>{.learning_rate = 1e-4}) == Approx(0.99).margin(0.001));
  CHECK(after(optim::adamw{.learning_rate = 1e-4}) == 1);
}
