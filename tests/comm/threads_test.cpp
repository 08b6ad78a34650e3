#include "trireme/comm/threads.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/core/cores.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

bool contains(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

/// Runs `body` on ranks that catch their errors: the error of each rank, in rank order.
template <class Body>
std::vector<std::string> errors_of_ranks(comm::threads const& description, Body body) {
  std::vector<std::string> told(static_cast<std::size_t>(description.ranks));
  launch(description, [&](comm::threads_world& world) {
    try {
      body(world);
    } catch (comm_error const& problem) {
      told[static_cast<std::size_t>(world.rank())] = problem.what();
    }
  });
  return told;
}

}  // namespace

TEST_CASE("a description is compared, and printed as its source", "[comm][threads]") {
  CHECK(comm::threads{.ranks = 3} == comm::threads{.ranks = 3, .deadline = 60s});
  CHECK(comm::threads{.ranks = 3} != comm::threads{.ranks = 2});
  CHECK(to_string(comm::threads{.ranks = 4}) == "comm::threads{.ranks = 4, .deadline = 60s}");
  CHECK(to_string(comm::threads{.deadline = 1500ms, .pin = true}) ==
        "comm::threads{.ranks = 2, .deadline = 1500ms, .pin = true}");
  CHECK(to_string(comm::self{}) == "comm::self{}");
}

TEST_CASE("launch refuses a description without ranks or time", "[comm][threads]") {
  CHECK_THROWS_AS(launch(comm::threads{.ranks = 0}, [](auto&) {}), config_error);
  CHECK_THROWS_AS(launch(comm::threads{.ranks = 257}, [](auto&) {}), config_error);
  CHECK_THROWS_AS(launch(comm::threads{.deadline = 0s}, [](auto&) {}), config_error);
}

TEST_CASE("ranks and their threads may use every core of the process, also in a launch inside a rank",
          "[comm][threads]") {
  watchdog dog("cores of ranks");
  auto const all = trireme::detail::allowed_cores();
  auto const of_a_thread = [] {
    std::vector<int> cores;
    std::thread([&] { cores = trireme::detail::allowed_cores(); }).join();
    return cores;
  };
  for (int const ranks : {1, 2, static_cast<int>(all.size())}) {
    std::atomic<int> whole{0};
    launch(comm::threads{.ranks = ranks}, [&](auto&) {
      launch(comm::threads{.ranks = 2}, [&](auto&) { whole += of_a_thread() == all && of_a_thread() == all ? 1 : 0; });
    });
    CHECK(whole == 2 * ranks);
  }
}

TEST_CASE("ranks are pinned to one core each if that is requested and they use all cores of the process",
          "[comm][threads]") {
  watchdog dog("pinned ranks");
  auto const all = trireme::detail::allowed_cores();
  auto const cores_of = [](int ranks) {
    std::vector<std::vector<int>> cores(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks, .pin = true},
           [&](auto& world) { cores[static_cast<std::size_t>(world.rank())] = trireme::detail::allowed_cores(); });
    return cores;
  };
  auto const count = static_cast<int>(all.size());
  if (count > 1) CHECK(cores_of(count - 1)[0] == all);  // another program may want the same cores
  CHECK(cores_of(count + 1)[0] == all);
  if (usable_cores() < count) return;  // a control group grants less than these cores' time
  auto const filled = cores_of(count);
  for (std::size_t rank = 0; rank < all.size(); ++rank) CHECK(filled[rank] == std::vector<int>{all[rank]});
}

TEST_CASE("launch returns what rank 0's body returns", "[comm][threads]") {
  CHECK(launch(comm::threads{.ranks = 3}, [](auto& world) { return 10 + world.rank(); }) == 10);
  CHECK(launch(comm::self{}, [](auto& world) { return std::string(world.name); }) == "self");
}

