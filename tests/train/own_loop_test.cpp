// test-sanitize: thread
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../policies/averaging.hpp"
#include "../support/sentence.hpp"
#include "../support/shared_scratch.hpp"
#include "../watchdog.hpp"
#include "trireme/trireme.hpp"

// Every way to write a loop of your own takes the same steps under every strategy, and resumes from a checkpoint.

using namespace trireme;

namespace {

constexpr std::int64_t n = 2500;
constexpr float rate = 0.25F;

float target(std::int64_t step, int sample, std::int64_t i) {
  auto const bits = mix(static_cast<std::uint64_t>(step * 64 + sample) * 4096 + static_cast<std::uint64_t>(i)) >> 40;
  return static_cast<float>(bits) * 0x1p-24F;
}

void descend(auto const& segments) {
  for (auto const& each : segments)
    for (std::int64_t i = 0; i < each.value.size(); ++i) each.value[i] -= rate * each.sum[i];
}

enum class drive { optimizer, update, calls, vote, begun_by_hand, accumulated, weighed };
constexpr drive all_drives[] = {drive::optimizer,     drive::update,      drive::calls,  drive::vote,
                                drive::begun_by_hand, drive::accumulated, drive::weighed};

/// Two tensors in the caller's memory; the gradient of a step is that of squared distances to one target per rank.
struct loop {
  std::vector<float> w = std::vector<float>(n, 0.5F), g = std::vector<float>(n);

  std::vector<foreign_parameter<float>> list() {
    return {{"a", tensor_view<float>(w.data(), {700}), tensor_view<float>(g.data(), {700})},
            {"b", tensor_view<float>(w.data() + 700, {n - 700}), tensor_view<float>(g.data() + 700, {n - 700})}};
  }
  void gradients(std::int64_t step, int rank, float factor = 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      auto const at = static_cast<std::size_t>(i);
      g[at] = factor * (w[at] - target(step, rank, i));
    }
  }
  template <class Exchange>
  void step(Exchange& exchange, drive how, int rank, std::int64_t t) {
    if (how == drive::begun_by_hand) {
      static constexpr std::int64_t only[] = {0};
      exchange.begin({.places = only});
    } else {
      exchange.begin(how == drive::accumulated ? 2 : 1);
    }
    if (how == drive::weighed) exchange.weight(1.0 / exchange.world().size());
    if (how == drive::accumulated) {
      gradients(t, rank, 0.25F);
      exchange.accumulate();
    }
    gradients(t, rank, how == drive::accumulated ? 0.75F : 1);
    exchange.ready("b");
    exchange.ready("a");
    if (how == drive::optimizer || how == drive::begun_by_hand) {
      exchange.step(optim::sgd{.learning_rate = rate, .momentum = 0});
    } else if (how == drive::update || how == drive::weighed) {
      exchange.step([](auto segments) { descend(segments); });
    } else if (how == drive::vote) {
      parallel::vote vote;
      vote.clear();
      exchange.finish(vote);
      auto const counted = exchange.count(vote);
      if (exchange.settle(counted.finite, {counted.norm, 1})) {
        descend(exchange.segments());
        exchange.publish();
      }
    } else {
      exchange.finish();
      descend(exchange.segments());
      exchange.publish();
    }
  }
};

template <class Strategy>
std::vector<std::vector<float>> run(int ranks, drive how, Strategy const& strategy, std::int64_t steps) {
  std::vector<std::vector<float>> out(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    loop mine;
    auto exchange = make_exchange(mine.list(), world, strategy);
    for (std::int64_t t = 0; t < steps; ++t) mine.step(exchange, how, world.rank(), t);
    if (exchange.steps() != steps) throw error("the exchange does not count its steps");
    out[static_cast<std::size_t>(world.rank())] = mine.w;
  });
  return out;
}

