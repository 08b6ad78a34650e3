#include "trireme/train/generate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// How often each token is drawn in so many draws.
std::map<std::int32_t, int> drawn(std::vector<float> const& logits, drawing const& how, int times) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[draw(logits, how, static_cast<std::uint64_t>(i))];
  return counts;
}

}  // namespace

TEST_CASE("tokens are drawn with their probabilities, and only those that the filters keep", "[train]") {
  std::vector<float> const logits{0, std::log(2.0F), std::log(4.0F), std::log(1.0F)};  // 1/8, 2/8, 4/8, 1/8
  constexpr int times = 8000;
  auto const all = drawn(logits, {}, times);
  for (auto const& [token, share] : {std::pair{0, 1.0}, std::pair{1, 2.0}, std::pair{2, 4.0}, std::pair{3, 1.0}})
    CHECK(std::abs(all.at(token) - times * share / 8) < 4 * std::sqrt(times * share / 8));
  // Their squares, at half the temperature: 1, 4, 16, 1.
  CHECK(std::abs(drawn(logits, {.temperature = 0.5}, times).at(2) - times * 16.0 / 22) < 200);
  auto const two = drawn(logits, {.top_k = 2}, times);
  CHECK(two.size() == 2);
  CHECK(std::abs(two.at(2) - times * 2.0 / 3) < 200);
  CHECK(drawn(logits, {.top_p = 0.5}, 100).size() == 1);
  CHECK(drawn(logits, {.top_p = 0.51}, 100).size() == 2);
  CHECK(drawn(logits, {.top_p = 0.76}, 1000) == drawn(logits, {.top_k = 3}, 1000));  // token 0 before token 3
  CHECK(drawn(logits, {.temperature = 0}, 10) == std::map<std::int32_t, int>{{2, 10}});
  CHECK(drawn({1, 1, 1}, {.temperature = 0}, 10) == std::map<std::int32_t, int>{{0, 10}});
  CHECK(drawn(logits, {.seed = 1}, 50) == drawn(logits, {.seed = 1}, 50));
  CHECK(draw(logits, {.top_k = 100}, 3) == draw(logits, {.top_k = 4}, 3));
  for (auto const& how : {drawing{.temperature = -1}, drawing{.top_k = -1}, drawing{.top_p = 0}, drawing{.top_p = 2}})
    CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(draw(logits, how, 0)); }), "top_p is in (0, 1]"));
}

TEST_CASE("generated text equals that of whole predictions, also when all positions are used", "[train]") {
  watchdog dog("generation");
  constexpr std::int64_t context = 12;
  comm::self_world world;
  auto const model = nn::gpt{.vocabulary = 37, .context = context, .layers = 2, .heads = 3, .channels = 24};
  auto const anyone = make_any_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world);
  anyone->initialise(3);
  std::vector<std::int32_t> text{1, 2, 3}, expected = text;
  for (std::int64_t first = 0; expected.size() < 33;) {
    auto const end = static_cast<std::int64_t>(expected.size());
    if (end - first > context) first = end - context / 2;
    auto const logits = anyone->predict(make_samples(
        tensor_view<std::int32_t const>(expected.data() + first, {1, end - first}), tensor_view<std::int32_t const>{}));
    expected.push_back(draw(std::span<float const>(logits.span()).first(30), {.seed = 4}, expected.size() - 3));
  }
  auto seen = text;
  generate(
      *anyone, text, 30, context, {.seed = 4}, [&](std::int32_t token) { return seen.push_back(token), true; }, 30);
  CHECK(seen == expected);
  // A text that is too long is reduced to its end; f may stop early.
  int calls = 0;
  generate(*anyone, expected, 30, context, {}, [&](std::int32_t) { return ++calls < 4; });
  CHECK(calls == 4);
  CHECK(contains(sentence_of<config_error>([&] { generate(*anyone, {}, 1, context, {}, [](int) { return true; }); }),
                 "there is a token to begin with"));
}

TEST_CASE("a logit that is not finite is an error, except -infinity, which masks a token", "[train]") {
  auto const infinity = std::numeric_limits<float>::infinity();
  auto const nan = std::nanf("");
  for (auto const& how : {drawing{.temperature = 0}, drawing{}, drawing{.top_k = 2}, drawing{.top_p = 0.5}}) {
    for (auto const& logits : {std::vector<float>{nan, 1, 2}, {1, nan, 2}, {1, 2, infinity}, {-infinity, nan, 1}})
      CHECK(
          contains(sentence_of<numeric_error>([&] { static_cast<void>(draw(logits, how, 7)); }), " in draw 7; check"));
    CHECK(contains(sentence_of<config_error>([&] {
                     static_cast<void>(draw(std::vector<float>{-infinity, -infinity}, how, 0));
                   }),
                   "trireme::draw: all 2 logits are -infinity"));
    for (std::uint64_t i = 0; i < 200; ++i) {
      auto const token = draw(std::vector<float>{-infinity, 3, -infinity, 2, -infinity}, how, i);
      CHECK((token == 1 || token == 3));
    }
  }
  CHECK(sentence_of<numeric_error>([&] {
          static_cast<void>(draw(std::vector<float>{1, nan}, {}, 0));
        }) ==
        "trireme::draw: the logit of token 1 of 2 is nan in draw 0; check the model's parameters, which give no valid "
        "probabilities");
  for (double const wrong : {std::nan(""), -0.5, std::numeric_limits<double>::infinity()})
    CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(draw({{1.0F}}, {.temperature = wrong}, 0)); }),
                   "temperature and top_k are finite"));
  // Far below the largest one: exp() is 0.
  CHECK(draw(std::vector<float>{-1e30F, 0, -1e30F}, {.temperature = 1e-300}, 3) == 1);
}

TEST_CASE("a model whose logits are NaN draws nothing, on any rank", "[train]") {
  watchdog dog("NaN in generation");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto trainer = make_trainer(nn::gpt{.vocabulary = 7, .context = 4, .layers = 1, .heads = 2, .channels = 4},
                                optim::sgd{}, world, parallel::tensor{});
    trainer.change_parameters([](std::string const& name, auto const&, std::int64_t, auto values) {
      if (contains(name, "ln_f")) ops::on<host>::fill(values, std::nan(""));
    });
    auto const said = sentence_of<numeric_error>([&] {
      generate(trainer, {1, 2}, 3, 4, {}, [](int) { return true; });
    });
    if (!contains(said, "trireme::draw: the logit of token 0 of 7 is nan")) throw error("said \"" + said + "\"");
  });
}
