// test-sanitize: thread address
#include "trireme/data/loader.hpp"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "trireme/core/cores.hpp"

using namespace trireme;
using ids = std::vector<std::int64_t>;

namespace {

std::atomic<std::int64_t> allocations{0};

/// Sample i is the pair (i, -i); reading sample `bad` fails as long as it is set.
struct numbers {
  std::int64_t count = 0;
  std::atomic<std::int64_t>* bad = nullptr;
  std::int64_t size() const { return count; }
  dtype input_type() const { return dtype::i64; }
  dtype target_type() const { return dtype::i32; }
  shape input_shape() const { return {2}; }
  shape target_shape() const { return {}; }
  void read(std::span<std::int64_t const> which, void* inputs, void* targets) const {
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (bad != nullptr && which[i] == bad->load()) throw std::runtime_error("it is torn");
      static_cast<std::int64_t*>(inputs)[2 * i] = which[i];
      static_cast<std::int64_t*>(inputs)[2 * i + 1] = 2 * which[i];
      static_cast<std::int32_t*>(targets)[i] = static_cast<std::int32_t>(-which[i]);
    }
  }
};

/// The ids of this rank's part, after checking that inputs and targets belong to them.
ids ids_of(data::batch const& batch) {
  ids out;
  for (auto const& part : batch.micro_batches) {
    REQUIRE(part.count() > 0);
    REQUIRE(part.count() == static_cast<std::int64_t>(part.ids.size()));
    auto const in = part.inputs.as<std::int64_t>();
    auto const target = part.targets.as<std::int32_t>();
    REQUIRE(in.extents() == shape{part.count(), 2});
    REQUIRE(target.extents() == shape{part.count()});
    for (std::int64_t i = 0; i < part.count(); ++i) {
      auto const id = part.ids[static_cast<std::size_t>(i)];
      REQUIRE(in[2 * i] == id);
      REQUIRE(in[2 * i + 1] == 2 * id);
      REQUIRE(target[i] == -id);
      out.push_back(id);
    }
  }
  return out;
}

using loader = data::loader<numbers>;

struct world {
  std::vector<std::unique_ptr<loader>> ranks;
  world(numbers const& data, data::loader_options const& options, int size) {
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<loader>(data, options, r, size));
  }
  void seek(data::loader_position at) {
    for (auto& each : ranks) each->seek(at);
  }
  /// One batch of all ranks, in rank order; checks what must be equal on all ranks.
  ids next() {
    auto const begin = ranks[0]->position();
    ids out;
    std::int64_t whole = 0;
    for (auto& each : ranks) {
      auto const& batch = each->next();
      REQUIRE(batch.epoch == begin.epoch);
      REQUIRE(batch.position == begin.position);
      REQUIRE(each->position() == ranks[0]->position());
      auto const part = ids_of(batch);
      out.insert(out.end(), part.begin(), part.end());
      whole = batch.samples;
    }
    REQUIRE(static_cast<std::int64_t>(out.size()) == whole);
    return out;
  }
};

/// The batches of `epochs` epochs, computed with the sampler.
std::vector<ids> expected(std::int64_t samples, std::int64_t batch, std::uint64_t seed, std::uint64_t epochs) {
  std::vector<ids> out;
  data::sampler const order{.samples = samples, .seed = seed};
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t at = 0; at < samples; at += batch) {
      ids one;
      for (std::int64_t i = at; i < std::min(at + batch, samples); ++i) one.push_back(order.id(epoch, i));
      out.push_back(one);
    }
  }
  return out;
}

}  // namespace

// Counted, so that a test can check that nothing is allocated. Not inlined, or g++ warns that new and free do not
// match.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  auto const unit = static_cast<std::size_t>(alignment);
  if (void* block = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }

TEST_CASE("ranks together see the sampler's order, on every world size", "[data][loader]") {
  for (std::int64_t samples : {1, 7, 24, 25}) {
    for (std::int64_t batch : {1, 3, 8, 40}) {
      for (std::int64_t micro_batches : {1, 2, 3, 8}) {
        auto const all = expected(samples, batch, 3, 2);
        for (int size : {1, 2, 3, 5}) {
          CAPTURE(samples, batch, micro_batches, size);
          numbers const data{samples};
          world ranks(data, {.batch = batch, .micro_batches = micro_batches, .seed = 3, .prefetch = size % 3}, size);
          for (auto const& each : all) REQUIRE(ranks.next() == each);
        }
      }
    }
  }
}

