// test-timeout: 300
// test-sanitize: none
// The codecs that quantise, take signs or choose elements, in trainings: chosen at run time, so that one trainer for
// each strategy is compiled.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"

using namespace trireme;
using namespace trireme::compression;
using policy_cases::on_mlp;

namespace {

using plain = one_of<quantise<8>, quantise<4>, quantise<2>, sign, random_k, top_k_sampled>;
using sized = by_size<none, error_feedback<quantise<4>>>;
using large_dgc = by_size<none, dgc>;
using named = by_name<cast<bf16>, quantise<8>, error_feedback<top_k>, power_sgd>;
using with_feedback =
    one_of<error_feedback<quantise<4>>, error_feedback<quantise<2>>, error_feedback<compression::sign>,
           error_feedback<random_k>, error_feedback<top_k_sampled>, dgc, sized, large_dgc, named>;

optim::adamw const adaptive{.learning_rate = 1e-2};

template <class Parallel>
void holds(Parallel const& how, std::vector<std::pair<double, plain>> const& codecs) {
  for (auto const& [part, codec] : codecs) {
    INFO(describe(codec) << " under " << describe(how));
    CHECK(on_mlp.holds_by_threads(2, part, adaptive, how, codec) == "");
  }
}

std::vector<std::pair<double, plain>> const codecs{{0.8, plain{quantise<8>{}}},
                                                   {0.8, plain{quantise<4>{}}},
                                                   {0.95, plain{quantise<2>{}}},
                                                   {0.95, plain{compression::sign{}}},
                                                   {0.95, plain{random_k{.ratio = 0.3F, .unbiased = true}}},
                                                   {0.95, plain{top_k_sampled{.ratio = 0.1F}}}};

}  // namespace

TEST_CASE("each codec learns, resumes bit for bit and sends what is planned, under data and zero<1..3>",
          "[compression]") {
  watchdog const watch("codecs", std::chrono::seconds(240));
  holds(parallel::data{.bucket_bytes = 1024}, codecs);
  holds(parallel::zero<1>{.bucket_bytes = 1024}, {codecs[1], codecs[4]});
  holds(parallel::zero<2>{.bucket_bytes = 1024}, codecs);
  holds(parallel::zero<3>{.bucket_bytes = 1024}, {codecs[1], codecs[4]});
}

TEST_CASE("each codec with error feedback learns, resumes bit for bit and sends what is planned", "[compression]") {
  watchdog const watch("codecs with feedback", std::chrono::seconds(240));
  quantise<2> const two{.rounding = code_rounding::nearest};
  std::pair<double, with_feedback> const all[] = {{0.8, {error_feedback<quantise<4>>{.decay = 0.9F}}},
                                                  {0.95, {error_feedback<quantise<2>>{two}}},
                                                  {0.95, {error_feedback<compression::sign>{}}},
                                                  {0.95, {error_feedback<random_k>{.inner = {.ratio = 0.2F}}}},
                                                  {0.95, {error_feedback<top_k_sampled>{.inner = {.ratio = 0.1F}}}}};
  for (auto const& [part, codec] : all) {
    INFO(describe(codec));
    for (int const ranks : {1, 3})
      CHECK(on_mlp.holds_by_threads(ranks, part, adaptive, parallel::zero<1>{.bucket_bytes = 1024}, codec) == "");
  }
}

