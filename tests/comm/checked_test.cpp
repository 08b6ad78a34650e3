#include "trireme/comm/checked.hpp"

#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "mismatches.hpp"
#include "trireme/comm/launch.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

/// The errors of all ranks when rank 1 called another collective.
template <class Description>
std::vector<std::string> told_of(Description const& description, int ranks, std::string_view which,
                                 std::chrono::milliseconds absence) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  launch(description,
         [&](auto& world) { all[static_cast<std::size_t>(world.rank())] = mismatches::told(world, which, absence); });
  return all;
}

bool says(std::string const& told, std::string const& pattern) { return std::regex_search(told, std::regex(pattern)); }

}  // namespace

static_assert(communicator<comm::checked_world<comm::threads_world>>);
static_assert(communicator<comm::checked_world<comm::self_world>>);
static_assert(has_ragged_all_to_all<comm::checked_world<comm::threads_world>, float>);
static_assert(has_peers<comm::checked_world<comm::threads_world>, float>);

TEST_CASE("checked is printed as its source, and needs patience", "[comm][checked]") {
  CHECK(to_string(comm::checked{}) == "comm::checked{.patience = 1s}");
  CHECK(comm::checked{} != comm::checked{.patience = 2s});
  CHECK_THROWS_AS(launch(comm::decorate(comm::self{}, comm::checked{.patience = 0s}), [](auto&) {}), config_error);
}

TEST_CASE("checked: different calls give an error on every rank, which names both ranks and both calls",
          "[comm][checked]") {
  watchdog dog("mismatches on checked threads");
  auto const which = GENERATE(from_range(mismatches::all));
  auto const ranks = GENERATE(2, 3, 4);
  dog.now(text("mismatch of ", which.name, " on ", ranks, " ranks"));
  auto const began = std::chrono::steady_clock::now();
  auto const told =
      told_of(comm::decorate(comm::threads{.ranks = ranks}, comm::checked{.patience = 100ms}), ranks, which.name, 1s);
  CHECK(std::chrono::steady_clock::now() - began < 10s);
  std::string const number = " as call number [0-9]+ on ";
  std::string const where = "(the whole world|group [0-9]+ \\([0-9] ranks from rank 0\\))";
  auto pattern =
      text("(rank 0 called ", which.usual, number, where, ", rank 1 called ", which.odd, number, where,
           ")|(rank 1 called ", which.odd, number, where, ", rank [23] called ", which.usual, number, where, ")");
  if (which.name == "missing call")
    pattern =
        text("rank [023] called ", which.usual, " as call number 2 on the whole world, but rank 1 did not call it ",
             "within 100ms; the last call of rank 1 was ", which.odd, " as call number 1 on the whole world");
  for (auto const& each : told) {
    CAPTURE(which.name, each, pattern);
    CHECK(says(each, "trireme::comm::checked: "));
    CHECK(says(each, pattern));
    if (which.name == "group") CHECK(says(each, "group [0-9]+"));
  }
}

TEST_CASE("threads: different calls give an error on every rank within the deadline", "[comm][threads]") {
  watchdog dog("mismatches on threads");
  auto const which = GENERATE(from_range(mismatches::all));
  auto const ranks = GENERATE(2, 3, 4);
  dog.now(text("mismatch of ", which.name, " on ", ranks, " ranks"));
  auto const told = told_of(comm::threads{.ranks = ranks, .deadline = 200ms}, ranks, which.name, 1s);
  bool const waits = which.name == "missing call" || which.name == "group";
  auto const pattern =
      waits ? text(which.usual, " number [0-9]+ (waited 200ms for ranks? [0-9, ]+|cannot finish)")
            : text("call number 2 differs between ranks: (rank 0 called ", which.usual, ", rank 1 called ", which.odd,
                   ")|(rank 1 called ", which.odd, ", rank [23] called ", which.usual, ")");
  for (auto const& each : told) {
    CAPTURE(which.name, each, pattern);
    CHECK(says(each, "trireme::comm::threads: "));
    CHECK(says(each, pattern));
  }
}

