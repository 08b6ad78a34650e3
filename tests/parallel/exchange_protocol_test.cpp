// test-sanitize: thread
// Calls of an exchange in a wrong order give one clear error, and valid sequences give none.
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "exchange_cases.hpp"
#include "trireme/comm/comm.hpp"

using namespace trireme;
using exchange_cases::own_parameters;

namespace {

/// The error of an action on each of 2 ranks, "" for none.
template <class Action>
std::vector<std::string> on_two_ranks(Action&& action) {
  std::vector<std::string> said(2);
  launch(comm::threads{.ranks = 2, .deadline = std::chrono::seconds(20)}, [&](auto& world) {
    try {
      action(world);
    } catch (error const& problem) {
      said[static_cast<std::size_t>(world.rank())] = problem.what();
    }
  });
  return said;
}
std::vector<std::string> both(std::string const& sentence) {
  return {"trireme::exchange: " + sentence, "trireme::exchange: " + sentence};
}

/// The errors of some calls of an exchange on 2 ranks.
template <class Calls, class... Policies>
std::vector<std::string> calls(Calls&& calls, Policies... policies) {
  return on_two_ranks([&](auto& world) {
    own_parameters mine;
    auto exchange = make_exchange(mine.list(), world, policies...);
    mine.gradients(1, 1);
    calls(exchange);
  });
}
void all_ready(auto& exchange) {
  exchange.ready("bias");
  exchange.ready("weight");
}
void update(auto& exchange) {
  for (auto const& segment : exchange.segments())
    for (std::int64_t i = 0; i < segment.value.size(); ++i) segment.value[i] -= segment.gradient.terms[0][i];
}
void whole_step(auto& exchange) {
  exchange.begin();
  all_ready(exchange);
  exchange.finish();
  update(exchange);
  exchange.publish();
}

std::vector<std::string> const silence(2);

}  // namespace

TEST_CASE("ready() twice for a parameter is refused with its name", "[parallel][exchange]") {
  watchdog const guard("ready twice");
  auto const twice = [](auto& exchange) {
    exchange.begin();
    exchange.ready("weight");
    exchange.ready("weight");
  };
  auto const sentence = both(
      "ready(\"weight\") a second time in one step; call it once, when the gradient is final "
      "(accumulate() adds an earlier micro-batch)");
  CHECK(calls(twice) == sentence);
  CHECK(calls(twice, parallel::zero<1>{}) == sentence);
  CHECK(calls(twice, parallel::zero<2>{.bucket_bytes = 4096}) == sentence);
  CHECK(calls([](auto& exchange) { exchange.ready(7); }) == both("use 7 is out of range; the number of uses is 2"));
}

TEST_CASE("a step without begin() is refused, also after a complete step", "[parallel][exchange]") {
  watchdog const guard("no begin");
  auto const sentence = both("ready(\"bias\") outside a step; call begin() first");
  CHECK(calls([](auto& exchange) { all_ready(exchange); }) == sentence);
  CHECK(calls([](auto& exchange) {
          whole_step(exchange);
          all_ready(exchange);
        }) == sentence);
  CHECK(calls([](auto& exchange) { exchange.finish(); }) == both("finish() outside a step; call begin() first"));
  CHECK(calls([](auto& exchange) { exchange.accumulate(); }) ==
        both("accumulate() outside a step; call begin() first"));
  CHECK(calls([](auto& exchange) { exchange.weight(0.5); }) == both("weight() outside a step; call begin() first"));
}

TEST_CASE("a step without finish() is refused by the call that follows", "[parallel][exchange]") {
  watchdog const guard("no finish");
  auto const then = [](auto next) {
    return calls([&](auto& exchange) {
      exchange.begin();
      all_ready(exchange);
      next(exchange);
    });
  };
  CHECK(then([](auto& exchange) { exchange.begin(); }) ==
        both("begin() during a step; call finish() first, or abandon() to give the step up"));
  CHECK(then([](auto& exchange) { update(exchange); }) ==
        both("segments() before the sums are complete; call finish() first"));
  CHECK(then([](auto& exchange) { exchange.publish(); }) ==
        both("publish() before the end of a step; call finish() first"));
}

TEST_CASE("finish() without a ready() names the parameter that was not reported", "[parallel][exchange]") {
  watchdog const guard("no ready");
  auto const one = [](auto& exchange) {
    exchange.begin();
    exchange.ready("bias");
    exchange.finish();
  };
  auto const none = [](auto& exchange) {
    exchange.begin();
    exchange.finish();
  };
  std::string const end = "; call it for each gradient of the step (a rank without samples calls begin(0))";
  CHECK(calls(one) == both("finish() without ready(\"weight\")" + end));
  CHECK(calls(one, parallel::zero<1>{}) == both("finish() without ready(\"weight\")" + end));
  CHECK(calls(none) == both("finish() without ready(\"weight\"), nor for 1 more" + end));
}

