// test-sanitize: none
#include "trireme/parallel/schedules/schedules.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/parallel/pipeline.hpp"

using namespace trireme;
using namespace trireme::schedule;

namespace {

/// Calls f(stages, micro-batches) for all sizes that a schedule supports.
template <class Schedule, class F>
void for_each_size(int chunks, F&& f) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int micro_batches = 4; micro_batches <= 32; ++micro_batches) {
      size const of{stages, micro_batches, chunks};
      if (Schedule::refuses(of) != nullptr) continue;
      INFO(Schedule::name << ": " << stages << " stages, " << micro_batches << " micro-batches, " << chunks
                          << " chunks");
      f(of, make_lists<Schedule>(of));
    }
  }
}

constexpr costs even{.forward = 1, .backward_input = 1, .backward_weight = 1};
constexpr costs uneven[] = {even, {6, 8, 5}, {5, 7, 3}, {4, 9, 4}};
constexpr std::int64_t full_backward(costs const& of) { return of.of(work::backward); }

// Wrong schedules.
struct late : gpipe {
  static constexpr std::string_view name = "late";
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    gpipe::steps(of, stage, [&](step each) {
      if (stage == 1 && each.micro_batch == 2) each.kind = work::forward;
      emit(each);
    });
  }
};
struct outside : gpipe {
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    gpipe::steps({of.stages, of.micro_batches + 1}, stage, emit);
  }
};
struct twice : gpipe {
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    for (int i = 0; i < 2; ++i) gpipe::steps(of, stage, emit);
  }
};
struct weight_first : zb_h1 {
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    zb_h1::steps(of, stage, [&](step each) {
      if (each.kind == work::backward_input)
        each.kind = work::backward_weight;
      else if (each.kind == work::backward_weight)
        each.kind = work::backward_input;
      emit(each);
    });
  }
};

// All shipped schedules are valid at every size up to 16 stages and 64 micro-batches.
static_assert(check<gpipe, 16, 64>() && check<one_f_one_b, 16, 64>() && check<zb_h1, 16, 64>());
static_assert(check<zb_v, 16, 64>() && check<interleaved, 16, 64, 2>());
static_assert(check<dual_pipe, 16, 64>() && check<dual_pipe_v, 16, 64>());
static_assert(check<interleaved, 4, 8, 3>() && check<one_f_one_b, 1, 4>() && check<zb_v, 1, 4>());

// 1F1B with single blocking sends deadlocks: a stage sends an activation down while the next one sends a gradient up.
static_assert(!measure<one_f_one_b, 4, 8>(even, sends::rendezvous).finished);
static_assert(measure<one_f_one_b, 4, 8>(even, sends::grouped).finished);
static_assert(measure<one_f_one_b, 4, 8>(even, sends::buffered).finished);
static_assert(measure<gpipe, 4, 8>(even, sends::rendezvous).finished);
static_assert(measure<zb_v, 4, 8>(even).bubble == 0 && measure<zb_v, 4, 8>(even).peak == 8);

}  // namespace

TEST_CASE("gpipe idles for (p-1)(F+B) and keeps every micro-batch", "[parallel][schedules]") {
  for_each_size<gpipe>(1, [](size const& of, step_lists const& steps) {
    for (auto const& cost : uneven) {
      auto const run = simulate(steps, cost);
      REQUIRE(run.finished);
      REQUIRE(run.bubble() == (of.stages - 1) * (cost.forward + full_backward(cost)));
      REQUIRE(run.span() == (of.micro_batches + of.stages - 1) * (cost.forward + full_backward(cost)));
      REQUIRE(run.peak() == of.micro_batches);
    }
  });
}

TEST_CASE("1f1b idles for (p-1)(F+B) and keeps min(p, m) micro-batches", "[parallel][schedules]") {
  for_each_size<one_f_one_b>(1, [](size const& of, step_lists const& steps) {
    for (auto const& cost : uneven) {
      auto const run = simulate(steps, cost);
      REQUIRE(run.bubble() == (of.stages - 1) * (cost.forward + full_backward(cost)));
      REQUIRE(run.peak() == std::min(of.stages, of.micro_batches));
      for (int s = 0; s < of.stages; ++s) {
        REQUIRE(run.stage(s).peak == std::min(of.stages - s, of.micro_batches));
      }
    }
  });
}