TEST_CASE("checked: requests are checked when they start, and errors name ragged parts that differ",
          "[comm][checked]") {
  watchdog dog("checked requests");
  auto const description = comm::decorate(comm::threads{.ranks = 2}, comm::checked{});
  std::vector<std::string> told(2);
  launch(description, [&](auto& world) {
    auto const r = world.rank();
    std::vector<std::int64_t> const sent = {1, 2};
    std::vector<std::int64_t> const received = {r + 1, r + 1};
    std::vector<float> from(3);
    std::vector<float> to(static_cast<std::size_t>(2 * r + 2));
    world.all_to_all(tensor_view{from}, sent, tensor_view{to}, received);  // as it should be
    try {
      std::vector<std::int64_t> const wrong = {1, r == 0 ? 2 : 1};
      from.resize(static_cast<std::size_t>(1 + wrong[1]));
      to.resize(4);
      auto pending = world.all_to_all_async(tensor_view{from}, wrong, tensor_view{to}, std::vector<std::int64_t>{2, 2});
      pending.wait();
    } catch (comm_error const& problem) {
      told[static_cast<std::size_t>(r)] = problem.what();
    }
  });
  for (auto const& each : told) {
    CAPTURE(each);
    CHECK(says(each, "all_to_all\\(F32, ragged\\) as call number 2.*sends [0-9] elements and expects [0-9]"));
  }
}

TEST_CASE("checked: the last call that a missing rank made on any of its groups is named", "[comm][checked]") {
  watchdog dog("the last call");
  std::vector<std::string> told(2);
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::checked{.patience = 50ms}), [&](auto& world) {
    try {
      auto part = world.split(0, -world.rank());
      std::vector<int> values(5);
      part.all_gather(tensor_view(values.data(), shape{4}));
      if (world.rank() == 1) return;
      world.barrier();
    } catch (comm_error const& problem) {
      told[static_cast<std::size_t>(world.rank())] = problem.what();
    }
  });
  CAPTURE(told[0]);
  CHECK(says(told[0], "rank 0 called barrier as call number 2 on the whole world, but "));
  CHECK(says(told[0],
             "the last call of rank 1 was all_gather\\(I32, 4 elements\\) as call number 1 on group [0-9]+ \\(2 "
             "ranks from rank 1\\)"));
}

TEST_CASE("checked: correct programs go on as before, with requests in flight, exchanges, splits and duplicates",
          "[comm][checked]") {
  watchdog dog("a correct program");
  launch(comm::decorate(comm::threads{.ranks = 4}, comm::checked{.patience = 20s}), [](auto& world) {
    auto const r = world.rank();
    auto row = world.split(r / 2, r);
    auto column = world.split(r % 2, r);
    auto twin = world.duplicate();
    std::vector<float> a(5000, 1.0F), b(5000, 1.0F), c(5000, 1.0F);
    std::vector<int> out{r}, in(1);
    for (int round = 0; round < 20; ++round) {
      auto first = world.all_reduce_async(tensor_view{a}, reduction::max{});
      auto second = row.all_reduce_async(tensor_view{b}, reduction::mean{});
      auto sent = world.exchange_async(std::vector{send_to((r + 1) % 4, tensor_view{out})});
      // The twin's calls have an order of their own.
      if (r % 2 == 0) twin.barrier();
      column.barrier();
      if (r % 2 == 1) twin.barrier();
      world.exchange({receive_from((r + 3) % 4, tensor_view{in})});
      sent.wait();
      auto third = column.all_gather_async(tensor_view{c});
      third.wait();
      first.wait();
      if (in[0] != (r + 3) % 4 || row.peers(tensor_view{a}).size() != 2) throw std::runtime_error("wrong");
    }
    if (a[4999] != 1.0F || b[0] != 1.0F) throw std::runtime_error("wrong sums");
  });
}