/// The algorithms in double.
std::vector<std::vector<double>> averaged(int ranks, std::int64_t steps, std::int64_t period, double outer_rate,
                                          double momentum) {
  std::vector<double> outer(n, 0.5), velocity(n);
  std::vector<std::vector<double>> w(static_cast<std::size_t>(ranks), outer);
  for (std::int64_t t = 0; t < steps; ++t) {
    for (int r = 0; r < ranks; ++r) {
      auto& own = w[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < own.size(); ++i)
        own[i] -= rate * (own[i] - target(t, r, static_cast<std::int64_t>(i)));
    }
    if ((t + 1) % period != 0) continue;
    for (std::size_t i = 0; i < outer.size(); ++i) {
      double moved = 0;
      for (auto const& each : w) moved += (outer[i] - each[i]) / ranks;
      velocity[i] = momentum * velocity[i] + moved;
      outer[i] -= outer_rate * (momentum == 0 ? moved : moved + momentum * velocity[i]);
      for (auto& each : w) each[i] = outer[i];
    }
  }
  return w;
}
std::vector<std::vector<double>> summed(int ranks, std::int64_t steps, std::int64_t delay) {
  std::vector<double> w(n, 0.5);
  std::vector<std::vector<double>> waiting;
  for (std::int64_t t = 0; t < steps; ++t) {
    std::vector<double> g(n);
    for (std::size_t i = 0; i < w.size(); ++i)
      for (int r = 0; r < ranks; ++r) g[i] += (w[i] - target(t, r, static_cast<std::int64_t>(i))) / ranks;
    waiting.push_back(g);
    if (t < delay) continue;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * waiting[static_cast<std::size_t>(t - delay)][i];
  }
  return std::vector<std::vector<double>>(static_cast<std::size_t>(ranks), w);
}
double furthest(std::vector<std::vector<float>> const& a, std::vector<std::vector<double>> const& b) {
  double most = 0;
  for (std::size_t r = 0; r < a.size(); ++r)
    for (std::size_t i = 0; i < a[r].size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(a[r][i]) - b[r][i]));
  return most;
}

parallel::diloco const meets{.period = 3};
parallel::parameter_server const stale{.staleness = 2};

/// Steps 0 to `last` without interruption, or stopped and resumed on another number of ranks.
template <class Strategy, class Compressor, class Step, class... Optimizer>
std::vector<float> resumed(std::vector<std::pair<int, std::int64_t>> const& legs, Strategy const& strategy,
                           Compressor const& compressor, Step const& step, Optimizer const&... optimizer) {
  std::vector<float> out;
  std::string const folder = std::filesystem::temp_directory_path() / text("own_loop_", std::random_device{}());
  std::int64_t begun = 0;
  for (auto const& [ranks, last] : legs) {
    launch(comm::threads{.ranks = ranks}, [&, last = last](auto& world) {
      loop mine;
      auto exchange = make_exchange(mine.list(), world, strategy, compressor);
      if (begun > 0 && checkpoint::load(exchange, folder, optimizer...).at.step != begun) throw error("another step");
      while (exchange.steps() < last) {
        auto const t = exchange.steps();
        exchange.begin();
        for (std::int64_t i = 0; i < n; ++i)  // the same mean on any number of ranks
          mine.g[static_cast<std::size_t>(i)] = mine.w[static_cast<std::size_t>(i)] - target(t, 0, i);
        exchange.ready("b");
        exchange.ready("a");
        step(exchange);
      }
      checkpoint::save(exchange, folder);
      if (world.rank() == 0) out = mine.w;
    });
    begun = last;
  }
  std::filesystem::remove_all(folder);
  return out;
}

}  // namespace

TEST_CASE("every form of the caller's loop takes the steps of its strategy, on every rank", "[train][own_loop]") {
  watchdog const guard("own loops");
  for (int const ranks : {1, 2, 3, 4}) {
    for (auto const how : all_drives) {
      INFO(ranks << " ranks, driven in way " << static_cast<int>(how));
      CHECK(furthest(run(ranks, how, parallel::data{.bucket_bytes = 4096}, 7), summed(ranks, 7, 0)) < 1e-5);
      CHECK(furthest(run(ranks, how, parallel::zero<1>{.bucket_bytes = 4096}, 7), summed(ranks, 7, 0)) < 1e-5);
      CHECK(furthest(run(ranks, how, parallel::zero<2>{.bucket_bytes = 4096}, 7), summed(ranks, 7, 0)) < 1e-5);
      CHECK(furthest(run(ranks, how, stale, 7), summed(ranks, 7, 2)) < 1e-5);
      CHECK(furthest(run(ranks, how, meets, 7), averaged(ranks, 7, 3, 0.7, 0.9)) < 1e-5);
      CHECK(furthest(run(ranks, how, user::averaging{.period = 2}, 7), averaged(ranks, 7, 2, 1, 0)) < 1e-5);
    }
  }
}

