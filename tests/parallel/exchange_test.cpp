#include "trireme/parallel/exchange.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "exchange_cases.hpp"
#include "trireme/comm/comm.hpp"

using namespace trireme;

TEST_CASE("an exchange of the caller's parameters averages, publishes, votes and compares", "[parallel][exchange]") {
  for (int const ranks : {1, 2, 3}) {
    std::vector<std::vector<std::string>> found(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks},
           [&](auto& world) { found[static_cast<std::size_t>(world.rank())] = exchange_cases::all(world); });
    for (auto const& rank : found) CHECK(rank == std::vector<std::string>(rank.size()));
  }
}

namespace {
/// A memory of the user's own: the caller's, whose gradients are counted on their way into the buckets.
int taken = 0;
template <class Env, class Comm, class Placement>
struct counted_memory : parallel::callers_memory<Env, Comm, Placement> {
  using callers = parallel::callers_memory<Env, Comm, Placement>;
  template <bool Keeps>
  struct gradients : callers::template gradients<Keeps> {
    using base = typename callers::template gradients<Keeps>;
    using base::base;
    void take(int use, bool last, auto&& open) {
      ++taken;
      base::take(use, last, open);
    }
  };
};
}  // namespace

TEST_CASE("the memory that an exchange works in can be the user's own", "[parallel][exchange]") {
  comm::self_world world;
  std::vector<float> value(4, 1), gradient(4, 2);
  basic_exchange<environment<precision::fp32>, comm::self_world, parallel::data, compression::none, counted_memory>
      exchange({{"a", tensor_view{value}, tensor_view{gradient}}}, world, {}, {});
  exchange.begin();
  exchange.accumulate();
  exchange.ready("a");
  CHECK(exchange.finish().norm == 8);  // of four sums of 4
  CHECK(taken == 2);
  CHECK(gradient == std::vector<float>(4, 4));
}

TEST_CASE("an exchange refuses what it cannot carry out, in one sentence", "[parallel][exchange]") {
  comm::self_world world;
  std::vector<float> value(4);
  std::vector<float> gradient(4);
  std::vector<float> shorter(3);
  auto const of = [&](std::vector<foreign_parameter<float>> list, std::int64_t bytes = 4096) {
    return [&world, list, bytes] { make_exchange(list, world, parallel::data{.bucket_bytes = bytes}).ready("b"); };
  };
  foreign_parameter<float> const a{"a", tensor_view{value}, tensor_view{gradient}};
  foreign_parameter<float> const torn{"a", tensor_view{value}, tensor_view{shorter}};
  CHECK_THROWS_WITH(of({a})(), "trireme::exchange: there is no parameter \"b\"");
  CHECK_THROWS_WITH(of({a, a})(), "trireme::exchange: two parameters are named \"a\"; rename one");
  CHECK_THROWS_WITH(of({torn})(), "trireme::exchange: parameter \"a\" has 4 values but 3 gradients");
  CHECK_THROWS_WITH(of({a}, 3)(), "trireme::exchange: bucket_bytes is 3; it must be at least the size of one gradient");
  CHECK_THROWS_WITH(of({})(), "trireme::exchange: the model has no parameters; an exchange needs at least one");
  CHECK_THROWS_WITH(
      make_exchange(std::vector{a}, world, parallel::data{.reproducible = true}),
      "trireme::exchange: parallel::data{.bucket_bytes = 26214400, .reproducible = true} needs to know the "
      "micro-batches, which a model with its own memory does not provide; leave .reproducible out, or "
      "describe the model in units");
}

namespace {

using env = environment<precision::fp32>;

/// Some parameters without a model, whose gradients the caller writes.
struct parameters {
  explicit parameters(bool answers = true) {
    all.reserve(5);
    for (std::int64_t const n : {700, 3, 5000, 900, 1500}) {
      all.push_back({{text("p", n), {n}, {}, true}, {}, {}});
      all.back().info.is_owner = answers || n != 900;
      uses.push_back(&all.back());
    }
  }
  void gradients(float factor) {
    for (auto* const use : uses) {
      auto const name = hash_name(use->info.name);
      for (std::int64_t i = 0; i < use->gradient.size(); ++i) {
        use->gradient[i] = factor * static_cast<float>(mix(name + static_cast<std::uint64_t>(i)) >> 40);
      }
    }
  }
  std::vector<parameter<env>> all;
  std::vector<parameter<env>*> uses;
};

template <class Comm, class Strategy>
exchange_result reduced(Comm& world, Comm& everyone, Strategy const& strategy, parameters& mine, float factor,
                        std::int64_t votes = 0) {
  std::vector<int> const units{2, 5};
  basic_exchange<env, Comm, Strategy, compression::none> exchange(mine.uses, world, strategy, compression::none{},
                                                                  units, &everyone);
  exchange.begin();
  exchange.open(1);
  exchange.open(0);
  mine.gradients(factor);
  for (int use : {2, 3, 4, 0, 1}) exchange.ready(use);
  return exchange.finish(votes);
}

}  // namespace