TEST_CASE("interleaved idles for (p-1)(F+B)/v and keeps p(1 + (p-1)/(pv)) micro-batches", "[parallel][schedules]") {
  for (int const chunks : {1, 2, 3, 4}) {
    for_each_size<interleaved>(chunks, [&](size const& of, step_lists const& steps) {
      for (auto const& cost : uneven) {  // of one chunk: a stage's F and B are `chunks` times that
        auto const run = simulate(steps, cost);
        REQUIRE(run.bubble() == (of.stages - 1) * (cost.forward + full_backward(cost)));
        // In chunks; where a stage has no more micro-batches than that, it holds them all.
        REQUIRE(run.peak() == std::min(of.stages * chunks + of.stages - 1, of.micro_batches * chunks));
      }
    });
  }
}

TEST_CASE("zb-h1 idles for (p-1)(F+B-2W) and keeps p micro-batches", "[parallel][schedules]") {
  for_each_size<zb_h1>(1, [](size const& of, step_lists const& steps) {
    for (auto const& cost : uneven) {
      auto const run = simulate(steps, cost);
      auto const formula = (of.stages - 1) * (cost.forward + full_backward(cost) - 2 * cost.backward_weight);
      REQUIRE(run.peak() == std::min(of.stages, of.micro_batches));
      if (of.micro_batches >= of.stages) {
        REQUIRE(run.bubble() == formula);
      } else {  // too few micro-batches to fill the gaps with
        REQUIRE(run.bubble() > formula);
      }
    }
    // Ideal is m(F+B) = 3m.
    if (of.micro_batches >= of.stages) REQUIRE(simulate(steps, even).bubble() == of.stages - 1);
  });
}

TEST_CASE("zb-v never idles if F = W = B/2, and keeps p micro-batches", "[parallel][schedules]") {
  for_each_size<zb_v>(2, [](size const& of, step_lists const& steps) {
    auto const run = simulate(steps, even);
    REQUIRE(run.peak() == std::min(2 * of.stages, 2 * of.micro_batches));  // chunks, each half a stage
    if (of.micro_batches >= 2 * of.stages - 1) {
      for (int s = 0; s < of.stages; ++s) REQUIRE(run.stage(s).idle() == 0);
      REQUIRE(run.waiting() == of.stages - 1);  // before its first and after its last step
    } else {                                    // the pipeline is never full
      REQUIRE(run.finished);
      REQUIRE(run.bubble() >= 0);
    }
    REQUIRE(simulate(steps, uneven[1]).finished);
  });
}

TEST_CASE("dual pipes idle for (p/2-1)(F+B-2W), or (p/2-1)(F&B+B-3W) with pairs, and keep p+1 micro-batches",
          "[parallel][schedules]") {
  auto const formulas = [](int parts, size const&, step_lists const& steps) {
    auto const pairs = [](costs const& cost, std::int64_t saved = 0) {
      auto with = cost;
      with.overlapped = cost.forward + full_backward(cost) - saved;
      return with;
    };
    auto const published = [&](costs const& cost) {
      return (parts / 2 - 1) * (cost.overlapped + full_backward(cost) - 3 * cost.backward_weight);
    };
    for (costs const& cost : {even, costs{6, 6, 4}, costs{2, 2, 1}}) {
      auto const run = simulate(steps, cost);  // as the engine runs them
      REQUIRE(run.bubble() == (parts / 2 - 1) * (cost.forward + full_backward(cost) - 2 * cost.backward_weight));
      REQUIRE(run.waiting() == run.bubble());
      REQUIRE(run.peak() == parts + 1);
      auto const paired = simulate(steps, pairs(cost));
      REQUIRE(paired.bubble() == published(pairs(cost)));
      REQUIRE(paired.peak() == parts + 1);
    }
    // The formula is written for F = B-W; a longer backward, or a pair that saves time, stays within it.
    for (costs const& cost : {pairs({6, 8, 5}), pairs({5, 7, 3}), pairs({6, 6, 4}, 3)})
      REQUIRE(simulate(steps, cost).bubble() <= published(cost));
  };
  for_each_size<dual_pipe>(2, [&](size const& of, step_lists const& steps) { formulas(of.stages, of, steps); });
  for_each_size<dual_pipe_v>(2, [&](size const& of, step_lists const& steps) { formulas(2 * of.stages, of, steps); });
}