TEST_CASE("an update gets everything that a rank updates in one call, and a skipped step none", "[train][own_loop]") {
  watchdog const guard("one call");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto const seen = [&](auto const& strategy, float gradient) {
      loop mine;
      auto exchange = make_exchange(mine.list(), world, strategy);
      exchange.begin();
      std::fill(mine.g.begin(), mine.g.end(), gradient);
      exchange.ready("b");
      exchange.ready("a");
      std::int64_t out[] = {0, 0};  // calls, and elements of all ranks
      exchange.step([&](auto segments) {
        ++out[0];
        for (auto const& each : segments) out[1] += each.value.size();
      });
      world.all_reduce(tensor_view<std::int64_t>(out, shape{2}), reduction::sum{});
      return std::pair{out[0] / world.size(), out[1]};
    };
    if (seen(parallel::data{}, 1) != std::pair{std::int64_t{1}, 2 * n}) throw error("data");
    if (seen(parallel::zero<1>{}, 1) != std::pair{std::int64_t{1}, n}) throw error("zero<1>");
    if (seen(parallel::zero<2>{}, 1) != std::pair{std::int64_t{1}, n}) throw error("zero<2>");
    if (seen(stale, 1).first != 0) throw error("a waiting gradient is applied");
    if (seen(parallel::data{}, std::numeric_limits<float>::infinity()).first != 0) throw error("a skipped step");
  });
}

TEST_CASE("gradients are the mean over all ranks' samples, or over ranks with mean_over_ranks", "[train][own_loop]") {
  watchdog const guard("samples of own loops");
  // The gradient that each of three ranks gets after a step that `begins(exchange, rank)`.
  auto const found = [](auto strategy, auto const& begins) {
    std::vector<float> out(3);
    auto const sentence = sentence_of([&] {
      launch(comm::threads{.ranks = 3, .deadline = std::chrono::seconds(20)}, [&](auto& world) {
        auto const rank = static_cast<std::size_t>(world.rank());
        std::vector<float> value{10}, gradient{0};
        std::vector<foreign_parameter<float>> const list{
            {"w", tensor_view<float>(value.data(), {1, 1}), tensor_view<float>(gradient.data(), {1, 1})}};
        auto exchange = make_exchange(list, world, strategy);
        bool const has_some = begins(exchange, world.rank());
        gradient[0] = rank == 0 ? 12 : 6;
        if (has_some) exchange.ready("w");
        exchange.step(optim::sgd{.learning_rate = 1, .momentum = 0, .weight_decay = 0.5});
        out[rank] = 10 - value[0];
      });
    });
    if (!sentence.empty()) throw error(sentence);
    for (float const each : out) CHECK(each == out[0]);
    return static_cast<double>(out[0]);
  };
  double const decay = 5;  // of the value by 1/2
  auto const check = [&](auto strategy) {
    INFO(to_string(strategy));
    auto const samples_are = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
      return found(strategy, [&](auto& exchange, int rank) {
        auto const own = rank == 0 ? a : rank == 1 ? b : c;
        CHECK(exchange.begin(own) == a + b + c);
        return own > 0;
      });
    };
    CHECK(samples_are(0, 1, 1) == Approx(6 + decay));
    CHECK(samples_are(0, 5, 2) == Approx(6 + decay));
    CHECK(samples_are(1, 1, 1) == Approx(8 + decay));
    CHECK(samples_are(1, 2, 3) == Approx(7 + decay));
    CHECK(samples_are(0, 0, 4) == Approx(6 + decay));
    CHECK(samples_are(0, 0, 0) == 0);                     // no update: nothing decays either
    CHECK(found(strategy, [](auto& exchange, int rank) {  // as many samples everywhere; 1 by default
            rank == 0 ? exchange.begin(0) : exchange.begin();
            return rank > 0;
          }) == Approx(6 + decay));
    CHECK(found(strategy, [](auto& exchange, int) {
            exchange.begin(mean_over_ranks{});
            return true;
          }) == Approx(8 + decay));
    CHECK(found(strategy, [](auto& exchange, int rank) {  // with the total number of samples known
            exchange.begin(mean_over_ranks{});
            exchange.weight(rank == 0 ? 0.0 : 0.5);
            return true;
          }) == Approx(6 + decay));
    CHECK(found(strategy, [](auto& exchange, int rank) {  // a rank without gradients counts as one
            exchange.begin({.micro_batches = rank == 0 ? 0 : 1, .places = {}});
            return false;
          }) == Approx(decay));
  };
  check(parallel::data{});
  check(parallel::zero<1>{});
  check(parallel::zero<2>{});
  check(parallel::diloco{.period = 1, .outer_learning_rate = 1, .outer_momentum = 0});
  auto const mixed = [&] {
    static_cast<void>(found(parallel::data{}, [](auto& exchange, int rank) {
      if (rank == 0)
        exchange.begin(0);
      else
        exchange.begin(mean_over_ranks{});
      return rank > 0;
    }));
  };
  CHECK(contains(sentence_of(mixed), "call number"));
  CHECK(contains(sentence_of([&] {
                   static_cast<void>(found(parallel::data{}, [](auto& exchange, int) {
                     exchange.begin(-1);
                     return true;
                   }));
                 }),
                 "trireme::exchange: begin() with -1 samples"));
}

