#include "trireme/serve/sampler.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/train/generate.hpp"

using namespace trireme;

namespace {

std::vector<float> logits_of(std::uint64_t seed, std::size_t count) {
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(6 * unit_float(random_block({seed, 0}, 2, i, 0)[0]));
  return out;
}

}  // namespace

TEST_CASE("tokens are those of draw()", "[serve]") {
  serve::sampler sample;
  for (std::uint64_t i = 0; i < 200; ++i) {
    auto const logits = logits_of(i, 300);
    for (auto const& how : {drawing{}, drawing{.temperature = 0}, drawing{.temperature = 0.5, .top_k = 7},
                            drawing{.top_p = 0.9}, drawing{.top_p = 0.999}, drawing{.top_k = 90, .top_p = 0.5}}) {
      auto copy = logits;
      serve::request request{.temperature = how.temperature, .top_k = how.top_k, .top_p = how.top_p};
      request.seed = i;
      CHECK(sample(copy, request, {}, i) == draw(logits, {how.temperature, how.top_k, how.top_p, i}, i));
    }
  }
}

TEST_CASE("min_p, penalty and biases", "[serve]") {
  serve::sampler sample;
  auto const sampled = [&](std::vector<float> const& logits, serve::request const& how,
                           std::vector<std::int32_t> const& seen = {}) {
    std::set<std::int32_t> out;
    for (std::uint64_t i = 0; i < 300; ++i) {
      auto copy = logits;
      out.insert(sample(copy, how, seen, i));
    }
    return out;
  };
  std::vector<float> const logits{0, std::log(2.0F), std::log(4.0F), std::log(1.0F)};
  CHECK(sampled(logits, {}).size() == 4);
  CHECK(sampled(logits, {.min_p = 0.4}) == std::set<std::int32_t>{1, 2});
  CHECK(sampled(logits, {.temperature = 0.5, .min_p = 0.4}) == std::set<std::int32_t>{2});
  CHECK(sampled(logits, {.min_p = 1}) == std::set<std::int32_t>{2});
  CHECK(sampled(logits, {.temperature = 0, .logit_bias = {{3, 5.0F}}}) == std::set<std::int32_t>{3});
  CHECK(sampled(logits, {.logit_bias = {{2, -100.0F}, {0, -100.0F}}}) == std::set<std::int32_t>{1, 3});
  CHECK(sampled(logits, {.temperature = 0, .repetition_penalty = 3}, {2, 2, 9}) == std::set<std::int32_t>{1});
  CHECK(sampled({-1, -1.5F}, {.temperature = 0, .repetition_penalty = 2}, {0}) == std::set<std::int32_t>{1});
}

TEST_CASE("the most probable tokens", "[serve]") {
  std::vector<float> const logits{1, 3, 2, 3};
  auto const top = serve::most_probable(logits, 3, 1.0);
  CHECK(top == std::vector<serve::scored_token>{{1, 2.0F}, {3, 2.0F}, {2, 1.0F}});
  CHECK(serve::most_probable(logits, 0, 1.0).empty());
  CHECK(serve::most_probable(logits, 9, 1.0).size() == 4);
}

TEST_CASE("logits that are not numbers sample nothing", "[serve]") {
  serve::sampler sample;
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  std::vector<float> bad{1, std::nanf("")}, none{-infinity, -infinity};
  CHECK(contains(sentence_of<numeric_error>([&] { static_cast<void>(sample(bad, {}, {}, 0)); }),
                 "the logit of token 1 of 2 is nan"));
  CHECK(contains(sentence_of<numeric_error>([&] { static_cast<void>(sample(none, {}, {}, 0)); }),
                 "no token can be sampled"));
}