TEST_CASE("the samples of a logical micro-batch do not depend on the world size", "[data][loader]") {
  numbers const data{23};
  for (std::int64_t micro_batches : {1, 3, 5, 8}) {
    std::vector<std::vector<ids>> by_size;
    for (int size : {1, 2, 3, 4, 8}) {
      std::vector<ids> parts(static_cast<std::size_t>(micro_batches) * 10);
      for (int rank = 0; rank < size; ++rank) {
        loader one(data, {.batch = 5, .micro_batches = micro_batches, .seed = 1}, rank, size);
        CHECK(one.parts() == data::even_split(micro_batches, size, rank));
        for (std::size_t step = 0; step < 10; ++step) {
          auto const& batch = one.next();
          REQUIRE(batch.parts.size() == batch.micro_batches.size());
          for (std::size_t i = 0; i < batch.parts.size(); ++i) {
            REQUIRE(batch.parts[i] >= one.parts().first);
            REQUIRE(batch.parts[i] < one.parts().end());
            auto const number =
                step * static_cast<std::size_t>(micro_batches) + static_cast<std::size_t>(batch.parts[i]);
            REQUIRE(parts[number].empty());
            parts[number].assign(batch.micro_batches[i].ids.begin(), batch.micro_batches[i].ids.end());
            auto const share = data::even_split(batch.samples, micro_batches, batch.parts[i]);
            REQUIRE(batch.micro_batches[i].count() == share.count);
          }
        }
      }
      by_size.push_back(parts);
      CHECK(by_size.back() == by_size.front());
    }
  }
}

TEST_CASE("a run killed at any batch of three epochs goes on with the same samples on another world size",
          "[data][loader]") {
  struct toy {
    std::int64_t samples, batch;
  };
  for (auto const [samples, batch] : {toy{10, 4}, toy{12, 4}, toy{5, 8}}) {
    auto const all = expected(samples, batch, 17, 3);
    numbers const data{samples};
    data::loader_options const options{.batch = batch, .micro_batches = 4, .seed = 17};
    for (std::size_t kill = 0; kill <= all.size(); ++kill) {
      for (int before : {1, 2, 4}) {
        for (int after : {1, 3, 4}) {
          CAPTURE(samples, batch, kill, before, after);
          data::loader_position saved;
          {
            world ranks(data, options, before);
            for (std::size_t step = 0; step < kill; ++step) REQUIRE(ranks.next() == all[step]);
            saved = ranks.ranks[0]->position();
          }
          world ranks(data, options, after);
          ranks.seek(saved);
          for (std::size_t step = kill; step < all.size(); ++step) REQUIRE(ranks.next() == all[step]);
          REQUIRE(ranks.ranks[0]->position() == data::loader_position{3, 0});
        }
      }
    }
  }
}

TEST_CASE("the end of an epoch and the beginning of the next are the same position", "[data][loader]") {
  numbers const data{10};
  loader one(data, {.batch = 5});
  (void)one.next();
  CHECK(one.position() == data::loader_position{0, 5});
  (void)one.next();
  CHECK(one.position() == data::loader_position{1, 0});
  one.seek({0, 10});
  CHECK(one.position() == data::loader_position{1, 0});
  CHECK(one.next().epoch == 1);
}

TEST_CASE("the last batch of an epoch is short, or left out on request", "[data][loader]") {
  numbers const data{10};
  loader all(data, {.batch = 4});
  CHECK(all.batches_per_epoch() == 3);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 4; ++i) sizes.push_back(all.next().samples);
  CHECK(sizes == ids{4, 4, 2, 4});

  loader full(data, {.batch = 4, .drop_last = true});
  CHECK(full.batches_per_epoch() == 2);
  std::set<std::pair<std::uint64_t, std::int64_t>> begins;
  for (int i = 0; i < 4; ++i) {
    auto const& batch = full.next();
    CHECK(batch.samples == 4);
    begins.emplace(batch.epoch, batch.position);
  }
  CHECK(begins == std::set<std::pair<std::uint64_t, std::int64_t>>{{0, 0}, {0, 4}, {1, 0}, {1, 4}});
  full.seek({5, 7});  // saved by a run that kept the short batch
  CHECK(full.next().epoch == 6);
}

