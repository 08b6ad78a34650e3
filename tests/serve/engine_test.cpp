#include "trireme/serve/engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/ops/host/integer_products.hpp"
#include "trireme/train/generate.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// What a request was told.
struct answer {
  std::vector<std::int32_t> tokens, prompt;
  std::vector<float> logprobs, prompt_logprobs;
  serve::finish finish = serve::finish::none;
  std::string problem;
  int events = 0;
};
serve::callback into(answer& to) {
  return [&to](serve::event const& one) {
    ++to.events;
    if (one.token >= 0) (one.in_prompt ? to.prompt : to.tokens).push_back(one.token);
    if (one.token >= 0) (one.in_prompt ? to.prompt_logprobs : to.logprobs).push_back(one.logprob);
    to.finish = one.finish;
    to.problem = one.problem;
  };
}

std::uint32_t number(std::uint64_t i) { return random_block({7, 0}, 1, i, 0)[0]; }
std::vector<std::int32_t> words(std::uint64_t seed, std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const at = seed * 1000 + static_cast<std::uint64_t>(i);
    out.push_back(static_cast<std::int32_t>(number(at) % static_cast<std::uint32_t>(vocabulary)));
  }
  return out;
}

/// A decoder without a model: the token that follows is a function of all tokens before, which it keeps in its pages.
class parrot final : public serve::decoder {
 public:
  explicit parrot(std::int64_t context) : context_(context) {}
  std::int64_t vocabulary() const override { return 50; }
  std::int64_t context() const override { return context_; }
  tensor<float> compute(std::span<std::int32_t const> tokens, paged_rows const& rows) override {
    if (fails) throw config_error("the parrot is ill");
    kept_.resize(static_cast<std::size_t>(rows.pages_in_all * paged_rows::page));
    auto const place = [&](paged_rows::place const& at, std::int64_t position) -> std::int32_t& {
      return kept_[static_cast<std::size_t>(rows.page_of(at, position) * paged_rows::page +
                                            position % paged_rows::page)];
    };
    most_rows = std::max(most_rows, rows.count());
    for (std::int64_t i = 0; i < rows.count(); ++i)
      place(rows.row(i), rows.row(i).position) = tokens[static_cast<std::size_t>(i)];
    tensor<float> out({static_cast<std::int64_t>(rows.outputs.size()), 50});
    std::fill(out.span().begin(), out.span().end(), 0.0F);
    for (std::size_t o = 0; o < rows.outputs.size(); ++o) {
      auto const& at = rows.row(rows.outputs[o]);
      std::vector<std::int32_t> before;
      for (std::int64_t p = 0; p <= at.position; ++p) before.push_back(place(at, p));
      out.span()[o * 50 + static_cast<std::size_t>(next(before))] = 9;
    }
    return out;
  }
  static std::int32_t next(std::span<std::int32_t const> before) {
    std::uint32_t sum = 17;
    for (auto const each : before) sum = sum * 31 + static_cast<std::uint32_t>(each);
    return static_cast<std::int32_t>((sum >> 8) % 50);
  }
  static std::vector<std::int32_t> after(std::vector<std::int32_t> text, std::int64_t count) {
    std::vector<std::int32_t> out;
    for (; count > 0; --count) {
      out.push_back(next(text));
      text.push_back(out.back());
    }
    return out;
  }
  bool fails = false;
  std::int64_t most_rows = 0;

 private:
  std::int64_t context_;
  std::vector<std::int32_t> kept_;
};

template <class Model>
auto frozen_trainer(Model const& model, comm::self_world& world) {
  return make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world);
}

