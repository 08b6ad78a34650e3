#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"

using namespace trireme;
using namespace std::chrono_literals;
TEST_CASE("broadcasts with changing roots and other calls between them are correct in any order of waiting",
          "[comm][threads]") {
  watchdog dog("tells", 60s);
  for (int ranks : {2, 3, 5, 8})
    launch(comm::threads{.ranks = ranks, .deadline = 20s}, [&](auto& world) {
      auto twin = world.duplicate();
      std::vector<std::int32_t> v(5000);
      unsigned seed = 1;
      for (int i = 0; i < 3000; ++i) {
        seed = seed * 1664525U + 1013904223U;
        int const root = static_cast<int>(seed >> 16) % ranks;
        std::int64_t const n = std::int64_t{1} << ((seed >> 8) % 13);
        if ((seed >> 20) % 16 == 0) {
          std::int32_t one = 1;
          world.all_reduce(tensor_view<std::int32_t>(&one, shape{1}));
          if (one != ranks) throw std::runtime_error("sum");
        }
        for (std::int64_t k = 0; k < n; ++k)
          v[static_cast<std::size_t>(k)] = world.rank() == root ? static_cast<int>(i + k) : -1;
        auto& w = (seed >> 24) % 3 == 0 ? twin : world;
        w.broadcast(tensor_view<std::int32_t>(v.data(), shape{n}), root);
        for (std::int64_t k = 0; k < n; ++k)
          if (v[static_cast<std::size_t>(k)] != static_cast<int>(i + k)) throw std::runtime_error("value");
      }
      std::vector<std::vector<std::int32_t>> many(200, std::vector<std::int32_t>(1000, world.rank()));
      std::vector<decltype(world.barrier_async())> requests;
      for (std::size_t i = 0; i < many.size(); ++i) {
        requests.push_back(world.broadcast_async(tensor_view{many[i]}, static_cast<int>(i) % 2));
        if (i % 7 == 0) requests.push_back(world.barrier_async());
      }
      for (std::size_t i = requests.size(); i-- > 0;) requests[i].wait();
      for (std::size_t i = 0; i < many.size(); ++i)
        if (many[i][999] != static_cast<int>(i) % 2) throw std::runtime_error("async");
    });
}
TEST_CASE("a former root that only takes part in others' broadcasts keeps no rank waiting", "[comm][threads]") {
  watchdog dog("joins", 60s);
  int const ranks = GENERATE(2, 3);
  CAPTURE(ranks);
  launch(comm::threads{.ranks = ranks, .deadline = 10s}, [&](auto& world) {
    std::vector<std::byte> small(8), large(4096);
    world.broadcast(tensor_view{small}, 0);
    if (world.rank() == 2) std::this_thread::sleep_for(50ms);  // joins the first one late
    for (int i = 0; i < 200; ++i) world.broadcast(tensor_view{large}, 1);
    for (int i = 0; i < 200; ++i) {
      world.broadcast(tensor_view{small}, 0);
      world.broadcast(tensor_view{large}, 1);
    }
    for (int i = 0; i < 200; ++i) world.broadcast(tensor_view{small}, 1);
    world.barrier();
  });
}
TEST_CASE("a rank that is late for a call before a broadcast is named at the deadline", "[comm][threads]") {
  std::vector<std::string> told(3);
  launch(comm::threads{.ranks = 3, .deadline = 200ms}, [&](auto& world) {
    std::vector<float> v(100);
    try {
      world.barrier();
      if (world.rank() == 2) std::this_thread::sleep_for(600ms);
      auto pending = world.barrier_async();
      world.broadcast(tensor_view{v}, 0);
      pending.wait();
    } catch (comm_error const& p) {
      told[static_cast<std::size_t>(world.rank())] = p.what();
    }
  });
  for (auto& each : told) {
    CAPTURE(each);
    CHECK(each.find("rank 2") != std::string::npos);
  }
}
#if defined(__SANITIZE_THREAD__)
constexpr int many = 64;  // ten times as slow
#else
constexpr int many = 256;
#endif
TEST_CASE("the largest number of threads can sum, split, exchange and all_to_all", "[comm][threads]") {
  watchdog dog("many", 120s);
  launch(comm::threads{.ranks = many}, [&](auto& world) {
    std::int32_t one = 1;
    world.all_reduce(tensor_view<std::int32_t>(&one, shape{1}));
    if (one != many) throw std::runtime_error("sum");
    auto part = world.split(world.rank() % 16, world.rank());
    one = 1;
    part.all_reduce(tensor_view<std::int32_t>(&one, shape{1}));
    if (one != many / 16) throw std::runtime_error("sum of part");
    std::vector<std::int32_t> out(300, world.rank()), in(300);
    std::vector<decltype(world.barrier_async())> requests;
    int const next = (world.rank() + 1) % many, last = (world.rank() + many - 1) % many;
    for (std::size_t i = 0; i < 300; ++i) {
      std::vector const a{send_to(next, tensor_view<std::int32_t>(&out[i], shape{1}))};
      requests.push_back(world.exchange_async(std::span(a)));
      std::vector const b{receive_from(last, tensor_view<std::int32_t>(&in[i], shape{1}))};
      requests.push_back(world.exchange_async(std::span(b)));
    }
    for (auto& each : requests) each.wait();
    if (in[299] != last) throw std::runtime_error("message");
    std::vector<std::int32_t> sent(many, 3), to(3 * many), from(3 * many, world.rank());
    std::vector<std::int64_t> counts(many, 3);
    world.all_to_all(tensor_view<std::int32_t>(from.data(), shape{3 * many}), counts,
                     tensor_view<std::int32_t>(to.data(), shape{3 * many}), counts);
    for (int r = 0; r < many; ++r)
      if (to[static_cast<std::size_t>(r * 3 + 1)] != r) throw std::runtime_error("all_to_all");
  });
}
TEST_CASE("a launch inside a launch has ranks and calls of its own", "[comm][threads]") {
  launch(comm::threads{.ranks = 3}, [&](auto& outer) {
    int sum = launch(comm::threads{.ranks = 2}, [&](auto& inner) {
      std::int32_t v = inner.rank() + outer.rank();
      inner.all_reduce(tensor_view<std::int32_t>(&v, shape{1}));
      return v;
    });
    std::int32_t total = sum;
    outer.all_reduce(tensor_view<std::int32_t>(&total, shape{1}));
    if (total != 3 + 6) throw std::runtime_error("nested " + std::to_string(total));
  });
}