TEST_CASE("a rank may have no samples of a short batch", "[data][loader]") {
  numbers const data{5};
  loader one(data, {.batch = 4, .micro_batches = 4}, 0, 4);
  CHECK(one.next().micro_batches.size() == 1);
  auto const& short_batch = one.next();
  CHECK(short_batch.samples == 1);
  CHECK(short_batch.micro_batches.empty());
  CHECK(short_batch.parts.empty());
  loader idle(data, {.batch = 4, .micro_batches = 1}, 0, 2);  // fewer parts than ranks
  CHECK(idle.next().micro_batches.empty());
  CHECK(idle.next().samples == 1);
}

TEST_CASE("seek discards samples that were read ahead", "[data][loader]") {
  numbers const data{100};
  data::sampler const order{.samples = 100, .seed = 0};
  for (std::int64_t prefetch : {0, 1, 2, 7}) {
    loader one(data, {.batch = 3, .prefetch = prefetch});
    for (std::int64_t i = 0; i < 200; ++i) {
      data::loader_position const to{static_cast<std::uint64_t>(i % 4), i * 37 % 100};
      one.seek(to);
      for (std::int64_t step = 0; step < i % 5; ++step) {
        auto const begin = one.position();
        REQUIRE(ids_of(one.next())[0] == order.id(begin.epoch, begin.position));
      }
    }
  }
}

TEST_CASE("next throws an error of reading, and the batch can be read again", "[data][loader]") {
  data::sampler const order{.samples = 20, .seed = 0};
  for (std::int64_t prefetch : {0, 1, 3}) {
    std::atomic<std::int64_t> bad = order.id(0, 9);
    numbers const data{20, &bad};
    loader one(data, {.batch = 4, .prefetch = prefetch});
    CHECK(ids_of(one.next())[0] == order.id(0, 0));
    CHECK(ids_of(one.next())[0] == order.id(0, 4));  // read before the failure
    auto const failure = text("trireme::data::loader: sample ", bad.load(), " cannot be read: it is torn");
    CHECK_THROWS_WITH(one.next(), failure);
    CHECK(one.position() == data::loader_position{0, 8});
    CHECK_THROWS_WITH(one.next(), failure);
    auto const& zeros = one.zeros();  // the same samples, with values 0
    CHECK(zeros.samples == 4);
    CHECK(zeros.micro_batches[0].ids[0] == order.id(0, 8));
    for (auto const number : zeros.micro_batches[0].inputs.as<std::int64_t>().span()) CHECK(number == 0);
    bad = -1;
    CHECK(ids_of(one.next())[0] == order.id(0, 8));
    CHECK(ids_of(one.next())[0] == order.id(0, 12));
  }
}

TEST_CASE("a loader can be destroyed while its reader works", "[data][loader]") {
  for (int i = 0; i < 200; ++i) {
    numbers const data{1000};
    loader one(data, {.batch = 100, .prefetch = 1 + i % 3});
    if (i % 2 == 1) (void)one.next();
  }
}

TEST_CASE("loaders of several threads read one dataset at once", "[data][loader]") {
  numbers const data{64};
  auto const all = expected(64, 16, 2, 3);
  std::vector<std::vector<ids>> seen(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      loader one(data, {.batch = 16, .micro_batches = 4, .seed = 2}, rank, 4);
      for (std::size_t step = 0; step < all.size(); ++step) {
        ids part;
        for (auto const& each : one.next().micro_batches) part.insert(part.end(), each.ids.begin(), each.ids.end());
        seen[static_cast<std::size_t>(rank)].push_back(part);
      }
    });
  }
  for (auto& each : threads) each.join();
  for (std::size_t step = 0; step < all.size(); ++step) {
    ids whole;
    for (auto const& rank : seen) whole.insert(whole.end(), rank[step].begin(), rank[step].end());
    CHECK(whole == all[step]);
  }
}

TEST_CASE("next allocates nothing", "[data][loader]") {
  numbers const data{50};
  for (std::int64_t prefetch : {0, 2, 3}) {
    loader one(
        data,
        {.batch = 8, .micro_batches = 3, .prefetch = prefetch, .workers = std::max<std::int64_t>(prefetch - 1, 0)});
    for (int i = 0; i < 3; ++i) (void)one.next();
    auto const before = allocations.load();
    for (int i = 0; i < 100; ++i) (void)one.next();
    CHECK(allocations.load() - before == 0);
  }
}