/// Many requests at once, with few pages, have the tokens that generate() gives each of them alone.
template <class Model>
void check_tokens(Model const& model) {
  comm::self_world world;
  auto trainer = frozen_trainer(model, world);
  trainer.initialise(3);
  trainer.change_parameters([](std::string const&, auto const&, std::int64_t, auto values) {
    ops::on<host>::scale(values, 3.0);  // so that answers do not repeat one token
  });
  constexpr std::uint64_t requests = 12;
  std::vector<std::vector<std::int32_t>> expected;
  std::vector<serve::request> asked;
  std::set<std::int32_t> different;
  for (std::uint64_t i = 0; i < requests; ++i) {
    serve::request one{.prompt = words(i % 9, 1 + number(i) % 30, model.vocabulary),
                       .max_tokens = 1 + number(i + 50) % 20,
                       .temperature = i % 2 == 0 ? 0 : 1.0};
    one.seed = i;
    auto& alone = expected.emplace_back();
    generate(trainer, one.prompt, one.max_tokens, model.context, {.temperature = one.temperature, .seed = i},
             [&](std::int32_t token) { return alone.push_back(token), true; });
    different.insert(alone.begin(), alone.end());
    asked.push_back(one);
  }
  CHECK(different.size() > 10);
  auto decoder = serve::decoder_of(trainer, model);
  for (std::int64_t const positions : {std::int64_t{2048}, std::int64_t{64}}) {
    serve::engine engine(decoder, {.positions = positions, .most_running = 8, .tokens_in_pass = 24});
    std::vector<answer> answers(requests);
    for (std::uint64_t i = 0; i < requests; ++i) {
      engine.submit(asked[i], into(answers[i]));
      if (i % 3 == 0) engine.pass();
    }
    engine.drain();
    for (std::uint64_t i = 0; i < requests; ++i) {
      CAPTURE(i, positions);
      CHECK(answers[i].tokens == expected[i]);
      CHECK(answers[i].finish == serve::finish::length);
    }
    CHECK(engine.now().pages_used == 0);
    if (positions < 100) CHECK(engine.now().preemptions > 0);
  }
}

}  // namespace

TEST_CASE("tokens of many interleaved requests are those of each alone: GPT", "[serve]") {
  watchdog dog("serving a GPT");
  check_tokens(nn::gpt{.vocabulary = 37, .context = 64, .layers = 2, .heads = 3, .channels = 24});
}
TEST_CASE("tokens of many interleaved requests are those of each alone: LLaMA", "[serve]") {
  watchdog dog("serving a LLaMA");
  check_tokens(nn::llama{.vocabulary = 37,
                         .context = 64,
                         .layers = 2,
                         .heads = 4,
                         .key_heads = 2,
                         .channels = 32,
                         .window = 11,
                         .tied = true});
}