TEST_CASE("a missing publish() is refused when values of all ranks are needed", "[parallel][exchange]") {
  watchdog const guard("no publish");
  auto const then = [](auto strategy, auto next) {
    return calls(
        [&](auto& exchange) {
          exchange.begin();
          all_ready(exchange);
          exchange.finish();
          update(exchange);
          next(exchange);
        },
        strategy);
  };
  auto const refused = [](std::string const& call) {
    return both(call +
                " after an update, in which each rank changes only its part of the parameters, such as \"weight\"; "
                "call publish() after finish()");
  };
  auto const begin = [](auto& exchange) { exchange.begin(); };
  CHECK(then(parallel::zero<1>{}, begin) == refused("begin()"));
  CHECK(then(parallel::zero<2>{}, begin) == refused("begin()"));
  CHECK(then(parallel::zero<1>{}, [](auto& exchange) { exchange.verify_replicas(); }) == refused("verify_replicas()"));
  CHECK(then(parallel::zero<1>{}, [](auto& exchange) { static_cast<void>(exchange.hash_of_parameters()); }) ==
        refused("hash_of_parameters()"));
  CHECK(then(parallel::data{}, begin) == silence);  // every rank has updated everything
}

TEST_CASE("accumulate() is refused after a ready(), and accepted before it", "[parallel][exchange]") {
  watchdog const guard("accumulate");
  CHECK(calls([](auto& exchange) {
          exchange.begin();
          exchange.ready("bias");
          exchange.accumulate();
        }) == both("accumulate() after ready(\"bias\"), whose gradient may be in transit; call accumulate() before "
                   "the first ready() of a step"));
  CHECK(calls([](auto& exchange) {
          exchange.begin();
          exchange.weight(0.25);
          exchange.accumulate();
          all_ready(exchange);
          exchange.finish();
        }) == silence);
}

TEST_CASE("correct calls raise no error: skipped steps, ranks without samples, abandoned steps",
          "[parallel][exchange]") {
  watchdog const guard("right calls");
  auto const right = [](auto strategy) {
    return on_two_ranks([&](auto& world) {
      own_parameters mine;
      auto exchange = make_exchange(mine.list(), world, strategy);
      exchange.begin();  // not finite: nothing to publish
      mine.gradients(std::numeric_limits<float>::quiet_NaN(), 1);
      all_ready(exchange);
      if (exchange.finish().finite) throw error("finite");
      exchange.begin(world.rank());  // rank 0 has no samples
      mine.gradients(1, 1);
      if (world.rank() == 1) all_ready(exchange);
      exchange.finish();
      exchange.publish();  // of unchanged values
      exchange.begin();
      exchange.ready("bias");
      exchange.abandon();
      mine.gradients(0.25F, 0);
      whole_step(exchange);
      if (!exchange_cases::all_are(mine.weight, 0.75)) throw error("what was given up has left something");
    });
  };
  CHECK(right(parallel::data{}) == silence);
  CHECK(right(parallel::zero<1>{.bucket_bytes = 4096}) == silence);
  CHECK(right(parallel::zero<2>{.bucket_bytes = 4096}) == silence);
}

TEST_CASE("at assertion level none an exchange does not check the order of calls", "[parallel][exchange]") {
  assertions(assertion_level::none);
  comm::self_world world;
  own_parameters mine;
  auto exchange = make_exchange(mine.list(), world);
  exchange.begin();
  exchange.finish();
  exchange.begin();
  exchange.begin();
  assertions(assertion_level::normal);
  CHECK_THROWS_AS(exchange.begin(), assertion_error);
}

namespace {

using env = environment<precision::fp32>;

/// Two units with a parameter each, as an engine sees them.
struct two_units {
  two_units() {
    for (char const* const name : {"a", "b"}) all.push_back({{name, {8}, {}, true}, {}, {}});
    for (auto& each : all) uses.push_back(&each);
  }
  std::vector<parameter<env>> all;
  std::vector<parameter<env>*> uses;
};

template <class Strategy, class Calls>
std::vector<std::string> of_units(Strategy const& strategy, Calls&& calls) {
  return on_two_ranks([&](auto& world) {
    two_units mine;
    std::vector<int> const ends{1, 2};
    basic_exchange<env, comm::threads_world, Strategy, compression::none> exchange(mine.uses, world, strategy, {},
                                                                                   ends);
    calls(exchange, world.rank());
  });
}
void micro_batch(auto& exchange) {
  for (int const use : {1, 0}) {
    exchange.gather(use);
    exchange.open(use);
    exchange.ready(use);
    exchange.release(use);
  }
}

}  // namespace

