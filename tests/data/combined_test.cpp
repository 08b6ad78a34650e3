#include "trireme/data/combined.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/data/loader.hpp"

using namespace trireme;

namespace {

/// Samples (first + i) with targets -(first + i).
data::in_memory<float, float> counting(int first, int count) {
  std::vector<float> in, out;
  for (int i = first; i < first + count; ++i) {
    in.push_back(static_cast<float>(i));
    out.push_back(static_cast<float>(-i));
  }
  return {in, out};
}
template <class Data>
std::vector<float> read(Data const& from, std::vector<std::int64_t> const& ids) {
  std::vector<float> in(ids.size()), out(ids.size());
  from.read(ids, in.data(), out.data());
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(out[i] == -in[i]);
  return in;
}

}  // namespace

TEST_CASE("concat numbers the samples of its sources one after the other", "[data][combined]") {
  static_assert(dataset<data::concat> && dataset<data::subset> && dataset<data::shared_dataset>);
  data::concat const all{counting(0, 3), counting(100, 1), counting(200, 4)};
  CHECK(all.size() == 8);
  CHECK(read(all, {7, 0, 1, 3, 4, 2}) == std::vector<float>{203, 0, 1, 100, 200, 2});
  data::loader batches(all, {.batch = 3});
  CHECK(batches.next().samples == 3);
  auto const wide = [] {
    return data::in_memory<float, float>(std::vector<float>{1, 2}, std::vector<float>{1}, {2, 1});
  };
  CHECK(contains(sentence_of([&] {
                   data::concat{counting(0, 3), wide()};
                 }),
                 "samples of source 1 are F32 (2) with targets F32 (1), but those of source 0 are F32 (1)"));
  CHECK(contains(sentence_of([&] { data::concat(std::vector<data::shared_dataset>{}); }), "there are no sources"));
}

TEST_CASE("a subset has the samples of its list", "[data][combined]") {
  data::subset const some(counting(10, 5), {4, 0, 4});
  CHECK(some.size() == 3);
  CHECK(read(some, {2, 1}) == std::vector<float>{14, 10});
  CHECK(contains(sentence_of([&] { data::subset(counting(0, 2), {2}); }), "there is no sample 2 of 2"));
}

TEST_CASE("a sample's side of a split by hash does not depend on other samples", "[data][combined]") {
  data::split const divide{.held_out = 0.25, .seed = 3};
  auto const small = divide(counting(0, 1000)), large = divide(counting(0, 2000));
  CHECK(small.training.size() + small.held_out.size() == 1000);
  CHECK(large.held_out.size() > 440);
  CHECK(large.held_out.size() < 560);
  for (std::int64_t i = 0; i < small.held_out.size(); ++i)
    CHECK(read(small.held_out, {i}) == read(large.held_out, {i}));
  CHECK(contains(
      sentence_of([&] { static_cast<void>(data::split{.held_out = 1, .by = data::split::hash}(counting(0, 9))); }),
      "between 0 and 1"));
  CHECK(
      contains(sentence_of([&] { static_cast<void>(data::split{.held_out = 1e-9}(counting(0, 9))); }), "none is left"));
  CHECK(to_string(divide) == "trireme::data::split{.held_out = 0.25, .by = hash, .seed = 3}");
}
