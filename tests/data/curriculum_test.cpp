// test-sanitize: address
#include "trireme/data/curriculum.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/augment.hpp"
#include "trireme/data/function.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/text_tokens.hpp"

using namespace trireme;

namespace {

/// Sample i is the number `first` + i, with the same target.
struct numbers {
  std::int64_t count = 0;
  std::int32_t first = 0;
  [[nodiscard]] std::int64_t size() const noexcept { return count; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {1}; }
  [[nodiscard]] shape target_shape() const { return {1}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      static_cast<std::int32_t*>(inputs)[i] = first + static_cast<std::int32_t>(ids[i]);
      static_cast<std::int32_t*>(targets)[i] = first + static_cast<std::int32_t>(ids[i]);
    }
  }
};

std::vector<std::int32_t> taken(data::loader<data::curriculum>& from, int batches) {
  std::vector<std::int32_t> out;
  for (int i = 0; i < batches; ++i) {
    for (auto const& part : from.next().micro_batches) {
      auto const values = part.inputs.as<std::int32_t>().span();
      out.insert(out.end(), values.begin(), values.end());
    }
  }
  return out;
}

double growing(std::int64_t step) { return static_cast<double>(step) / 99; }

data::curriculum three() {
  return {{.batch = 24, .steps = 100},
          {{numbers{300, 0}, [](std::int64_t step) { return 1 - growing(step); }},
           {numbers{50, 1000}, growing},
           {numbers{700, 2000}, 0.5}}};
}

}  // namespace

static_assert(dataset<data::curriculum> && has_sample_order<data::curriculum> && has_placed_read<data::curriculum>);

TEST_CASE("each step has the shares of its weights, and each prefix is close to their sum", "[data]") {
  auto const mixed = three();
  CHECK(mixed.epoch_size() == 2400);
  CHECK(mixed.size() == 1050);
  CHECK(mixed.share(1, 0) == 0);
  CHECK(mixed.share(1, 99) == Approx(2.0 / 3));
  CHECK(mixed.share(2, 50) == Approx(1.0 / 3));
  CHECK(mixed.share(0, 1000) == 0);
  double expected[3] = {};
  std::int64_t counts[3] = {};
  for (std::int64_t at = 0; at < 2400; ++at) {
    ++counts[mixed.source_of(mixed.id_at(3, 0, at))];
    for (std::size_t i = 0; i < 3; ++i) {
      expected[i] += mixed.share(i, at / 24);
      REQUIRE(std::abs(static_cast<double>(counts[i]) - expected[i]) < 1.5);
    }
  }
  for (std::int64_t at = 0; at < 24; ++at) CHECK(mixed.source_of(mixed.id_at(3, 0, at)) != 1);
  std::int64_t later[3] = {};
  for (std::int64_t at = 0; at < 2400; ++at) ++later[mixed.source_of(mixed.id_at(3, 1, at))];
  CHECK(later[0] == 0);
  CHECK(std::abs(later[1] - 1600) < 3);
}

TEST_CASE("a source of a curriculum is passed through in permutations", "[data]") {
  auto const mixed = three();
  std::vector<std::int64_t> small;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t at = 0; at < 2400; ++at) {
      auto const id = mixed.id_at(8, epoch, at);
      if (mixed.source_of(id) == 1) small.push_back(id - 300);
    }
  }
  REQUIRE(small.size() > 2000);
  for (std::size_t pass = 0; (pass + 1) * 50 <= small.size(); ++pass) {
    std::set<std::int64_t> const seen(small.begin() + static_cast<std::ptrdiff_t>(pass * 50),
                                      small.begin() + static_cast<std::ptrdiff_t>((pass + 1) * 50));
    REQUIRE(seen.size() == 50);
  }
}

TEST_CASE("a curriculum is the same on any number of ranks and after a resume", "[data]") {
  auto const mixed = three();
  data::loader_options const options{.batch = 24, .micro_batches = 4, .seed = 11};
  data::loader whole(mixed, options), first(mixed, options, 0, 2), second(mixed, options, 1, 2), part(mixed, options);
  auto const all = taken(whole, 110);
  std::vector<std::int32_t> both;
  for (int i = 0; i < 110; ++i) {
    for (auto* rank : {&first, &second}) {
      for (auto const each : taken(*rank, 1)) both.push_back(each);
    }
  }
  CHECK(both == all);
  static_cast<void>(taken(part, 60));
  data::loader again(mixed, {.batch = 12, .seed = 11, .prefetch = 0});
  again.seek(part.position());
  CHECK(taken(again, 100) == std::vector(all.begin() + 60 * 24, all.end()));

  // Another source: an epoch has as many samples as before, but others.
  data::curriculum const more{{.batch = 24, .steps = 100}, {{mixed, 1}, {numbers{10, 3000}, 1}}};
  data::loader other(more, options);
  CHECK(sentence_of([&] { other.seek(part.position()); }) ==
        "trireme::data::loader: cannot seek to trireme::data::loader_position{.epoch = 0, .position = 1440, "
        ".samples = 2400, .seed = 11, .of = 1050} with 2400 samples of 1060 in the order of seed 11; give the dataset "
        "and the seed of that position, or seek(place.next_epoch())");
  other.seek(part.position().next_epoch());
}