TEST_CASE("ranks with local steps still compare initial values, and learn of a NaN on another rank",
          "[train][own_loop]") {
  watchdog const guard("diloco alone");
  auto const made = [](auto const& change) {
    return sentence_of([&] {
      launch(comm::threads{.ranks = 3}, [&](auto& world) {
        loop mine;
        auto how = meets;
        change(world.rank(), mine, how);
        static_cast<void>(make_exchange(mine.list(), world, how));
      });
    });
  };
  CHECK(contains(made([](int rank, auto& mine, auto&) { mine.w[0] = static_cast<float>(rank); }),
                 "the parameters of rank 1 differ from those of rank 0"));
  CHECK(contains(made([](int rank, auto&, auto& how) { how.period = rank == 2 ? 4 : 3; }), "the parallel strategy is"));
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    loop mine;
    auto exchange = make_exchange(mine.list(), world, meets);
    exchange.begin();
    mine.g[5] = world.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1;
    exchange.ready("b");
    exchange.ready("a");
    auto const before = mine.w;
    auto const done = exchange.step(optim::sgd{.learning_rate = rate});
    if (done.finite || mine.w != before) throw error("a NaN is known to one rank");
  });
}

TEST_CASE("a step of diloco without publish() is an error of one sentence", "[train][own_loop]") {
  CHECK(contains(sentence_of([] {
                   comm::self_world alone;
                   loop mine;
                   auto exchange = make_exchange(mine.list(), alone, meets);
                   for (int t = 0; t < 2; ++t) {
                     exchange.begin();
                     exchange.ready("b");
                     exchange.ready("a");
                     exchange.finish();
                   }
                 }),
                 "call publish() after finish(): this strategy ends its steps there"));
}

TEST_CASE("a trainer's outer values follow parameters that were changed from outside", "[train][diloco]") {
  watchdog const guard("outer values");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto const data = data::function([](float x) { return std::sin(x); }, {.samples = 32});
    auto trainer = make_trainer(nn::mlp{.hidden = {8}}, optim::sgd{.learning_rate = 1e-30, .momentum = 0}, world,
                                parallel::diloco{.period = 2});
    trainer.change_parameters([](auto const&, auto const&, std::int64_t, auto values) {
      for (auto& each : values.span()) each = 3;
    });
    trainer.fit(data, {.steps = 2, .batch = 8});  // an outer step without any change
    trainer.for_each_parameter([](auto const&, auto const&, std::span<float const> values) {
      for (auto const each : values)
        if (each != 3) throw error("the outer step went out from other values");
    });
  });
}

TEST_CASE("the caller's loop resumes from a checkpoint bit for bit", "[train][own_loop]") {
  watchdog const guard("own checkpoints");
  optim::adamw const adamw{.learning_rate = 0.01};
  auto const steps = [&](auto& exchange) { exchange.step(adamw); };
  compression::none const none;
  auto const holds = [&](auto const& strategy, auto const& compressor, std::vector<int> const& ranks) {
    auto const whole = resumed({{2, 9}}, strategy, compressor, steps, adamw);
    for (int const other : ranks)
      CHECK(resumed({{2, 4}, {other, 7}, {2, 9}}, strategy, compressor, steps, adamw) == whole);
  };
  holds(parallel::data{}, none, {2, 1, 4});
  holds(parallel::zero<1>{}, none, {2, 1, 4});
  holds(parallel::zero<2>{}, none, {2, 4});
  holds(stale, none, {2, 4});
  holds(meets, none, {2});
  holds(user::averaging{.period = 3}, none, {2});
  holds(parallel::zero<1>{}, compression::error_feedback<compression::top_k>{{.ratio = 0.1F}}, {2});
  auto const own = [](auto& exchange) { exchange.step([](auto segments) { descend(segments); }); };
  CHECK(resumed({{2, 4}, {4, 9}}, stale, none, own) == resumed({{2, 9}}, stale, none, own));
  CHECK(resumed({{2, 4}, {2, 9}}, meets, none, own) == resumed({{2, 9}}, meets, none, own));
}