TEST_CASE("compressors chosen by size and by name learn, resume bit for bit and send what is planned",
          "[compression]") {
  watchdog const watch("codecs by tensor", std::chrono::seconds(240));
  named const names{.list = {{.names = "*0.weight *1.bias", .codec = error_feedback<top_k>{.inner = {.ratio = 0.3F}}},
                             {.names = "*1.weight", .codec = power_sgd{.rank = 2}},
                             {.names = "*0.bias", .codec = quantise<8>{}}}};
  for (with_feedback const& codec : {with_feedback{sized{.bytes = 1024}}, with_feedback{names}}) {
    INFO(describe(codec));
    for (std::int64_t const bytes : {1024, 1 << 20})  // several buckets, and one with all tensors
      CHECK(on_mlp.holds_by_threads(3, 0.9, adaptive, parallel::zero<1>{.bucket_bytes = bytes}, codec) == "");
  }
  named const misspelt{.list = {{.names = "*1.wieght", .codec = power_sgd{}}}};
  CHECK_THROWS_WITH(
      on_mlp.state_by_threads(2, adaptive, parallel::zero<1>{.bucket_bytes = 1024}, with_feedback{misspelt}),
      Catch::Matchers::Contains("trireme::compression::by_name: .names: nothing in the model matches "
                                "\"*1.wieght\"; the nearest names are "));
}

TEST_CASE("dgc learns, resumes bit for bit and sends what is planned; two momentums are refused", "[compression]") {
  watchdog const watch("dgc", std::chrono::seconds(240));
  parallel::zero<1> const how{.bucket_bytes = 1024};
  with_feedback const codec{dgc{.ratio = 0.1F, .momentum = 0.5}};
  optim::adamw const without_momentum{.learning_rate = 5e-3, .beta1 = 0};
  CHECK(on_mlp.holds_by_threads(3, 0.95, without_momentum, how, codec) == "");
  // Clipped, and with a first step of more bytes than the planned ones.
  with_feedback const clipped{dgc{.ratio = 0.1F, .momentum = 0.5, .clip = 0.5, .warmup = 1}};
  CHECK(on_mlp.holds_by_threads(2, 0.95, without_momentum, how, clipped) == "");
  CHECK(on_mlp.holds_by_threads(
            2, 0.95, without_momentum, parallel::data{.bucket_bytes = 1024},
            with_feedback{large_dgc{.large = {.ratio = 0.1F, .momentum = 0.5, .warmup = 1}, .bytes = 1024}}) == "");
  // Killed and resumed while the ratio still falls.
  with_feedback const falling{dgc{.ratio = 0.02F, .momentum = 0.5, .warmup = 30}};
  launch(policy_cases::counting_threads(2), [&](auto& world) {
    std::uint64_t hash = 0;
    auto const problem = on_mlp.learns_and_goes_on(world, 0.95, hash, without_momentum, how, falling);
    if (world.rank() == 0) CHECK(problem == "");
  });
  CHECK_THROWS_WITH(on_mlp.state_by_threads(2, adaptive, how, codec),
                    Catch::Matchers::Contains("trireme::compression::dgc applies momentum itself, and the optimizer "
                                              "has a momentum of 0.9, too; use it with optim::sgd{.momentum = 0}"));
  CHECK(momentum_of(optim::groups{optim::sgd{.momentum = 0.5}, {}}) == 0.5);
  CHECK(momentum_of(optim::any<environment<precision::fp32>>(adaptive)) == 0.9);
}

TEST_CASE("data and zero<1> get the same weights from each codec", "[compression]") {
  for (auto const& each : codecs) {
    INFO(describe(each.second));
    CHECK(on_mlp.state_by_threads(3, adaptive, parallel::data{.bucket_bytes = 1024}, each.second) ==
          on_mlp.state_by_threads(3, adaptive, parallel::zero<1>{.bucket_bytes = 1024}, each.second));
  }
}

TEST_CASE("random_k of everything equals no compression bit for bit", "[compression]") {
  parallel::data const how{.bucket_bytes = 1024};
  auto const hash = on_mlp.state_by_threads(2, adaptive, how, plain{random_k{.ratio = 1}});
  CHECK(on_mlp.state_by_threads(2, adaptive, how, plain{random_k{.ratio = 1, .unbiased = true, .seed = 9}}) == hash);
  CHECK(on_mlp.state_by_threads(2, adaptive, how, none{}) == hash);
}
