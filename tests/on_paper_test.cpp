// test-sanitize: none
// docs/on-paper.md is fresh, and its figures are those that others have published, where they are to be.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "../../examples/on_paper/page.hpp"
#include "../catch.hpp"

TEST_CASE("the page of worlds on paper is what plans say", "[train]") {
  auto const* const tests = std::getenv("TRIREME_TEST_DATA");  // ctest says where tests/ is
  if (tests == nullptr) return;
  std::ifstream file(std::string(tests) + "/../docs/on-paper.md");
  std::string const there{std::istreambuf_iterator<char>(file), {}};
  INFO("run on_paper docs/on-paper.md");
  CHECK((there == on_paper::page()));
}

TEST_CASE("schedules idle and hold on 8 to 64 stages what is published", "[train]") {
  for (auto const& it : on_paper::bubbles()) {
    INFO(it.schedule << ", " << it.stages << " stages, " << it.micro_batches << " micro-batches");
    CHECK(it.found == Approx(it.formula).margin(1e-12));
    CHECK(it.peak == Approx(it.peak_formula));
  }
}

TEST_CASE("ZeRO keeps 18 bytes a parameter, divided as published, on up to 512 ranks", "[train]") {
  for (auto const& it : on_paper::sharings()) {
    if (it.ranks > 512) continue;  // padding to blocks
    for (std::size_t stage = 0; stage < 3; ++stage) {
      INFO(it.ranks << " ranks, stage " << stage + 1);
      CHECK(it.found[stage] == Approx(it.formula[stage]).epsilon(0.03));
      CHECK(it.found[stage] > it.published[stage]);
    }
  }
}

TEST_CASE("a layer keeps of its activations what is published, but for masks of dropout", "[train]") {
  for (auto const& it : on_paper::kept_by_layers()) {
    INFO(it.what);
    CHECK(it.found == Approx(it.formula).epsilon(0.002));
    CHECK(it.found <= it.published * 1.001);
  }
}

TEST_CASE("a 66-billion GPT on 16384 ranks has the bubble of its schedule, and fits", "[train]") {
  auto const one = on_paper::with_stages<on_paper::schedule::one_f_one_b>(16384, 8);
  CHECK(one.bubble == Approx(7.0 / 8));
  CHECK(one.fits());
  auto const two = on_paper::with_stages<on_paper::schedule::interleaved>(16384, 16);
  CHECK(two.bubble == Approx(15.0 / 32));
  CHECK(two.fits());
  CHECK(on_paper::operations() == Approx(on_paper::published_operations(0.5)).epsilon(0.01));
}
