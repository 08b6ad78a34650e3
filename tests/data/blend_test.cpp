#include "trireme/data/blend.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/data/any_dataset.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/function.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/map.hpp"
#include "trireme/data/sampler.hpp"

using namespace trireme;

namespace {

/// Sample i is (first + i, -(first + i)).
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
      static_cast<std::int32_t*>(targets)[i] = -first - static_cast<std::int32_t>(ids[i]);
    }
  }
};
static_assert(dataset<numbers> && !has_sample_order<numbers>);
static_assert(dataset<data::blend> && has_sample_order<data::blend> && has_sample_order<data::any_dataset>);

/// The inputs of the next batches.
template <class Loader>
std::vector<std::int32_t> taken(Loader& from, int batches) {
  std::vector<std::int32_t> out;
  for (int i = 0; i < batches; ++i) {
    for (auto const& part : from.next().micro_batches) {
      for (auto const value : part.inputs.template as<std::int32_t>().span()) out.push_back(value);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("each prefix of a blend's order holds each source within one sample of its weight", "[data]") {
  std::vector<std::vector<double>> const weights{
      {0.7, 0.3},    {1, 1, 1},     {5, 3, 2},     {0.6, 0.25, 0.1, 0.05}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
      {3.14159, 1},  {1e-3, 1, 10}, {97, 1, 1, 1}, {1, 2, 4, 8, 16, 32},   {std::sqrt(2.0), std::sqrt(3.0), 1},
      {0.125, 0.875}};
  for (auto const& some : weights) {
    std::vector<data::blend_source> sources;
    for (auto const weight : some) {
      sources.push_back({numbers{1000 + static_cast<std::int64_t>(sources.size())}, weight});
    }
    data::blend const mixed(sources);
    double sum = 0, shares = 0;
    for (auto const weight : some) sum += weight;
    std::vector<double> counts(some.size());
    double worst = 0;
    for (std::int64_t n = 0; n < 4000; ++n) {
      ++counts[mixed.source_of(mixed.id_at(5, 0, n))];
      for (std::size_t i = 0; i < some.size(); ++i) {
        worst = std::max(worst, std::abs(counts[i] - static_cast<double>(n + 1) * mixed.share(i)));
      }
    }
    CHECK(worst < 1);
    for (std::size_t i = 0; i < some.size(); ++i) {
      CHECK(std::abs(mixed.share(i) - some[i] / sum) < 0x1p-20);
      shares += mixed.share(i);
    }
    CHECK(std::abs(shares - 1) < 1e-12);
  }
}

TEST_CASE("a blend passes through each source before it repeats a sample of it", "[data]") {
  data::blend const mixed{{numbers{30, 0}, 3}, {numbers{10, 100}, 1}, {numbers{5, 200}, 1}};
  CHECK(mixed.size() == 45);
  CHECK(mixed.epoch_size() == 45);
  CHECK(mixed.share(0) == 0.6);
  CHECK(mixed.passes(2) == Approx(1.8));
  CHECK(mixed.first_exhausted().source == 2);
  CHECK(mixed.first_exhausted().samples == 25);
  std::vector<std::vector<std::int64_t>> orders(3);
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    for (std::int64_t at = 0; at < 45; ++at) {
      auto const id = mixed.id_at(9, epoch, at);
      orders[mixed.source_of(id)].push_back(id);
    }
  }
  std::vector<std::int64_t> const sizes{30, 10, 5};
  for (std::size_t source = 0; source < 3; ++source) {
    auto const size = static_cast<std::size_t>(sizes[source]);
    for (std::size_t pass = 0; (pass + 1) * size <= orders[source].size(); ++pass) {
      std::vector<int> seen(45);
      for (std::size_t i = 0; i < size; ++i) ++seen[static_cast<std::size_t>(orders[source][pass * size + i])];
      CHECK(std::count(seen.begin(), seen.end(), 1) == sizes[source]);
    }
  }
  CHECK(std::vector(orders[0].begin(), orders[0].begin() + 30) !=
        std::vector(orders[0].begin() + 30, orders[0].begin() + 60));
}

TEST_CASE("a blend of one source is that source", "[data]") {
  data::blend const mixed{{numbers{17}, 2.5}};
  data::sampler const order{.samples = 17, .seed = 3};
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t at = 0; at < 17; ++at) CHECK(mixed.id_at(3, epoch, at) == order.id(epoch, at));
  }
}