TEST_CASE("an exception on one rank ends the waits of the others and comes out of launch", "[comm][threads]") {
  watchdog dog("an exception on rank 1");
  std::mutex guard;
  std::vector<std::string> told;
  auto const began = std::chrono::steady_clock::now();
  try {
    launch(comm::threads{.ranks = 3}, [&](auto& world) {
      if (world.rank() == 1) {
        std::this_thread::sleep_for(30ms);  // so that the others sleep by then
        throw std::domain_error("loss is nan");
      }
      try {
        if (world.rank() == 0) world.barrier();
        std::vector<float> values(1000);
        auto pending = world.all_reduce_async(tensor_view{values});
        pending.wait();
      } catch (comm_error const& problem) {
        std::lock_guard const lock(guard);
        told.emplace_back(problem.what());
        throw;
      }
    });
    FAIL("launch must throw");
  } catch (std::domain_error const& original) {
    CHECK(std::string(original.what()) == "loss is nan");
  }
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  REQUIRE(told.size() == 2);
  for (auto const& each : told) {
    CHECK(contains(each, "trireme::comm::threads"));
    CHECK(contains(each, "rank 1"));
    CHECK(contains(each, "loss is nan"));
  }
}

TEST_CASE("an exception that is not a std::exception comes out too", "[comm][threads]") {
  CHECK_THROWS_AS(launch(comm::threads{.ranks = 2},
                         [](auto& world) {
                           if (world.rank() == 0) throw 42;
                           world.barrier();
                         }),
                  int);
}

TEST_CASE(
    "an exception that leaves a request pending, which others never answer, ends their waits long before the deadline",
    "[comm][threads]") {
  auto const began = std::chrono::steady_clock::now();
  std::string told;
  CHECK_THROWS_WITH(
      trireme::launch(comm::threads{.ranks = 2, .deadline = 20s},
                      [&](auto& world) {
                        std::vector<float> values(30000);
                        if (world.rank() == 1) {
                          std::vector const raw_transfers{trireme::receive_from(0, trireme::tensor_view{values})};
                          auto const coming = world.exchange_async(std::span(raw_transfers));
                          throw std::domain_error("loss is nan");
                        }
                        try {
                          world.barrier();
                        } catch (trireme::comm_error const& problem) {
                          told = problem.what();
                        }
                      }),
      "loss is nan");
  CHECK(told.find("rank 1 ended with an error: an exception left a call pending") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < 15s);
}

TEST_CASE("a rank that leaves with requests in flight leaves no rank's memory partly exchanged", "[comm][threads]") {
  watchdog dog("an exception over requests in flight");
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(launch(comm::threads{.ranks = 4},
                           [&](auto& world) {
                             std::vector<float> a(5000, 1.0F);
                             std::vector<float> b(5000, 1.0F);
                             auto first = world.all_reduce_async(tensor_view{a});
                             if (world.rank() == round % 4) throw std::domain_error("leaving");
                             auto second = world.all_reduce_async(tensor_view{b});
                             second.wait();
                           }),
                    std::domain_error);
  }
}

TEST_CASE("a late rank becomes an error on every rank that names it and the operation", "[comm][threads]") {
  watchdog dog("a late rank");
  auto const operation = GENERATE(0, 1, 2, 3);
  auto const began = std::chrono::steady_clock::now();
  auto const told = errors_of_ranks({.ranks = 4, .deadline = 100ms}, [&](auto& world) {
    std::vector<float> values(4 * 1000);
    world.barrier();
    if (world.rank() == 2) std::this_thread::sleep_for(400ms);
    if (operation == 0) world.barrier();
    if (operation == 1) world.all_reduce(tensor_view{values});
    if (operation == 2) world.all_gather_async(tensor_view{values}).wait();
    if (operation == 3) {
      auto pending = world.reduce_scatter_async(tensor_view{values});
      while (!pending.test()) std::this_thread::yield();
    }
  });
  CHECK(std::chrono::steady_clock::now() - began < 1400ms);
  std::array const names{"barrier", "all_reduce", "all_gather", "reduce_scatter"};
  for (auto const& each : told) {
    CAPTURE(each);
    CHECK(contains(each, "rank 2"));
    CHECK(contains(each, "number 2"));
    CHECK(contains(each, names[static_cast<std::size_t>(operation)]));
    CHECK(contains(each, "100ms"));
  }
}

TEST_CASE("a rank that has returned is noticed before the deadline", "[comm][threads]") {
  watchdog dog("a rank that returned", 30s);
  auto const told = errors_of_ranks({.ranks = 3, .deadline = 60s}, [](auto& world) {
    if (world.rank() != 1) world.barrier();
  });
  CHECK(contains(told[0], "the body of rank 1 has returned"));
  CHECK(told[1].empty());
  CHECK(contains(told[2], "rank 1"));
}