TEST_CASE("another loop's checkpoint is refused in one sentence", "[train][own_loop]") {
  watchdog const guard("other loops");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    shared_scratch folder(world);
    loop mine;
    auto const refused = [&](auto&& body) {
      auto const said = sentence_of(body);
      world.barrier();
      return said;
    };
    auto exchange = make_exchange(mine.list(), world);
    mine.step(exchange, drive::optimizer, world.rank(), 0);
    checkpoint::save(exchange, folder.path());
    auto again = make_exchange(mine.list(), world);
    auto const wrong = refused([&] { checkpoint::load(again, folder.path(), optim::adamw{}); });
    auto other = make_exchange(mine.list(), world);
    auto const none = refused([&] { checkpoint::load(other, folder.path()); });
    std::vector<foreign_parameter<float>> one{mine.list()[0]};
    auto fewer = make_exchange(one, world);
    auto const parameters = refused([&] { checkpoint::load(fewer, folder.path(), optim::sgd{}); });
    if (!contains(wrong, "sgd") || !contains(wrong, "but this run has the optimizer")) throw error(wrong);
    if (!contains(none, "give checkpoint::load() the same optimizer")) throw error(none);
    if (!contains(parameters, "was made with the model a loop of its own over \"a\"")) throw error(parameters);
  });
}

TEST_CASE("copies of parameters that differ between ranks are reported by name", "[train][loop]") {
  watchdog const guard("copies of a loop of one's own");
  auto const said = [](auto const& strategy) {
    std::string words;
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      loop mine;
      auto exchange = make_exchange(mine.list(), world, strategy);
      mine.step(exchange, drive::optimizer, world.rank(), 0);
      exchange.expect_equal_copies();
      if (world.rank() == 1) mine.w[900] += 1;
      auto const sentence = sentence_of<numeric_error>([&] { exchange.expect_equal_copies(); });
      if (world.rank() == 0) words = sentence;
    });
    return words;
  };
  std::string const expected =
      "trireme::exchange: the copies of \"b\" on ranks 0 and 1 differ: they were changed on one of them alone, or "
      "their "
      "machines round differently; give all ranks the same values, or load a checkpoint";
  CHECK(said(parallel::data{}) == expected);
  CHECK(said(parallel::zero<1>{}) == expected);
  CHECK(said(parallel::diloco{.period = 2}) == "");  // each rank has its own
}

namespace {
/// The same unit twice, and a third time under its own name.
struct repeated {
  using policy_category = slot::model;
  [[maybe_unused]] static constexpr bool made_of_layers = true;
  int times = 1;
  void units(auto&& emit) const {
    emit(nn::block{"in", 64, nn::chain(nn::features{64}, nn::dropout{0.5})});
    for (int i = 1; i < times; ++i) emit(nn::block{"in", 64, nn::chain(nn::dropout{0.5})});
    emit(nn::block{"out", 64, nn::chain(nn::loss::squared_error{})});
  }
};
}  // namespace

TEST_CASE("equal units of a model drop different elements", "[train][dropout]") {
  std::vector<float> x(4 * 64, 1), y(4 * 64);
  std::vector<std::int64_t> const ids{1, 2, 3, 4};
  for (int times : {1, 2, 3}) {
    staged_engine<environment<precision::fp32>> engine(repeated{times});
    auto batch = make_samples(tensor_view<float const>(x.data(), {4, 64}), tensor_view<float const>(y.data(), {4, 64}));
    batch.ids = ids;
    auto const kept = engine.train(batch, 0.25, {7, 0}, [](int) {}).mean() / std::pow(4.0, times);
    CHECK(kept == Approx(std::pow(0.5, times)).margin(0.06));
  }
}
