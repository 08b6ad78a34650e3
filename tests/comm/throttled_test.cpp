#include "trireme/comm/throttled.hpp"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"

using namespace std::chrono_literals;
using namespace trireme;
using clock_type = std::chrono::steady_clock;

namespace {

/// Only lower bounds are tested: with other programs on the machine a command may take longer, never less.
void expect_at_least(clock_type::duration took, clock_type::duration model, char const* what) {
  using milliseconds = std::chrono::duration<double, std::milli>;
  if (took < model)
    throw std::runtime_error(
        text(what, " took ", milliseconds(took).count(), " ms instead of ", milliseconds(model).count()));
}
template <class F>
clock_type::duration time_of(F&& f) {
  auto const began = clock_type::now();
  f();
  return clock_type::now() - began;
}

comm::throttled const slow{.every = {.latency = 5ms, .bytes_per_second = 1e6}};  // a kilobyte a millisecond

}  // namespace

static_assert(communicator<comm::throttled_world<comm::threads_world>>);

TEST_CASE("throttled is printed as its source, and refuses impossible links", "[comm][throttled]") {
  CHECK(to_string(slow) == "comm::throttled{.every = {.latency = 5000000ns, .bytes_per_second = 1e+06}}");
  CHECK(to_string(comm::throttled{.links = {{.latency = 1ns, .bytes_per_second = 2}}}) ==
        "comm::throttled{.every = {.latency = 50000ns, .bytes_per_second = 1.25e+08}, .links = {{.latency = 1ns, "
        ".bytes_per_second = 2}}}");
  comm::self_world alone;
  CHECK_THROWS_AS(comm::decorate(alone, comm::throttled{.every = {.latency = -1ns}}), config_error);
  CHECK_THROWS_AS(comm::decorate(alone, comm::throttled{.every = {.bytes_per_second = 0}}), config_error);
  CHECK_THROWS_AS(comm::decorate(alone, comm::throttled{.links = {{}, {}}}), config_error);
}

TEST_CASE("every command takes as long as its latency and its bytes", "[comm][throttled]") {
  watchdog dog("throttled commands");
  launch(comm::decorate(comm::threads{.ranks = 4}, slow), [](auto& world) {
    auto const r = world.rank();
    std::vector<std::uint8_t> whole(16 * 1024), part(4 * 1024), other(16 * 1024);
    tensor_view const all{whole};
    // In milliseconds: rounds * 5 + bytes / 1000, of the larger direction; four ranks take two rounds.
    expect_at_least(time_of([&] { world.barrier(); }), 10ms, "barrier");
    expect_at_least(time_of([&] { world.all_reduce(all); }), 10ms + 24ms, "all_reduce");
    expect_at_least(time_of([&] { world.reduce_scatter(all); }), 10ms + 12ms, "reduce_scatter");
    expect_at_least(time_of([&] { world.all_gather(all); }), 10ms + 12ms, "all_gather");
    expect_at_least(time_of([&] { world.all_to_all(all, tensor_view{other}); }), 10ms + 12ms, "all_to_all");
    expect_at_least(time_of([&] { world.broadcast(all, 0); }), 10ms + 16ms, "broadcast");
    expect_at_least(time_of([&] { world.reduce(all, 0); }), r == 0 ? 10ms + 49ms : 10ms + 16ms, "reduce");
    expect_at_least(time_of([&] { world.gather(tensor_view{part}, all, 0); }), r == 0 ? 10ms + 12ms : 10ms + 4ms,
                    "gather");
    expect_at_least(time_of([&] { world.scatter(all, tensor_view{part}, 0); }), r == 0 ? 10ms + 12ms : 10ms + 4ms,
                    "scatter");
    expect_at_least(time_of([&] {
                      world.exchange({send_to((r + 1) % 4, tensor_view{part}),
                                      receive_from((r + 3) % 4, tensor_view(other.data(), shape{4 * 1024}))});
                    }),
                    5ms + 4ms, "exchange");
  });
}

TEST_CASE("requests overlap with computing and queue behind each other; splits share the link", "[comm][throttled]") {
  watchdog dog("throttled requests");
  launch(comm::decorate(comm::threads{.ranks = 2}, slow), [](auto& world) {
    std::vector<std::uint8_t> a(20'000), b(20'000);
    auto part = world.split(0, world.rank());
    auto const began = clock_type::now();
    auto first = world.all_reduce_async(tensor_view{a});
    auto second = part.all_reduce_async(tensor_view{b});
    if (first.test()) throw std::runtime_error("the first is done before its time");
    second.wait();
    expect_at_least(clock_type::now() - began, 5ms + 2 * 19ms, "two requests");
    auto const rest = time_of([&] { first.wait(); });
    static_cast<void>(rest);
    if (!first.test()) throw std::runtime_error("the first is done by then");
  });
}