TEST_CASE("if every micro-batch is exchanged, each use is reported once a micro-batch", "[parallel][exchange]") {
  watchdog const guard("every micro-batch");
  auto const check = [](auto const& strategy) {
    INFO(to_string(strategy));
    auto const is = [&](std::vector<std::string> const& said, auto calls) { CHECK(of_units(strategy, calls) == said); };
    is(silence, [](auto& exchange, int) {
      exchange.begin(2);
      micro_batch(exchange);
      micro_batch(exchange);
      exchange.finish();
      exchange.publish();
    });
    is(both("ready(\"b\") without memory for it; call open() first"), [](auto& exchange, int) {
      exchange.begin(1);
      exchange.ready(1);
    });
    is(both("ready(\"b\") a second time in one micro-batch; call it once, when the gradient is final"),
       [](auto& exchange, int) {
         exchange.begin(2);
         exchange.open(1);
         exchange.ready(1);
         exchange.ready(1);
       });
    is(both("finish() without ready(\"a\"), nor for 1 more; call it for each gradient of the step "
            "(a rank without samples calls begin(0))"),
       [](auto& exchange, int) {
         exchange.begin(2);
         micro_batch(exchange);
         exchange.finish();
       });
  };
  check(parallel::zero<2>{});
  check(parallel::zero<3>{});
  check(parallel::data{.reproducible = true});
  // Ranks that have fewer micro-batches take part in the rest.
  CHECK(of_units(parallel::zero<2>{}, [](auto& exchange, int rank) {
          exchange.begin(rank);
          if (rank == 1) micro_batch(exchange);
          exchange.finish();
          exchange.publish();
        }) == silence);
}

TEST_CASE("settings that must be equal on all ranks are compared when an exchange is made", "[parallel][exchange]") {
  watchdog const guard("comparing");
  auto const made = [](auto change) {
    return on_two_ranks([&](auto& world) {
      own_parameters mine;
      auto list = mine.list();
      if (world.rank() == 1) change(mine, list);
      static_cast<void>(make_exchange(list, world, parallel::data{.bucket_bytes = list.size() == 3 ? 8192 : 4096}));
    });
  };
  std::string const end = "; use the same parameters in the same order, and the same policies, on every rank";
  CHECK(made([](auto&, auto& list) { list[1].name = "offset"; }) ==
        both("a parameter is \"bias\" of shape (5) on rank 0 but \"offset\" of shape (5) on rank 1" + end));
  CHECK(made([](auto&, auto& list) { std::swap(list[0], list[1]); }) ==
        both("a parameter is \"weight\" of shape (3000) on rank 0 but \"bias\" of shape (5) on rank 1" + end));
  CHECK(made([](auto&, auto& list) { list.pop_back(); }) ==
        both("a parameter is \"bias\" of shape (5) on rank 0 but nothing on rank 1" + end));
  CHECK(made([](auto& mine, auto& list) {
          list.push_back({"more", tensor_view{mine.bias}, tensor_view{mine.bias_gradient}});
        }) == both("the parallel strategy is parallel::data{.bucket_bytes = 4096} on rank 0 but "
                   "parallel::data{.bucket_bytes = 8192} on rank 1" +
                   end));
  CHECK(made([](auto& mine, auto&) { mine.weight[2999] = 7; }) ==
        both("the parameters of rank 1 differ from those of rank 0; start every rank from the same values: "
             "world.broadcast(values, 0) gives it those of rank 0"));
  CHECK(made([](auto&, auto&) {}) == silence);
}

TEST_CASE("an exchange of one part of a model votes with all ranks", "[parallel][exchange]") {
  watchdog const guard("everyone");
  CHECK(on_two_ranks([](auto& world) {
          auto replicas = world.split(world.rank(), 0);  // each rank has a part of its own
          own_parameters mine;
          mine.weight[0] = static_cast<float>(world.rank());
          auto exchange = make_exchange(mine.list(), replicas, parallel::zero<1>{}, world);
          exchange.begin();
          mine.gradients(1, 1);
          if (world.rank() == 1) mine.bias_gradient[3] = std::numeric_limits<float>::quiet_NaN();
          all_ready(exchange);
          auto const result = exchange.finish(1);
          if (result.finite || result.votes != 2) throw error("a NaN in the other part was not seen");
        }) == silence);
}