TEST_CASE("log-probabilities of a prompt are those of whole predictions", "[serve]") {
  watchdog dog("scoring");
  nn::llama const model{.vocabulary = 37, .context = 40, .layers = 2, .heads = 4, .key_heads = 2, .channels = 32};
  comm::self_world world;
  auto trainer = frozen_trainer(model, world);
  trainer.initialise(5);
  auto decoder = serve::decoder_of(trainer, model);
  serve::engine engine(decoder, {.positions = 48, .most_running = 4, .tokens_in_pass = 7});
  auto const prompt = words(3, 33, 37);
  for (std::int64_t const max_tokens : {0, 1, 5}) {
    answer told, other;
    std::vector<std::vector<serve::scored_token>> tops;
    auto const tell = into(told);
    engine.submit({.prompt = prompt, .max_tokens = max_tokens, .temperature = 0, .logprobs = 3, .echo = true},
                  [&](serve::event const& one) {
                    tell(one);
                    if (one.token >= 0) tops.push_back(one.top);
                  });
    engine.submit({.prompt = words(4, 9, 37), .max_tokens = 30}, into(other));  // which preempts, or is preempted
    while (engine.pass()) {
    }
    CHECK(told.prompt == prompt);
    CHECK(static_cast<std::int64_t>(told.tokens.size()) == max_tokens);
    CHECK(told.finish == serve::finish::length);
    CHECK(std::isnan(told.prompt_logprobs[0]));
    auto all = prompt;
    all.insert(all.end(), told.tokens.begin(), told.tokens.end());
    auto logprobs = told.prompt_logprobs;
    logprobs.insert(logprobs.end(), told.logprobs.begin(), told.logprobs.end());
    for (std::size_t i = 1; i < all.size(); ++i) {
      auto const logits =
          trainer.predict(make_samples(tensor_view<std::int32_t const>(all.data(), {1, static_cast<std::int64_t>(i)}),
                                       tensor_view<std::int32_t const>{}));
      double sum = 0;
      for (auto const each : logits.span()) sum += std::exp(static_cast<double>(each));
      auto const log_of = [&](std::int32_t token) {
        return static_cast<double>(logits.span()[static_cast<std::size_t>(token)]) - std::log(sum);
      };
      CHECK(std::abs(static_cast<double>(logprobs[i]) - log_of(all[i])) < 1e-5);
      REQUIRE(tops[i].size() == 3);
      for (auto const& each : tops[i]) CHECK(std::abs(static_cast<double>(each.logprob) - log_of(each.token)) < 1e-5);
      CHECK(std::abs(static_cast<double>(tops[i][0].logprob) -
                     (static_cast<double>(*std::max_element(logits.span().begin(), logits.span().end())) -
                      std::log(sum))) < 1e-5);
      CHECK(tops[i][0].logprob >= tops[i][1].logprob);
    }
  }
}

TEST_CASE("with products of integers a request's tokens do not depend on others, and are almost as probable",
          "[serve]") {
  watchdog dog("integers");
  nn::llama const model{.vocabulary = 37, .context = 64, .layers = 2, .heads = 4, .key_heads = 2, .channels = 64};
  constexpr std::uint64_t requests = 5;
  auto const serve_all = [&](bool together) {
    comm::self_world world;
    auto trainer = frozen_trainer(model, world);
    trainer.initialise(5);
    auto decoder = serve::decoder_of(trainer, model);
    serve::engine engine(decoder, {.positions = 512, .most_running = 4, .tokens_in_pass = 20});
    std::vector<answer> answers(requests);
    for (std::uint64_t i = 0; i < requests; ++i) {
      engine.submit({.prompt = words(i, 30, 37), .max_tokens = 8, .temperature = 0, .logprobs = 1, .echo = true},
                    into(answers[i]));
      while (!together && engine.pass()) {
      }
    }
    engine.drain();
    return answers;
  };
  auto const exact = serve_all(true);
  for (auto const& [form, most] : {std::pair{ops::weight_form::int8, 0.01}, std::pair{ops::weight_form::int4, 0.2}}) {
    ops::integer_products const scope(form);
    auto const alone = serve_all(false), together = serve_all(true);
    double differs = 0, sum = 0, expected = 0;
    for (std::size_t i = 0; i < requests; ++i) {
      CHECK(together[i].tokens == alone[i].tokens);
      CHECK(together[i].logprobs == alone[i].logprobs);
      for (std::size_t t = 1; t < 30; ++t) {
        auto const one = static_cast<double>(together[i].prompt_logprobs[t]);
        auto const other = static_cast<double>(exact[i].prompt_logprobs[t]);
        differs = std::max(differs, std::abs(one - other));
        sum += one;
        expected += other;
      }
    }
    INFO(name_of(form) << ": largest difference " << differs << ", perplexity times "
                       << std::exp((expected - sum) / (requests * 29)));
    CHECK(differs > 0);
    CHECK(differs < 10 * most);
    CHECK(std::abs(expected - sum) / (requests * 29) < most);
  }
}