TEST_CASE("impossible options of a loader are refused by name", "[data][loader]") {
  numbers const data{10};
  auto const make = [&](data::loader_options const& options, int rank = 0, int size = 1) {
    loader const one(data, options, rank, size);
  };
  CHECK_THROWS_WITH(make({.batch = 0}), "trireme::data::loader: .batch = 0, but it must be from 1 to 2147483648");
  CHECK_THROWS_AS(make({.batch = -4}), config_error);
  CHECK_THROWS_AS(make({.batch = INT64_MAX}), config_error);
  CHECK_THROWS_AS(make({.micro_batches = 0}), config_error);
  CHECK_THROWS_AS(make({.prefetch = -1}), config_error);
  CHECK_THROWS_AS(make({.prefetch = 100000}), config_error);
  CHECK_THROWS_WITH(make({.workers = -1}),
                    "trireme::data::loader: .workers = -1, but it must be from 1 to 1024, or 0 "
                    "for the usual number");
  CHECK_THROWS_AS(make({.prefetch = 0, .workers = 2}), config_error);
  CHECK_THROWS_AS(make({.bad_samples = -1}), config_error);
  CHECK_THROWS_WITH(make({}, 2, 2), "trireme::data::loader: there is no rank 2 of 2");
  CHECK_THROWS_AS(make({}, -1, 2), config_error);
  CHECK_THROWS_AS(make({}, 0, 0), config_error);
  CHECK_THROWS_WITH(make({.batch = 11, .drop_last = true}),
                    "trireme::data::loader: with .drop_last, 10 samples never fill a batch of 11: choose a smaller "
                    "batch");
  numbers const none{0};
  CHECK_THROWS_WITH(loader(none, {}), "trireme::data::loader: the dataset has no samples");
  loader one(data, {.batch = 5});
  CHECK_THROWS_WITH(one.seek({0, 11}),
                    "trireme::data::loader: cannot seek to trireme::data::loader_position{.epoch = 0, .position = 11} "
                    "of 10 samples: the position was saved for other data");
  CHECK_THROWS_AS(one.seek({0, -1}), config_error);
  CHECK(one.next().position == 0);
  static_assert(!std::is_constructible_v<loader, numbers, data::loader_options>);  // a temporary would dangle
  CHECK(to_string(data::loader_options{}) ==
        "trireme::data::loader_options{.batch = 64, .micro_batches = 1, .seed = 0, .prefetch = 2, .drop_last = false, "
        ".workers = 0, .bad_samples = 0}");
}

TEST_CASE("a position within an epoch is valid only for the same number and order of samples", "[data][loader]") {
  numbers const old{80}, grown{114}, shrunk{50};
  loader first(old, {.batch = 10, .seed = 3});
  for (int i = 0; i < 4; ++i) static_cast<void>(first.next());
  auto const place = first.position();
  CHECK(place == data::loader_position{0, 40});
  CHECK(place.samples == 80);
  loader again(old, {.batch = 20, .seed = 3});
  again.seek(place);
  CHECK(again.next().position == 40);
  auto const refused = [&](numbers const& data, std::uint64_t seed) {
    loader other(data, {.batch = 10, .seed = seed});
    CHECK_THROWS_WITH(
        other.seek(place),
        text("trireme::data::loader: cannot seek to trireme::data::loader_position{.epoch = 0, .position = 40, "
             ".samples = 80, .seed = 3} with ",
             data.size(), " samples in the order of seed ", seed,
             "; give the dataset and the seed of that position, or seek(place.next_epoch())"));
    other.seek(place.next_epoch());
    auto const& next = other.next();
    CHECK(next.epoch == 1);
    CHECK(next.position == 0);
  };
  refused(grown, 3);
  refused(shrunk, 3);
  refused(old, 4);
  // At the end of an epoch there is nothing to repeat.
  for (int i = 0; i < 4; ++i) static_cast<void>(first.next());
  loader next(grown, {.batch = 10, .seed = 3});
  next.seek(first.position());
  CHECK(next.next().epoch == 1);
}