TEST_CASE("each message of a schedule has a sender, a receiver and a route", "[parallel][schedules]") {
  for_each_schedule([]<class Schedule>(Schedule const&) {
    for_each_size<Schedule>(Schedule::chunks == 0 ? 2 : Schedule::chunks, [](size const& of, step_lists const& steps) {
      std::vector<std::pair<int, int>> makes(static_cast<std::size_t>(steps.where().values()), {nobody, nobody});
      auto takes = makes;
      // In the order of steps, between two parts: activations are received as they are sent, and so are gradients.
      std::vector<std::vector<int>> sent(static_cast<std::size_t>(4 * steps.where().virtual_stages()));
      auto received = sent;
      auto const routes = parallel::routes_of(steps.where());
      for (int s = 0; s < of.stages; ++s) {
        for (auto const* each = steps.of(s); each != steps.of(s) + steps.count(s); ++each) {
          auto const lane = [&](int value) {
            bool const upper_half = each->micro_batch >= of.micro_batches / 2;
            return static_cast<std::size_t>(2 * (value / of.micro_batches) + (upper_half ? 1 : 0));
          };
          if (each->to != nobody) REQUIRE(std::find(routes.begin(), routes.end(), route{s, each->to}) != routes.end());
          if (each->output >= 0) {
            auto& ends = makes[static_cast<std::size_t>(each->output)];
            REQUIRE(ends.first == nobody);
            ends = {s, each->to == nobody ? s : each->to};
            sent[lane(each->output)].push_back(each->output);
          }
          if (each->input >= 0) {
            auto& ends = takes[static_cast<std::size_t>(each->input)];
            REQUIRE(ends.first == nobody);
            ends = {each->from == nobody ? s : each->from, s};
            received[lane(each->input)].push_back(each->input);
          }
        }
      }
      REQUIRE(makes == takes);
      REQUIRE(sent == received);
    });
  });
}

TEST_CASE("the simulator shows which send semantics a schedule needs", "[parallel][schedules]") {
  // Forwards and backwards of one neighbour cross in every schedule but gpipe; chunks on one stage cross in more.
  size const of{4, 8, 2};
  auto const finishes = [&](auto which, sends semantics) {
    return simulate(make_lists<decltype(which)>(of), even, semantics).finished;
  };
  CHECK(finishes(gpipe{}, sends::rendezvous));
  CHECK(!finishes(one_f_one_b{}, sends::rendezvous));
  CHECK(finishes(one_f_one_b{}, sends::grouped));
  CHECK(!finishes(zb_h1{}, sends::rendezvous));
  CHECK(finishes(zb_h1{}, sends::grouped));
  CHECK(!finishes(zb_v{}, sends::grouped));
  CHECK(!finishes(dual_pipe{}, sends::grouped));
  for_each_schedule([&](auto const& each) { CHECK(finishes(each, sends::buffered)); });
}

TEST_CASE("a hop delays a pipeline once each way, and a pair that overlaps takes its own time",
          "[parallel][schedules]") {
  auto const steps = make_lists<gpipe>({4, 8});
  CHECK(simulate(steps, {.hop = 10}).span() == simulate(steps).span() + 2 * 3 * 10);
  // The sending stage goes on; a stage that waits for the other side does not.
  CHECK(simulate(steps, {.hop = 10}, sends::rendezvous).span() > simulate(steps, {.hop = 10}).span());
  auto const both = make_lists<dual_pipe_v>({2, 8});
  CHECK(simulate(both, {.overlapped = 2}).span() < simulate(both, {.overlapped = 3}).span());
  CHECK(simulate(both).span() < simulate(both, {.overlapped = 3}).span());  // each step begins when it can
}

TEST_CASE("one stage trains one micro-batch after the other", "[parallel][schedules]") {
  auto const steps = make_lists<one_f_one_b>({1, 3});
  REQUIRE(steps.count(0) == 6);
  for (int i = 0; i < 6; ++i) {
    CHECK(steps.of(0)[i] == step{.kind = i % 2 == 0 ? work::forward : work::backward, .micro_batch = i / 2});
  }
}

TEST_CASE("an impossible or wrong schedule is refused with its numbers", "[parallel][schedules]") {
  CHECK(sentence_of<config_error>([] {
          return make_lists<dual_pipe>({3, 8});
        }) ==
        "trireme::schedule: dualpipe needs an even number of stages, but was given 3 stages, 8 micro-batches and 2 "
        "chunks a stage");
  CHECK(sentence_of<config_error>([] {
          return make_lists<interleaved>({4, 6, 2});
        }) ==
        "trireme::schedule: interleaved needs micro-batches that are a multiple of the stages, but was given 4 stages, "
        "6 micro-batches and 2 chunks a stage");
  CHECK(sentence_of<config_error>([] {
          return make_lists<gpipe>({4, 0});
        }) ==
        "trireme::schedule: gpipe was given 4 stages, 0 micro-batches and 1 chunk a stage; each must be at least 1");
  CHECK(sentence_of<config_error>([] {
          return make_lists<late>({4, 6});
        }) ==
        "trireme::schedule: late with 4 stages, 6 micro-batches and 1 chunk a stage: each chunk must take each of its "
        "micro-batches forward exactly once (stage 1, step 8)");
  verdict found;
  static_cast<void>(list<outside, on_heap>({2, 3}, found));
  CHECK(found.broken == rule::in_range);
  CHECK(found.index == 3);
  CHECK(find_broken_rule(list<twice, on_heap>({2, 3}, found = {})).broken == rule::not_too_many);
  CHECK(find_broken_rule(list<weight_first, on_heap>({2, 3}, found = {})).broken == rule::weight_after_input);
}