TEST_CASE("a thousand requests, some cancelled, leave no pages", "[serve]") {
  watchdog dog("cancelling");
  parrot model(200);
  serve::engine engine(model, {.positions = 256, .most_running = 16, .most_waiting = 1000, .tokens_in_pass = 64});
  engine.start();
  constexpr std::uint64_t requests = 1000;
  std::vector<answer> answers(requests);
  std::vector<serve::request> asked(requests);
  for (std::uint64_t i = 0; i < requests; ++i) {
    auto& one = asked[i];
    one.prompt = words(i, 1 + number(3 * i) % 90, 50);
    if (i % 4 == 0) {  // which others begin with too
      auto const common = words(0, 70, 50);
      one.prompt.insert(one.prompt.begin(), common.begin(), common.end());
    }
    one.max_tokens = 1 + number(3 * i + 1) % 40;
    one.temperature = 0;
    auto const tell = into(answers[i]);
    bool const throws = number(3 * i + 2) % 16 == 1;
    auto const id = engine.submit(one, [tell, throws](serve::event const& told) {
      tell(told);
      if (throws) throw std::runtime_error("the reader has gone");
    });
    if (number(3 * i + 2) % 4 == 0) engine.cancel(id - number(i) % std::min<std::uint64_t>(id, 40));
  }
  engine.drain();
  auto const end = engine.now();
  CHECK(end.pages_used == 0);
  CHECK(end.running == 0);
  CHECK(end.waiting == 0);
  CHECK(end.requests == 1000);
  CHECK(end.cancelled > 50);
  CHECK(end.preemptions > 0);
  CHECK(end.prompt_tokens_reused > 1000);
  CHECK(model.most_rows <= 64);
  std::int64_t whole = 0, tokens = 0;
  for (std::uint64_t i = 0; i < requests; ++i) {
    CAPTURE(i);
    auto expected = parrot::after(asked[i].prompt, asked[i].max_tokens);
    tokens += static_cast<std::int64_t>(answers[i].tokens.size());
    if (answers[i].finish == serve::finish::length) {
      ++whole;
    } else if (answers[i].finish == serve::finish::none) {  // its callback has thrown
      CHECK(answers[i].events == 1);
    } else {
      CHECK(answers[i].finish == serve::finish::cancelled);
    }
    expected.resize(answers[i].tokens.size());
    if (answers[i].tokens != expected) FAIL("other tokens");
  }
  CHECK(whole > 500);
  CHECK(tokens == end.tokens_generated);
}

TEST_CASE("answers end at a stop token, at their length, and where the context is full", "[serve]") {
  parrot model(20);
  serve::engine engine(model);
  auto const ask = [&](serve::request const& what) {
    answer out;
    engine.submit(what, into(out));
    while (engine.pass()) {
    }
    return out;
  };
  auto const prompt = words(1, 5, 50);
  auto const follow = parrot::after(prompt, 16);
  auto const first_seventh = std::find(follow.begin(), follow.end(), follow[7]);
  auto const stopped = ask({.prompt = prompt, .temperature = 0, .stop = {99, follow[7]}});
  CHECK(stopped.finish == serve::finish::stop);
  CHECK(stopped.tokens == std::vector<std::int32_t>(follow.begin(), first_seventh + 1));
  auto const full = ask({.prompt = prompt, .max_tokens = 1000, .temperature = 0});
  CHECK(full.finish == serve::finish::length);
  CHECK(full.tokens == follow);  // the last one from all 20 positions
  auto const none = ask({.prompt = prompt, .max_tokens = 0});
  CHECK(none.events == 1);
  CHECK(none.finish == serve::finish::length);
  auto const one = ask({.prompt = {4}, .max_tokens = 0, .echo = true});
  CHECK(one.prompt == std::vector<std::int32_t>{4});
  CHECK(one.events == 2);
  auto const banned = ask({.prompt = prompt, .max_tokens = 1, .temperature = 0, .logit_bias = {{follow[0], -100.0F}}});
  CHECK(banned.tokens.at(0) != follow[0]);
  model.fails = true;
  auto const failed = ask({.prompt = prompt});
  CHECK(failed.finish == serve::finish::error);
  CHECK(failed.problem == "the parrot is ill");
  CHECK(engine.now().errors == 1);
  model.fails = false;
  CHECK(ask({.prompt = prompt, .max_tokens = 3, .temperature = 0}).tokens.size() == 3);
}