TEST_CASE("the norm has the same bits for any number of ranks, bucket size and stage", "[parallel][exchange]") {
  comm::self_world alone;
  parameters serial;
  auto const norm = reduced(alone, alone, parallel::data{}, serial, 0.3F).norm;
  REQUIRE(norm > 0);
  for (int const ranks : {1, 2, 3, 4}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      float const factor = world.rank() == 0 ? 0.3F : 0.0F;
      auto const at = [&](auto const& strategy) {
        parameters mine;
        return reduced(world, world, strategy, mine, factor).norm;
      };
      std::vector<double> norms;
      for (std::int64_t const bytes : {4, 4096, 20000, 1 << 20}) {
        norms.push_back(at(parallel::data{.bucket_bytes = bytes}));
        norms.push_back(at(parallel::zero<1>{.bucket_bytes = bytes}));
        norms.push_back(at(parallel::zero<2>{.bucket_bytes = bytes}));
        norms.push_back(at(parallel::zero<3>{.bucket_bytes = bytes}));
      }
      if (world.rank() == 0) CHECK(norms == std::vector<double>(norms.size(), norm));
    });
  }
}

TEST_CASE("gradients are summed over replicas, but norm and votes over all ranks", "[parallel][exchange]") {
  comm::self_world alone;
  parameters whole;
  parameters without(false);
  auto const first = reduced(alone, alone, parallel::data{}, whole, 2.0F).norm;
  auto const second = reduced(alone, alone, parallel::data{}, without, 6.0F).norm;
  REQUIRE(second < 3 * first);
  auto const together = std::sqrt(first * first + second * second);
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    auto replicas = world.split(world.rank() % 2, world.rank());
    auto const at = [&](auto const& strategy, float factor) {
      parameters mine(world.rank() % 2 == 0);
      return reduced(replicas, world, strategy, mine, factor, world.rank());
    };
    auto const check = [&](auto const& strategy) {
      auto const result = at(strategy, world.rank() % 2 == 0 ? 1.0F : 3.0F);  // twice in each of two pairs
      auto const lost = at(strategy, world.rank() == 3 ? std::numeric_limits<float>::infinity() : 1.0F);
      if (world.rank() != 0) return;
      CHECK(std::abs(result.norm - together) < 1e-12 * together);
      CHECK(result.votes == 0 + 1 + 2 + 3);
      CHECK(result.finite);
      CHECK(!lost.finite);
    };
    check(parallel::data{});
    check(parallel::zero<1>{});
    check(parallel::zero<2>{});
    check(parallel::zero<3>{});
  });
}

TEST_CASE(
    "from stage 2 on an exchange asks for the units of a model, and for as many micro-batches where sums are a tree",
    "[parallel][exchange]") {
  comm::self_world world;
  parameters mine;
  using second = basic_exchange<env, comm::self_world, parallel::zero<2>, compression::none>;
  auto const make = [&](std::vector<int> const& ends) { second(mine.uses, world, {}, {}, ends); };
  CHECK_THROWS_WITH(make({}),
                    "trireme::exchange: parallel::zero<2>{.bucket_bytes = 26214400} allocates gradients unit by unit; "
                    "pass the end of each unit's uses");
  CHECK_THROWS_WITH(
      make({2, 1}),
      "trireme::exchange: a unit's uses end at 1 after the one before it ended at 2, of 5 uses; ends must ascend "
      "to the number of uses");
  CHECK_THROWS_WITH(
      make({2, 4}),
      "trireme::exchange: the units have 4 uses of parameters, but there are 5; pass the end of every unit");
  std::vector<int> const ends{5};
  second exchange(mine.uses, world, {}, {}, ends);
  CHECK_THROWS_WITH(exchange.open(1), "trireme::exchange: there is no unit 1; the model has 1");
  basic_exchange<env, comm::self_world, parallel::data, compression::none> tree(mine.uses, world,
                                                                                {.reproducible = true}, {}, ends);
  CHECK_THROWS_WITH(
      tree.begin(0),
      "trireme::exchange: .reproducible with between 0 and 0 micro-batches a rank; every rank needs the same "
      "number, at least one, including those without samples");
  CHECK_THROWS_WITH((basic_exchange<env, comm::self_world, parallel::data, compression::cast<bf16>>(
                        mine.uses, world, {.reproducible = true}, {}, ends)),
                    "trireme::exchange: parallel::data{.bucket_bytes = 26214400, .reproducible = true} sums whole "
                    "gradients in a fixed tree; a compressor would change them: leave one of them out");
}