TEST_CASE("a table of links applies to pairs of ranks, also after a split", "[comm][throttled]") {
  watchdog dog("a table of links");
  comm::throttled table{.every = {},
                        .links = std::vector<comm::link>(9, comm::link{.latency = 0ns, .bytes_per_second = 1e12})};
  table.links[0 * 3 + 2].latency = 40ms;
  launch(comm::decorate(comm::threads{.ranks = 3}, table), [](auto& world) {
    std::vector<float> values(16);
    auto ends = world.split(world.rank() == 1 ? 1 : 0, -world.rank());  // rank 2, rank 0
    if (world.rank() == 1) return;
    expect_at_least(time_of([&] { ends.broadcast(tensor_view{values}, 1); }), 40ms, "broadcast from 0 to 2");
    if (ends.rank() == 1)
      expect_at_least(time_of([&] { ends.exchange({send_to(0, tensor_view{values})}); }), 40ms,
                      "a message from 0 to 2");
    else
      ends.exchange({receive_from(1, tensor_view{values})});
  });
}

TEST_CASE("a command waits for as many latencies as a plan counts, on 2 to 16 ranks", "[comm][throttled]") {
  watchdog dog("latencies");
  static constexpr auto latency = 2ms;
  for (int const ranks : {2, 3, 5, 8, 16}) {
    launch(comm::decorate(comm::threads{.ranks = ranks},
                          comm::throttled{.every = {.latency = latency, .bytes_per_second = 1e15}}),
           [&](auto& world) {
             auto const rounds = comm::rounds_among(ranks);
             std::vector<std::uint8_t> few(16), many(static_cast<std::size_t>(ranks) << 12);
             auto const takes = [&](int latencies, char const* what, auto&& call) {
               expect_at_least(time_of(call), latencies * latency, what);
             };
             takes(rounds, "barrier", [&] { world.barrier(); });
             takes(rounds, "split", [&] { static_cast<void>(world.split(0, world.rank())); });
             takes(rounds, "small all_reduce", [&] { world.all_reduce(tensor_view{few}); });
             takes(rounds, "broadcast", [&] { world.broadcast(tensor_view{many}, 0); });
             takes(rounds, "all_gather", [&] { world.all_gather(tensor_view{many}); });
             comm::command middle{.what = {.kind = comm::collective::all_reduce,
                                           .type = dtype::u8,
                                           .op = comm::reduction_kind::sum,
                                           .count = static_cast<std::int64_t>(many.size())}};
             takes(comm::latencies_of(middle, ranks), "all_reduce", [&] { world.all_reduce(tensor_view{many}); });
             // A rank that only receives waits, too; one without a message does not.
             auto const part = tensor_view{few};
             if (world.rank() == 0) takes(1, "sending", [&] { world.exchange({send_to(1, part)}); });
             if (world.rank() == 1) takes(1, "receiving", [&] { world.exchange({receive_from(0, part)}); });
           });
  }
  comm::raw_transfer const mine[] = {{.peer = 0, .sent = true, .type = dtype::u8, .count = 1, .address = nullptr},
                                     {.peer = 0, .sent = false, .type = dtype::u8, .count = 1, .address = nullptr}};
  comm::command to_itself{.what = {.kind = comm::collective::exchange}, .raw_transfers = mine};
  CHECK(comm::latencies_of(to_itself, 4) == 0);
  comm::command heard{.what = {.kind = comm::collective::exchange}, .raw_transfers = std::span(mine).subspan(1)};
  CHECK(comm::latencies_of(heard, 4) == 1);
}

TEST_CASE("waiting for the link sleeps", "[comm][throttled]") {
  watchdog dog("sleeping");
  auto const began = std::clock();
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::throttled{.every = {.latency = 100ms}}), [](auto& world) {
    for (int i = 0; i < 3; ++i) world.barrier();
  });
  auto const seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  CHECK(seconds < 0.3);  // of the 0.6 that two spinning ranks would burn
}

TEST_CASE("a single rank has no link", "[comm][throttled]") {
  comm::self_world alone;
  auto world = comm::decorate(alone, comm::throttled{.every = {.latency = std::chrono::hours(1)}});
  std::vector<float> values(10);
  world.all_reduce(tensor_view{values});
  world.barrier();
  CHECK(world.traffic().bytes_sent == 0);
}