TEST_CASE("schedules are selected by their names on the command line", "[parallel][schedules]") {
  for (auto const* name : {"gpipe", "1f1b", "interleaved", "zbh1", "zbv", "dualpipe", "dualpipev"}) {
    std::string_view found;
    CHECK(with_named(name, [&]<class Schedule>(Schedule const&) { found = Schedule::name; }));
    CHECK(found == name);
  }
  CHECK(!with_named("2f2b", [](auto const&) {}));
}

TEST_CASE("units are cut so that the most costly part is as cheap as can be", "[parallel][schedules]") {
  std::vector<double> const alike(8, 1.0);
  CHECK(cut_units(alike, 4) == unit_cuts{0, 2, 4, 6, 8});
  CHECK(cut_units(alike, 2, 2) == unit_cuts{0, 2, 4, 6, 8});
  CHECK(cut_units(std::vector<double>{1, 4, 4, 4, 4, 9}, 3) == unit_cuts{0, 3, 5, 6});
  CHECK(cut_units(std::vector<double>{9, 1, 1, 1, 1, 1}, 3) == unit_cuts{0, 1, 3, 6});
  CHECK(cut_units(std::vector<double>(9, 0.0), 9).back() == 9);
  // Stages of several parts are even as a whole: 3 and 3.25, not 2.25 and 4.
  std::vector<double> const gpt{0, 1, 1, 1, 1, 1, 1, 0.25};
  CHECK(cut_units(gpt, stage_map{{2, 0, 2}, placement::vee}) == unit_cuts{0, 3, 4, 6, 8});
  CHECK(cut_units(gpt, stage_map{{4, 0, 1}, placement::straight}) == cut_units(gpt, 4));
  // Compared with every way to cut.
  std::vector<double> const costs{3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  auto const largest = [&](unit_cuts const& cuts) {
    double most = 0;
    for (std::size_t q = 0; q + 1 < cuts.size(); ++q) {
      double sum = 0;
      for (auto u = cuts[q]; u < cuts[q + 1]; ++u) sum += costs[static_cast<std::size_t>(u)];
      most = std::max(most, sum);
    }
    return most;
  };
  double best = 1e9;
  for (std::int64_t a = 1; a < 8; ++a) {
    for (std::int64_t b = a + 1; b < 9; ++b) {
      for (std::int64_t c = b + 1; c < 10; ++c) best = std::min(best, largest({0, a, b, c, 10}));
    }
  }
  CHECK(largest(cut_units(costs, 4)) == best);
}

TEST_CASE("impossible cuts are refused with their numbers", "[parallel][schedules]") {
  std::vector<double> const costs{1, 1, 1};
  std::vector<std::int64_t> const given{2, 2};
  CHECK(cut_units(5, std::vector<std::int64_t>{1, 4}, 3) == unit_cuts{0, 1, 4, 5});
  CHECK(sentence_of<config_error>([&] { return cut_units(costs, 2, 2); }) ==
        "trireme::schedule::cut_units: 2 stages of 2 chunks need at least 4 units, but the model has 3; use fewer "
        "stages, or a model of more layers");
  CHECK(sentence_of<config_error>([&] { return cut_units(5, given, 3); }) ==
        "trireme::schedule::cut_units: a cut at unit 2 after one at unit 2; cuts must increase, and lie inside a model "
        "of 5 units");
  CHECK(sentence_of<config_error>([&] { return cut_units(5, given, 4); }) ==
        "trireme::schedule::cut_units: 4 stages of 1 chunk need 3 cuts, but 2 are given");
  CHECK(sentence_of<config_error>([] {
          static_cast<void>(cut_units(std::vector<double>{1, -1}, 2));
        }) == "trireme::schedule::cut_units: unit 1 costs -1; costs must be at least 0");
}