TEST_CASE("a loader follows the order of a blend, on any number of ranks and after a resume", "[data]") {
  data::blend const mixed{{numbers{30, 0}, 3}, {numbers{10, 100}, 1}};
  data::loader_options const options{.batch = 8, .micro_batches = 4, .seed = 11};
  data::loader whole(mixed, options);
  auto const all = taken(whole, 12);  // two epochs of 40, a batch ends with each
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const at = static_cast<std::int64_t>(i);
    auto const id = mixed.id_at(11, static_cast<std::uint64_t>(at / 40), at % 40);
    CHECK(all[i] == static_cast<std::int32_t>(id < 30 ? id : 100 + id - 30));
  }
  data::any_dataset const any(mixed);  // as a trainer behind any_trainer sees it
  data::loader erased(any, options);
  CHECK(taken(erased, 12) == all);
  auto const kept = data::map(mixed, [](std::int64_t, std::span<std::int32_t>, std::span<std::int32_t>) {});
  data::loader through(kept, options);
  CHECK(taken(through, 12) == all);

  data::loader first(mixed, options, 0, 2), second(mixed, options, 1, 2);
  auto const a = taken(first, 12), b = taken(second, 12);
  for (std::size_t i = 0; i < 48; ++i) {
    CHECK(all[i / 4 * 8 + i % 4] == a[i]);
    CHECK(all[i / 4 * 8 + 4 + i % 4] == b[i]);
  }

  data::loader part(mixed, options);
  static_cast<void>(taken(part, 7));
  data::loader again(mixed, {.batch = 4, .micro_batches = 2, .seed = 11}, 0, 1);
  again.seek(part.position());
  CHECK(taken(again, 10) == std::vector(all.begin() + 56, all.end()));

  // A source that is added changes the order: only the beginning of an epoch can continue with it.
  data::blend const more{{numbers{30, 0}, 3}, {numbers{10, 100}, 1}, {numbers{10, 200}, 1}};
  data::loader another(more, options);
  CHECK(contains(sentence_of([&] { another.seek(part.position()); }), "cannot seek to"));
  another.seek(part.position().next_epoch());
}

TEST_CASE("datasets without an order have the sampler's, through any_dataset too", "[data]") {
  numbers const plain{100};
  data::any_dataset const any(plain);
  data::sampler const order{.samples = 100, .seed = 4};
  CHECK(any.epoch_size() == 100);
  for (std::int64_t at = 0; at < 100; ++at) CHECK(any.id_at(4, 2, at) == order.id(2, at));
}

TEST_CASE("an order may leave samples out and repeat others", "[data]") {
  struct first_half : numbers {
    [[nodiscard]] std::int64_t epoch_size() const { return 6; }
    [[nodiscard]] std::int64_t id_at(std::uint64_t, std::uint64_t epoch, std::int64_t position) const {
      return position / 2 + static_cast<std::int64_t>(epoch);
    }
  };
  first_half const some{{10}};
  data::loader loader(some, {.batch = 4});
  CHECK(loader.batches_per_epoch() == 2);
  CHECK(taken(loader, 4) == std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 1, 1, 2, 2, 3, 3});
}

TEST_CASE("a blend refuses what it cannot mix", "[data]") {
  numbers const some{10};
  auto const said = [](std::vector<data::blend_source> sources) {
    return sentence_of<config_error>([&] { data::blend const made(std::move(sources)); });
  };
  CHECK(contains(said({}), "there are no sources"));
  CHECK(contains(said({{some, 1}, {some, 0}}), "source 1 has the weight 0"));
  CHECK(contains(said({{some, -1}}), "source 0 has the weight -1"));
  CHECK(contains(said({{some, std::nan("")}}), "weights are positive, finite numbers"));
  CHECK(contains(said({{some, 1e-9}, {some, 1}}), "the weight of source 0"));
  CHECK(contains(said({{numbers{0}, 1}}), "source 0 has no samples"));
  CHECK(contains(said(std::vector<data::blend_source>(257, {some, 1})), "at most 256 are mixed"));
}

namespace {

/// Pictures, say.
struct slow_samples {
  std::int64_t size() const { return 10; }
  dtype input_type() const { return dtype::f32; }
  dtype target_type() const { return dtype::f32; }
  shape input_shape() const { return {1}; }
  shape target_shape() const { return {1}; }
  bool slow_to_read() const { return true; }
  void read(std::span<std::int64_t const>, void*, void*) const {}
};

}  // namespace

TEST_CASE("what is slow to read is known through every dataset that holds it", "[data][blend]") {
  slow_samples const slow;
  data::function const quick([](float x) { return x; }, {.samples = 10});
  CHECK(slow_to_read(slow));
  CHECK(!slow_to_read(quick));
  CHECK(slow_to_read(data::any_dataset(slow)));
  CHECK(!slow_to_read(data::any_dataset(quick)));
  CHECK(slow_to_read(data::concat{quick, slow}));
  CHECK(slow_to_read(data::subset(slow, {1, 2})));
  CHECK(slow_to_read(data::blend{{slow, 0.5}, {quick, 0.5}}));
  CHECK(!slow_to_read(data::blend{{quick, 0.5}, {quick, 0.5}}));
  CHECK(slow_to_read(data::map(slow, [](std::int64_t, std::span<float>, std::span<float>) {})));
}