TEST_CASE("different calls are an error on every rank that names both", "[comm][threads]") {
  watchdog dog("different calls");
  int const kind = GENERATE(range(0, 6));
  auto const told = errors_of_ranks({.ranks = 3, .deadline = 5s}, [&](auto& world) {
    std::vector<float> values(3000);
    std::vector<std::int32_t> numbers(3000);
    bool const odd = world.rank() == 2;
    if (kind == 0) odd ? world.all_gather(tensor_view{values}) : world.all_reduce(tensor_view{values});
    if (kind == 1) odd ? world.all_reduce(tensor_view{numbers}) : world.all_reduce(tensor_view{values});
    if (kind == 2) world.all_reduce(tensor_view{values}.flat(0, odd ? 2999 : 3000));
    if (kind == 3)
      odd ? world.all_reduce(tensor_view{values}, reduction::max{}) : world.all_reduce(tensor_view{values});
    if (kind == 4) {
      world.broadcast(tensor_view{values}, odd ? 1 : 0);
      world.barrier();  // a root does not wait: it detects the error at its next call
    }
    if (kind == 5) odd ? world.barrier() : world.all_reduce(tensor_view{values}.flat(0, 1));
  });
  for (auto const& each : told) {
    CAPTURE(each);
    CHECK(contains(each, "call number 1 differs"));
    CHECK(contains(each, "rank 2 called"));
    CHECK((contains(each, "rank 0 called") || contains(each, "rank 1 called")));
  }
}

TEST_CASE("after an error a communicator and its splits throw in every call", "[comm][threads]") {
  watchdog dog("after an error");
  auto const told = errors_of_ranks({.ranks = 2, .deadline = 5s}, [](auto& world) {
    auto part = world.split(0, 0);
    std::vector<float> values(10);
    try {
      world.broadcast(tensor_view{values}, world.rank());
      world.barrier();
    } catch (comm_error const&) {
      part.barrier();
    }
  });
  for (auto const& each : told) CHECK(contains(each, "differs"));
}

TEST_CASE("peers returns the memory of all ranks, readable and writable", "[comm][threads]") {
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    std::vector<std::int32_t> mine(static_cast<std::size_t>(world.rank()) + 1, world.rank());
    auto const all = world.peers(tensor_view{mine});
    if (all.size() != 3) throw std::runtime_error("three views");
    for (int rank = 0; rank < 3; ++rank) {
      auto const& view = all[static_cast<std::size_t>(rank)];
      if (view.size() != rank + 1 || view[0] != rank) throw std::runtime_error("another view");
    }
    world.barrier();
    all[static_cast<std::size_t>((world.rank() + 1) % 3)][0] = 7;
    world.barrier();
    if (mine[0] != 7) throw std::runtime_error("not written");
  });
}

TEST_CASE("collectives in phantom memory synchronise and touch nothing", "[comm][threads][phantom]") {
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    tensor<float, phantom> values(shape{3000});
    tensor<bfloat16, phantom> others(shape{3});
    tensor<float, phantom> more(shape{3000});
    world.all_reduce(values.view());
    world.reduce_scatter(values.view());
    world.all_gather(others.view());
    world.all_to_all(values.view(), more.view());
    world.broadcast_async(others.view(), 1).wait();
    if (world.peers(values.view()).size() != 3) throw std::runtime_error("three views");
  });
}

TEST_CASE("every run of a sum gives the same bits on every rank", "[comm][threads]") {
  watchdog dog("20 runs");
  std::vector<float> reference;
  for (int run = 0; run < 20; ++run) {
    launch(comm::threads{.ranks = 4, .pin = run % 2 == 0}, [&](auto& world) {
      std::vector<float> values(10007);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 1.0F / static_cast<float>(i + 1 + static_cast<std::size_t>(world.rank()) * 7919);
      if (world.rank() == run % 4) std::this_thread::sleep_for(1ms);
      world.all_reduce(tensor_view{values});
      if (world.rank() == 0 && reference.empty()) reference = values;
      world.barrier();
      if (values != reference) throw std::runtime_error("other bits");
    });
  }
}
