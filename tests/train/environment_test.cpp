// test-sanitize: none
#include "trireme/train/environment.hpp"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

std::string refusal(std::string const& name, std::string const& value) {
  return sentence_of<config_error>([&] {
    check_environment([&](char const* asked) { return name == asked ? std::optional(value) : std::nullopt; });
  });
}

}  // namespace

TEST_CASE("an unknown value of an environment variable is refused with the known values", "[train][environment]") {
  auto const start = std::string("trireme::check_environment: the environment variable ");
  CHECK(refusal("TRIREME_ASSERTIONS", "bogus") ==
        start + "TRIREME_ASSERTIONS is \"bogus\"; it is one of none, light, normal or communication, or not set");
  CHECK(refusal("TRIREME_LOG", "maybe") == start + "TRIREME_LOG is \"maybe\"; it is one of 0 or 1, or not set");
  CHECK(
      refusal("TRIREME_CPU", "xyz").starts_with(start + "TRIREME_CPU is \"xyz\"; it is one of baseline, avx2, avx512"));
  CHECK(refusal("TRIREME_CPU", "AVX2") != "");
}

TEST_CASE("every level's name is accepted, and so is an unset variable", "[train][environment]") {
  CHECK(refusal("HOME", "bogus") == "");
  for (auto const* name : {"TRIREME_ASSERTIONS", "TRIREME_CPU", "TRIREME_LOG"}) {
    CHECK(refusal(name, "") == "");
  }
  for (auto const level :
       {assertion_level::none, assertion_level::light, assertion_level::normal, assertion_level::communication}) {
    CHECK(refusal("TRIREME_ASSERTIONS", std::string(name_of(level))) == "");
  }
  for (auto const level : {ops::cpu_level::baseline, ops::cpu_level::avx2, ops::cpu_level::avx512,
                           ops::cpu_level::avx512_bf16, ops::available()}) {
    CHECK(refusal("TRIREME_CPU", std::string(ops::name_of(level))) == "");
  }
  CHECK(refusal("TRIREME_LOG", "0") == "");
  CHECK(refusal("TRIREME_LOG", "1") == "");
}

TEST_CASE("a trainer is not made while an environment variable has an unknown value", "[train][environment]") {
  comm::self_world world;
  auto const make = [&] { (void)make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{.learning_rate = 1e-2}, world); };
  CHECK_NOTHROW(make());
  REQUIRE(::setenv("TRIREME_CPU", "xyz", 1) == 0);
  CHECK_THROWS_AS(make(), config_error);
  REQUIRE(::unsetenv("TRIREME_CPU") == 0);
  CHECK_NOTHROW(make());
}