TEST_CASE("requests that cannot be served are refused in one sentence", "[serve]") {
  parrot model(40);
  serve::engine engine(model, {.positions = 32, .most_waiting = 2});
  auto const refused = [&](serve::request const& what) {
    return sentence_of<config_error>([&] { engine.submit(what, {}); });
  };
  CHECK(refused({}) == "trireme::serve::request: the prompt has no tokens; give it one at least");
  CHECK(contains(refused({.prompt = {1, 50}}), "a token 50, but the model's are 0 to 49"));
  CHECK(contains(refused({.prompt = words(1, 41, 50)}), "the prompt has 41 tokens, but the model's context is 40"));
  CHECK(contains(refused({.prompt = {1}, .max_tokens = 33}), "may take 48 positions, but the engine has 32"));
  CHECK(contains(refused({.prompt = {1}, .max_tokens = -1}), "max_tokens is -1"));
  CHECK(contains(refused({.prompt = {1}, .temperature = std::nan("")}), "temperature is nan"));
  CHECK(contains(refused({.prompt = {1}, .top_k = -1}), "top_k is -1"));
  CHECK(contains(refused({.prompt = {1}, .top_p = 0}), "top_p is 0; it is in (0, 1]"));
  CHECK(contains(refused({.prompt = {1}, .min_p = 2}), "min_p is 2"));
  CHECK(contains(refused({.prompt = {1}, .repetition_penalty = 0}), "repetition_penalty is 0"));
  CHECK(contains(refused({.prompt = {1}, .logit_bias = {{-1, 0.0F}}}), "logit_bias has a token -1"));
  CHECK(contains(refused({.prompt = {1}, .logprobs = -1}), "logprobs is -1"));
  answer first, second;
  engine.submit({.prompt = {1}}, into(first));
  engine.submit({.prompt = {2}}, into(second));
  CHECK(contains(sentence_of<serve::overloaded_error>([&] { engine.submit({.prompt = {3}}, {}); }),
                 "2 requests wait already; try again later"));
  engine.pass();
  engine.stop();
  CHECK(first.finish == serve::finish::cancelled);
  CHECK(first.tokens.size() == 1);
  CHECK(second.finish == serve::finish::cancelled);
  CHECK(contains(sentence_of<serve::overloaded_error>([&] { engine.submit({.prompt = {3}}, {}); }), "about to stop"));
  CHECK(engine.now().pages_used == 0);
  CHECK(contains(sentence_of<config_error>([&] { serve::engine(model, {.context = 41}); }),
                 "a context of 41 of the model's 40"));
}

TEST_CASE("callbacks may submit and cancel, but not stop the engine", "[serve]") {
  watchdog dog("callbacks");
  parrot model(100);
  serve::engine engine(model);
  std::atomic<int> ended{0};
  std::string said;
  engine.start();
  engine.submit({.prompt = {1}, .max_tokens = 5, .temperature = 0}, [&](serve::event const& one) {
    if (one.finish == serve::finish::none) return;
    said = sentence_of<config_error>([&] { engine.stop(); });
    engine.submit({.prompt = {2}, .max_tokens = 90}, [&](serve::event const& other) {
      if (other.finish == serve::finish::none) engine.cancel(other.request);
      if (other.finish == serve::finish::cancelled) ++ended;
    });
    ++ended;
  });
  while (ended < 2) std::this_thread::yield();
  engine.drain();
  engine.stop();
  CHECK(contains(said, "trireme::serve::engine::stop: a callback called it"));
  CHECK(engine.now().cancelled == 1);
}
