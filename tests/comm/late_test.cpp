// test-sanitize: address
#include "trireme/comm/late.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "node_ranks.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

/// The late calls reported during its life.
class listener {
 public:
  listener() {
    comm::on_late([this](comm::late_call const& call) {
      std::lock_guard const lock(mutex_);
      told_.push_back(call);
    });
  }
  ~listener() { comm::on_late({}); }
  [[nodiscard]] std::vector<comm::late_call> told() {
    std::lock_guard const lock(mutex_);
    return told_;
  }

 private:
  std::mutex mutex_;
  std::vector<comm::late_call> told_;
};

template <class World>
void sum_after(World& world, std::chrono::milliseconds pause, bool asynchronous) {
  std::vector<float> values(1024);
  world.barrier();
  if (world.rank() == 1) std::this_thread::sleep_for(pause);
  if (asynchronous) {
    auto request = world.all_reduce_async(tensor_view{values}, reduction::sum{});
    request.wait();
  } else {
    world.all_reduce(tensor_view{values}, reduction::sum{});
  }
}

}  // namespace

TEST_CASE("a wait of half the deadline is reported once by each rank that waits", "[comm]") {
  watchdog const guard("a late rank");
  for (bool const asynchronous : {false, true}) {
    listener heard;
    launch(comm::threads{.ranks = 3, .deadline = 2s}, [&](auto& world) { sum_after(world, 1400ms, asynchronous); });
    auto const told = heard.told();
    REQUIRE(told.size() == 2);
    CHECK(told[0].rank + told[1].rank == 2);
    for (auto const& each : told) {
      CHECK(each.what.starts_with("all_reduce(F32, 1024 elements, sum) number "));
      CHECK(each.bytes == 4096);
      CHECK(each.missing == "rank 1");
      CHECK(each.waited >= 1s);
      CHECK(to_string(each).ends_with(" of 2s for rank 1"));
    }
  }
}

TEST_CASE("ranks that are processes report a late rank, too", "[comm]") {
  watchdog const guard("a late process");
  for (bool const asynchronous : {false, true}) {
    node_family family(3, in_world(
                              [asynchronous](node_world& world) {
                                listener heard;
                                sum_after(world, 1400ms, asynchronous);
                                std::string said;
                                for (auto const& each : heard.told())
                                  said += text(each.rank, " for ", each.missing, ", ", each.bytes, ";");
                                return said;
                              },
                              2s));
    CHECK(family.said() == std::vector<std::string>{"0 for rank 1, 4096;", "", "2 for rank 1, 4096;"});
  }
}

TEST_CASE("a rank that comes in time is not reported, and an exception in a listener ends nothing", "[comm]") {
  watchdog const guard("ranks in time");
  {
    listener heard;
    launch(comm::threads{.ranks = 2, .deadline = 4s}, [&](auto& world) { sum_after(world, 200ms, false); });
    CHECK(heard.told().empty());
  }
  std::atomic<int> calls{0};
  comm::on_late([&](comm::late_call const&) {
    ++calls;
    throw std::runtime_error("a full disk");
  });
  CHECK_NOTHROW(
      launch(comm::threads{.ranks = 2, .deadline = 1s}, [&](auto& world) { sum_after(world, 700ms, false); }));
  comm::on_late({});
  CHECK(calls == 1);
}