TEST_CASE("samples of a source that begins again are augmented in another way", "[data]") {
  auto const drawn =
      data::augment(numbers{2}, [](data::draws& random, std::span<std::int32_t> in, std::span<std::int32_t>) {
        in[0] = static_cast<std::int32_t>(random.below(1 << 30));
      });
  data::curriculum const mixed{{.batch = 4, .steps = 5}, {{drawn, 1}}};
  data::loader loader(mixed, {.batch = 20});
  auto const all = taken(loader, 1);
  CHECK(std::set<std::int32_t>(all.begin(), all.end()).size() == 20);
}

TEST_CASE("windows of tokens grow with the step, on any number of ranks and after a resume", "[data]") {
  std::vector<std::int32_t> tokens(401);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = 1 + static_cast<std::int32_t>(i);
  data::packed_windows const windows(tokens, 8);
  data::curriculum const mixed{{.batch = 4, .steps = 6}, {{windows, 1}}, [](std::int64_t step) {
                                 return step < 2 ? 3 : step < 4 ? 5 : 8;
                               }};
  CHECK(mixed.window(0) == 3);
  CHECK(mixed.window(100) == 8);
  data::loader whole(mixed, {.batch = 4, .micro_batches = 2, .seed = 2});
  data::loader second(mixed, {.batch = 4, .micro_batches = 2, .seed = 2}, 1, 2);
  for (std::int64_t step = 0; step < 8; ++step) {
    auto const kept = std::vector<std::int64_t>{3, 3, 5, 5, 8, 8, 8, 8}[static_cast<std::size_t>(step)];
    if (step == 3) second.seek(whole.position());
    auto const& all = whole.next();
    if (step == 1 || step == 2) continue;  // the other rank begins again from the place of this one
    auto const& half = second.next();
    auto const same = [](any_view<> const& a, any_view<> const& b) {
      auto const x = a.as<std::int32_t>().span(), y = b.as<std::int32_t>().span();
      return std::equal(x.begin(), x.end(), y.begin(), y.end());
    };
    CHECK(same(all.micro_batches[1].inputs, half.micro_batches[0].inputs));
    CHECK(same(all.micro_batches[1].targets, half.micro_batches[0].targets));
    auto const in = half.micro_batches[0].inputs.as<std::int32_t>().span();
    auto const out = half.micro_batches[0].targets.as<std::int32_t>().span();
    for (std::size_t i = 0; i < in.size(); ++i) {
      bool const shown = static_cast<std::int64_t>(i % 8) < kept;
      CHECK((in[i] != 0) == shown);
      CHECK(out[i] == (shown ? in[i] + 1 : -1));
    }
  }
  std::vector<std::int32_t> in(8), out(8);
  mixed.read(std::vector<std::int64_t>{3}, in.data(), out.data());  // an evaluation sees whole windows
  CHECK(in.back() == 32);
  auto const said = [](data::shared_dataset const& from, std::int64_t length) {
    return sentence_of<config_error>([&] {
      data::curriculum const made({.batch = 1, .steps = 3}, {{from, 1}}, [&](std::int64_t) { return length; });
    });
  };
  CHECK(contains(said(windows, 9), "in step 0 windows have 9 tokens, but there are from 1 to 8"));
  CHECK(contains(said(windows, 0), "0 tokens"));
  CHECK(contains(said(data::function([](float x) { return x; }, {.samples = 3}), 1), "not windows of tokens"));
}

TEST_CASE("impossible curricula are refused", "[data]") {
  auto const said = [](data::curriculum_length length, std::vector<data::curriculum_source> sources) {
    return sentence_of<config_error>([&] { data::curriculum const made(length, sources); });
  };
  numbers const some{10};
  CHECK(contains(said({.batch = 0, .steps = 1}, {{some, 1}}), "trireme::data::curriculum: .batch = 0"));
  CHECK(contains(said({.batch = 1, .steps = 0}, {{some, 1}}), ".steps = 0"));
  CHECK(contains(said({.batch = 1 << 30, .steps = 1 << 30}, {{some, 1}}), "at most 2^36 samples"));
  CHECK(contains(said({.batch = 4, .steps = 2}, {}), "there are no sources"));
  CHECK(contains(said({.batch = 4, .steps = 5},
                      {{some, [](std::int64_t step) { return 2.0 - static_cast<double>(step); }}, {some, 1}}),
                 "in step 3 source 0 has the weight -1"));
  CHECK(
      contains(said({.batch = 4, .steps = 2}, {{some, std::numeric_limits<double>::infinity()}}), "source 0 has the"));
  CHECK(contains(said({.batch = 4, .steps = 3}, {{some, [](std::int64_t step) { return step == 2 ? 0.0 : 1.0; }}}),
                 "in step 2 all weights are 0"));
}