namespace {

/// The numbers that `numbers` has, slow to read, of which some cannot be read.
struct torn : numbers {
  std::set<std::int64_t> holes{};
  bool slow = true;
  mutable std::atomic<std::int64_t> readers{0}, most_readers{0};
  std::int64_t holds = -1;  ///< reading this sample takes a moment
  torn(std::int64_t samples, std::set<std::int64_t> unreadable, bool is_slow = true)
      : numbers{samples}, holes(std::move(unreadable)), slow(is_slow) {}
  bool slow_to_read() const { return slow; }
  void read(std::span<std::int64_t const> which, void* inputs, void* targets) const {
    auto const now = ++readers;
    auto most = most_readers.load();
    while (most < now && !most_readers.compare_exchange_weak(most, now)) continue;
    if (std::ranges::find(which, holds) != which.end()) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::this_thread::yield();
    --readers;
    for (auto const id : which) {
      if (holes.contains(id)) throw std::runtime_error("a hole");
    }
    numbers::read(which, inputs, targets);
  }
};

/// What a loader gives in some steps, errors included.
std::vector<std::string> told(data::loader<torn>& from, int steps) {
  std::vector<std::string> out;
  for (int step = 0; step < steps; ++step) {
    try {
      auto const& batch = from.next();
      auto const before = ids_of(batch);
      out.push_back(text(batch.epoch, " ", batch.position, " ", batch.samples));
      for (auto const id : before) out.back() += text(" ", id);
    } catch (std::exception const& problem) {
      out.push_back(problem.what());
      from.seek(from.position().next_epoch());
    }
  }
  return out;
}

}  // namespace

TEST_CASE("any number of reading threads gives the order, the samples and the errors of one", "[data][loader]") {
  for (bool const slow : {false, true}) {
    torn const data(37, {5, 20, 21}, slow);
    for (auto const& [rank, size] : {std::pair(0, 1), std::pair(1, 2)}) {
      for (std::int64_t const bad : {0, 2, 3}) {
        std::vector<std::string> first;
        for (std::int64_t const workers : {1, 2, 3, 8}) {
          for (std::int64_t const prefetch : {0, 1, 3}) {
            if (prefetch == 0 && workers > 1) continue;
            CAPTURE(slow, rank, bad, workers, prefetch);
            data::loader<torn> one(data,
                                   {.batch = 8,
                                    .micro_batches = 3,
                                    .seed = 4,
                                    .prefetch = prefetch,
                                    .workers = workers,
                                    .bad_samples = bad},
                                   rank, size);
            auto const all = told(one, 20);
            if (first.empty()) first = all;
            CHECK(all == first);
            CHECK(static_cast<std::int64_t>(one.left_out().size()) <= bad);
          }
        }
        auto const failed = [](std::string const& one) { return one.starts_with("trireme::data::loader: "); };
        CHECK(std::ranges::any_of(first, failed) == (bad < 3));
      }
    }
  }
  torn const data(64, {});
  data::loader<torn> several(data, {.batch = 64, .workers = 3});
  for (int step = 0; step < 50; ++step) static_cast<void>(several.next());
  CHECK(data.most_readers <= 3);
}

TEST_CASE("a sample that cannot be read is replaced by one that ranks and resumes agree on", "[data][loader]") {
  torn const data(40, {3, 11});
  auto const part = [&](int rank, int size, std::int64_t skipped) {
    std::vector<ids> out;
    data::loader<torn> one(data, {.batch = 10, .micro_batches = 2, .workers = 2, .bad_samples = 2}, rank, size);
    one.seek({0, skipped});
    for (auto at = skipped; at < 80; at += 10) out.push_back(ids_of(one.next()));
    return out;
  };
  auto const whole = part(0, 1, 0), left = part(0, 2, 0), right = part(1, 2, 0), later = part(0, 1, 20);
  for (std::size_t step = 0; step < whole.size(); ++step) {
    auto both = left[step];
    both.insert(both.end(), right[step].begin(), right[step].end());
    CHECK(both == whole[step]);
    if (step >= 2) CHECK(later[step - 2] == whole[step]);
    CHECK(std::ranges::none_of(whole[step], [](auto id) { return id == 3 || id == 11; }));
  }

  data::loader<torn> one(data, {.batch = 40, .bad_samples = 2});
  std::vector<std::string> heard;
  one.on_problem([&](data::read_problem const& problem) { heard.push_back(to_string(problem)); });
  for (int epoch = 0; epoch < 3; ++epoch) static_cast<void>(one.next());
  std::ranges::sort(heard);  // each once
  CHECK(heard ==
        std::vector<std::string>{"sample 11 was left out: trireme::data::loader: sample 11 cannot be read: a hole",
                                 "sample 3 was left out: trireme::data::loader: sample 3 cannot be read: a hole"});
  CHECK(one.left_out().size() == 2);

  torn const worse(40, {3, 11, 12});
  data::loader<torn> strict(worse, {.batch = 40, .bad_samples = 2});
  auto const too_many = Catch::Matchers::StartsWith(
      "trireme::data::loader: 2 samples have been left out, as many as .bad_samples permits, and another cannot be "
      "read: trireme::data::loader: sample ");
  CHECK_THROWS_WITH(strict.next(), too_many);
  CHECK(strict.position() == data::loader_position{});
  CHECK(strict.zeros().samples == 40);
  CHECK_THROWS_WITH(strict.next(), too_many);
  try {
    static_cast<void>(strict.next());
  } catch (data::sample_error const& problem) {
    CHECK(worse.holes.contains(problem.sample()));
    CHECK_THROWS_AS(std::rethrow_if_nested(problem), data::sample_error);
  }
}

