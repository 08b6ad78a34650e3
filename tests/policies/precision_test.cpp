// test-sanitize: none
#include "fp8.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"

// A user's precision that writes the operands of products itself; the same over MPI: users_mpi_test.cpp.

using namespace trireme;

namespace {

optim::adamw const adaptive{.learning_rate = 1e-2};

/// Float that writes down which operands it has seen, and how often.
struct listing : user::fp8 {
  static inline thread_local std::map<std::string, int> seen;
  class instance : public user::fp8::instance {
   public:
    explicit instance(listing const& it) : user::fp8::instance(it) {}
    void operand(product_operand const& which, tensor_view<float const> from, tensor_view<float> to) {
      std::copy(from.span().begin(), from.span().end(), to.span().begin());
      static constexpr char const* roles[] = {"input", "weight", "gradient"};
      ++seen[text(which.weight, " ", roles[static_cast<int>(which.is)], which.training ? "" : " evaluated")];
    }
  };
};

nn::gpt const small{.vocabulary = 19, .context = 8, .layers = 2, .heads = 2, .channels = 12};

/// Calls body(data) with 32 samples of tokens.
template <class Body>
void with_text(Body&& body) {
  std::vector<std::int32_t> tokens(32 * 8 + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>((i * i + 3 * i) % 19);
  body(data::in_memory(tensor_view<std::int32_t const>(tokens.data(), {32, 8}),
                       tensor_view<std::int32_t const>(tokens.data() + 1, {32, 8})));
}

/// The loss of each of some steps.
template <class... Policies>
std::vector<double> losses(int ranks, Policies const&... policies) {
  std::vector<double> all;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(small, world, adaptive, policies...);
    trainer.on_step([&](step_report const& done) {
      if (world.rank() == 0) all.push_back(done.loss);
    });
    with_text([&](auto const& text) { trainer.fit(text, {.steps = 6, .batch = 8}); });
  });
  return all;
}

}  // namespace

TEST_CASE("a user's 8-bit floats train, resume bit for bit, also on other ranks", "[policies]") {
  watchdog const guard("fp8");
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, adaptive, user::fp8{}) == "");
  }
  CHECK(policy_cases::on_mlp.holds_by_threads(2, 0.7, adaptive, user::fp8{}, parallel::zero<3>{.bucket_bytes = 512}) ==
        "");
  CHECK(policy_cases::on_mlp.moves({2, 3}, adaptive, user::fp8{}) == "");
}

TEST_CASE("all ranks round by the global maximum, so that they round as one rank does", "[policies]") {
  watchdog const guard("fp8 on meshes");
  auto const serial = losses(1, user::fp8{});
  auto const exact = losses(1, precision::fp32{});
  REQUIRE(serial.size() == 6);
  CHECK(serial.front() != exact.front());
  namespace p = parallel;
  auto const close = [&](std::string const& name, std::vector<double> const& all) {
    INFO(name);
    REQUIRE(all.size() == serial.size());
    CHECK(all.front() == Approx(serial.front()).epsilon(1e-6));  // then a flipped bit of 8 is a flipped bit
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == Approx(serial[i]).epsilon(user::fp8::tolerance));
  };
  close("data", losses(2, user::fp8{}, p::data{}));
  close("tensor", losses(2, user::fp8{}, p::mesh{p::tensor{.ways = 2}}));
  close("sequence", losses(2, user::fp8{}, p::mesh{p::tensor{.ways = 2}, p::sequence{}}));
  close("context", losses(2, user::fp8{}, p::mesh{p::context{.ways = 2}}));
  close("pipeline", losses(2, user::fp8{}, p::mesh{p::pipeline<schedule::zb_v>{.stages = 2}}));
}

TEST_CASE("a precision gets each operand of each product of a layer, with the weight's name", "[policies]") {
  listing::seen.clear();
  launch(comm::self{}, [](auto& world) {
    auto trainer = make_trainer(small, world, adaptive, listing{});
    with_text([&](auto const& text) {
      trainer.fit(text, {.steps = 1, .batch = 8, .check_every = 0});
      static_cast<void>(trainer.evaluate(text, 32));
    });
  });
  auto const& seen = listing::seen;
  for (auto const* const block : {"transformer.h.0.", "transformer.h.1."}) {
    for (auto const* const layer : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
      auto const weight = text(block, layer, ".weight");
      INFO(weight);
      // Input: forward and for the weight's gradient; weight: forward and for the input's; gradient: for both.
      CHECK(seen.at(weight + " input") == 2);
      CHECK(seen.at(weight + " weight") == 2);
      CHECK(seen.at(weight + " gradient") == 2);
      CHECK(seen.at(weight + " input evaluated") == 1);
      CHECK(seen.at(weight + " weight evaluated") == 1);
    }
  }
  CHECK(seen.size() == 2 * 4 * 5);
}

namespace {

/// Float that asks for the products of the head alone, and notes their operands.
struct of_heads : user::fp8 {
  bool head = true;
  static inline std::map<std::string, int> seen;
  static inline std::vector<std::uint64_t> draws;
  class instance : public user::fp8::instance {
   public:
    explicit instance(of_heads const& it) : user::fp8::instance(it), head_(it.head) {}
    bool writes(product_operand const& which) const { return which.head && head_; }
    void operand(product_operand const& which, tensor_view<float const> from, tensor_view<float> to) {
      std::copy(from.span().begin(), from.span().end(), to.span().begin());
      static constexpr char const* roles[] = {"input", "weight", "gradient"};
      static constexpr char const* products[] = {"forward", "input gradient", "weight gradient"};
      ++seen[text(roles[static_cast<int>(which.is)], " of ", products[static_cast<int>(which.of)])];
      if (which.of == product_operand::product::forward && which.is == product_operand::role::weight)
        draws.push_back(which.draw);
    }

   private:
    bool head_;
  };
};

}  // namespace

TEST_CASE("a precision that asks for the head's products gets their operands, and copies change nothing",
          "[policies]") {
  of_heads::seen.clear();
  of_heads::draws.clear();
  auto const same = losses(1, of_heads{});
  CHECK(same == losses(1, of_heads{{}, false}));
  CHECK(same == losses(1, precision::fp32{}));
  auto const& seen = of_heads::seen;
  CHECK(seen.size() == 6);
  CHECK(seen.at("weight of forward") >= 6);
  CHECK(seen.at("weight of input gradient") == 6);
  CHECK(seen.at("gradient of weight gradient") == seen.at("input of weight gradient"));
  // Each step draws other numbers.
  std::sort(of_heads::draws.begin(), of_heads::draws.end());
  CHECK(std::unique(of_heads::draws.begin(), of_heads::draws.end()) - of_heads::draws.begin() >= 6);
}
