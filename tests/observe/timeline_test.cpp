#include "trireme/observe/timeline.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"

namespace {

using trireme::observe::timeline;

std::atomic<std::size_t> allocations{0};

}  // namespace

// All of one family, and not inline: sanitizers and GCC check that what allocates matches what frees.
__attribute__((noinline)) void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  if (void* block = operator new(bytes, std::nothrow)) return block;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* block) noexcept { std::free(block); }
__attribute__((noinline)) void operator delete(void* block, std::size_t) noexcept { std::free(block); }

TEST_CASE("a timeline records spans with names, lanes and times that nest", "[observe][timeline]") {
  timeline line(3, 16, {"compute", "exchange"});
  {
    timeline::span const outer(line, "step", "train");
    timeline::span const inner(line, "all_reduce", "comm", 1);
  }
  auto const events = line.events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].name == "all_reduce");
  CHECK(events[0].track == 1);
  CHECK(events[1].category == "train");
  CHECK(events[1].begin_ns <= events[0].begin_ns);
  CHECK(events[0].end_ns <= events[1].end_ns);
  CHECK(line.process().name == "rank 3");
  CHECK(line.process().events.size() == 2);
  line.clear();
  CHECK(line.events().empty());
}

TEST_CASE("a full timeline counts what it leaves out", "[observe][timeline]") {
  timeline line(0, 2);
  for (int i = 0; i < 5; ++i) timeline::span const each(line, "x");
  CHECK(line.events().size() == 2);
  CHECK(line.dropped() == 3);
  timeline off;
  { timeline::span const each(off, "x"); }
  CHECK(off.events().empty());
  CHECK(off.dropped() == 0);
}

TEST_CASE("recording on a timeline allocates nothing", "[observe][timeline]") {
  timeline line(0, 100);
  auto const name = line.intern(std::string("layer ") + std::to_string(7));
  CHECK(line.intern("layer 7").data() == name.data());
  auto const before = allocations.load();
  for (int i = 0; i < 200; ++i) timeline::span const each(line, name, "compute", 1);
  CHECK(allocations.load() == before);
  CHECK(line.events().front().name == "layer 7");
}

TEST_CASE("several threads record on one timeline", "[observe][timeline]") {
  timeline line(0, 4000);
  std::vector<std::thread> threads;
  for (std::uint32_t track = 0; track < 4; ++track) {
    threads.emplace_back([&, track] {
      for (int i = 0; i < 1000; ++i) timeline::span const each(line, "x", "y", track);
    });
  }
  for (auto& each : threads) each.join();
  CHECK(line.dropped() == 0);
  std::vector<int> count(4);
  for (auto const& event : line.events()) ++count[event.track];
  CHECK(count == std::vector<int>(4, 1000));
}

TEST_CASE("timelines of ranks are merged in rank order", "[observe][timeline]") {
  timeline const one(1, 4);
  timeline const zero(0, 4);
  std::vector<timeline const*> const both{&one, &zero};
  auto const merged = trireme::observe::merge(both);
  CHECK(merged[0].rank == 0);
  CHECK(merged[1].name == "rank 1");
}

TEST_CASE("a timeline is packed into bytes and unpacked", "[observe][timeline]") {
  timeline line(2, 8, {"a", "b"});
  line.record({"x", "c", 1, 2, 1});
  line.record({"y", "x", 3, ~std::uint64_t{0}, 0});
  auto const bytes = trireme::observe::pack(line);
  auto const back = trireme::observe::unpack(bytes);
  auto const moved = trireme::observe::unpack(bytes);
  for (auto const& process : {back.process(), moved.process()}) {
    CHECK(process.rank == 2);
    CHECK(process.tracks == std::vector<std::string>{"a", "b"});
    REQUIRE(process.events.size() == 2);
    CHECK(process.events[1].name == "y");
    CHECK(process.events[1].category == "x");
    CHECK(process.events[1].end_ns == ~std::uint64_t{0});
    CHECK(process.events[0].track == 1);
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE_THROWS_AS(trireme::observe::unpack(std::span(bytes).first(length)), trireme::config_error);
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int byte = 0; byte < 256; byte += 5) {
      auto changed = bytes;
      changed[at] = static_cast<std::byte>(byte);
      try {
        static_cast<void>(trireme::observe::unpack(changed));
      } catch (trireme::config_error const&) {
      }
    }
  }
}