TEST_CASE("an error of a file keeps its type, and gets the number of its sample", "[data][loader]") {
  struct files : numbers {
    void read(std::span<std::int64_t const>, void*, void*) const {
      if (kind == 0) throw io_error("a/b", "is gone", 5);
      if (kind == 1) throw format_error("a/b", 17, "is torn");
      if (kind == 2) throw config_error("a wrong option");
      throw std::bad_alloc();
    }
    int kind = 0;
  };
  files data{};
  data.count = 1;
  auto const next = [&](std::int64_t bad) {
    data::loader<files> one(data, {.batch = 1, .bad_samples = bad});
    static_cast<void>(one.next());
  };
  CHECK_THROWS_WITH(next(0), "a/b: sample 0 cannot be read: is gone");
  CHECK_THROWS_AS(next(0), io_error);
  CHECK_THROWS_AS(next(1), io_error);  // every sample that could be in its place is this one
  data.kind = 1;
  CHECK_THROWS_WITH(next(0), "a/b: byte 17: sample 0 cannot be read: is torn");
  CHECK_THROWS_AS(next(0), format_error);
  data.kind = 2;
  CHECK_THROWS_WITH(next(1), "a wrong option");
  data.kind = 3;
  CHECK_THROWS_AS(next(1), std::bad_alloc);
}

TEST_CASE("a loader says how long it was waited for, and which read took the longest", "[data][loader]") {
  torn data(20, {});
  data.holds = 13;
  data::loader<torn> one(data, {.batch = 20, .workers = 2});
  static_cast<void>(one.next());
  CHECK(one.waited() >= 0.03);
  auto const slowest = one.slowest();
  CHECK(slowest.sample == 13);
  CHECK(slowest.samples == 1);
  CHECK(slowest.seconds >= 0.03);
  CHECK(to_string(data::read_problem{.sample = 7, .samples = 3, .seconds = 12.46}) ==
        "reading sample 7 and the 2 after it takes 12.5 s");
}

TEST_CASE("samples that are slow to read are read by the cores of a rank", "[data][loader]") {
  CHECK(slow_to_read(torn(10, {})));
  CHECK(!slow_to_read(numbers{10}));
  CHECK(data::detail::usual_workers(false, 1) == 1);
  CHECK(data::detail::usual_workers(true, 1000) == 1);
  CHECK(data::detail::usual_workers(true, 1) == std::min(16, usable_cores()));
}

namespace {

/// Each sample is the rounded result of 1 + 1e-9.
struct rounded {
  std::int64_t size() const { return 64; }
  dtype input_type() const { return dtype::f32; }
  dtype target_type() const { return dtype::f32; }
  shape input_shape() const { return {}; }
  shape target_shape() const { return {}; }
  void read(std::span<std::int64_t const> which, void* inputs, void* targets) const {
    float volatile one = 1, little = 1e-9F;
    for (std::size_t i = 0; i < which.size(); ++i)
      static_cast<float*>(inputs)[i] = static_cast<float*>(targets)[i] = one + little;
  }
};

}  // namespace

TEST_CASE("the reader thread has its caller's rounding mode", "[data][loader]") {
  rounded const data;
  data::loader<rounded> reader(data, {.batch = 4, .prefetch = 1});
  auto const first = [&] { return reader.next().micro_batches.front().inputs.as<float>()[0]; };
  CHECK(first() == 1);
  auto const mode = arithmetic_mode::of_this_thread();
  std::fesetround(FE_UPWARD);
  for (int before = 0; before < 2; ++before) static_cast<void>(first());  // read before the reader learned of it
  auto const above = first();
  mode.use();
  CHECK(above == std::nextafter(1.0F, 2.0F));
}
