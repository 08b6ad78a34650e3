// test-sanitize: none
#include "trireme/comm/detail/rounds.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/detail/roll_call.hpp"
#include "trireme/comm/geometry.hpp"

namespace comm = trireme::comm;
using comm::detail::round_blocks;
using comm::detail::rounds;

namespace {

/// Messages between ranks of one process, delivered at once and counted.
struct network {
  std::map<std::pair<std::pair<int, int>, int>, std::deque<std::vector<std::byte>>> under_way;
  std::vector<int> sent;
  std::vector<std::size_t> bytes;
};
struct differs {
  int a, b;
};
struct wire {
  network* net = nullptr;
  int rank = 0;
  comm::call what;
  std::vector<std::byte> last{};

  void send(int peer, int channel, std::byte const* at, std::size_t count) {
    net->under_way[{{rank, peer}, channel}].emplace_back(at, at + count);
    ++net->sent[static_cast<std::size_t>(rank)];
    net->bytes[static_cast<std::size_t>(rank)] += count;
  }
  [[nodiscard]] bool sent() const { return true; }
  [[nodiscard]] bool take(int peer, int channel, std::span<std::byte const>& message) {
    auto& queue = net->under_way[{{peer, rank}, channel}];
    if (queue.empty()) return false;
    last = std::move(queue.front());
    queue.pop_front();
    message = last;
    return true;
  }
  void compare(int peer, comm::call const& theirs) const {
    if (theirs != what) throw differs{std::min(peer, rank), std::max(peer, rank)};
  }
  [[noreturn]] void refuse(int) const { throw std::runtime_error("another length"); }
};

std::byte value(int from, int to, std::size_t i) {
  return static_cast<std::byte>(from * 31 + to * 7 + static_cast<int>(i % 251));
}

/// Ranks 0 to size - 1 in one process, each with its rounds.
struct fleet {
  network net;
  std::vector<wire> wires;
  std::vector<rounds<wire>> all;

  fleet(int size, comm::call const& what) : all(static_cast<std::size_t>(size)), begun(static_cast<std::size_t>(size)) {
    net.sent.assign(static_cast<std::size_t>(size), 0);
    net.bytes.assign(static_cast<std::size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) wires.push_back({&net, rank, what});
  }
  [[nodiscard]] int size() const { return static_cast<int>(wires.size()); }
  void begin(int rank, round_blocks const& blocks) {
    auto& it = all[static_cast<std::size_t>(rank)];
    begun[static_cast<std::size_t>(rank)] = true;
    it.prepare() = blocks;
    it.place(wires[static_cast<std::size_t>(rank)].what, rank, size());
    if (blocks.how == round_blocks::round_kind::gathered)
      for (std::size_t i = 0; i < blocks.of(rank); ++i) it.own()[i] = value(rank, 0, i);
    if (blocks.how == round_blocks::round_kind::distributed)
      for (int peer = 0; peer < size(); ++peer)
        for (std::size_t i = 0; i < blocks.of(peer); ++i) it.block_for(peer)[i] = value(rank, peer, i);
    it.begin(wires[static_cast<std::size_t>(rank)], 0);
  }
  /// Advances until no rank makes progress; returns how many are done. Ranks that have not begun do nothing.
  int run() {
    std::vector<bool> over(wires.size());
    int done = 0;
    for (bool moved = true; moved;) {
      auto const progress = [&] { return std::accumulate(net.sent.begin(), net.sent.end(), done) + told.size(); };
      auto const before = progress();
      for (std::size_t rank = wires.size(); rank-- > 0;) {
        if (over[rank] || !begun[rank]) continue;
        try {
          over[rank] = all[rank].advance(wires[rank]);
          if (over[rank]) ++done;
        } catch (differs const& found) {
          over[rank] = true;
          told.push_back(found);
        }
      }
      moved = progress() != before;
    }
    return done;
  }
  std::vector<bool> begun;
  std::vector<differs> told;
};

int most(std::vector<int> const& of) { return *std::ranges::max_element(of); }

}  // namespace

TEST_CASE("rounds gather the block of every rank, even, ragged and of one rank alone, in log p messages", "[comm]") {
  for (int size = 1; size <= 64; ++size)
    for (int kind = 0; kind < 4; ++kind) {
      fleet ranks(size, {.kind = comm::collective::all_gather});
      round_blocks blocks{.how = round_blocks::round_kind::gathered, .each = 536};
      if (kind == 1) blocks.only = size / 2;
      if (kind == 2)
        for (int rank = 0; rank < size; ++rank) blocks.sizes.push_back(static_cast<std::size_t>(rank * 5 % 7));
      if (kind == 3) blocks = {};
      for (int rank = 0; rank < size; ++rank) ranks.begin(rank, blocks);
      REQUIRE(ranks.run() == size);
      CHECK(most(ranks.net.sent) == comm::rounds_among(size));
      bool right = true;
      for (int rank = 0; rank < size; ++rank) {
        int seen = 0;
        ranks.all[static_cast<std::size_t>(rank)].for_each_block([&](int from, std::byte const* block) {
          ++seen;
          for (std::size_t i = 0; i < blocks.of(from); ++i) right = right && block[i] == value(from, 0, i);
        });
        right = right && seen == (kind == 1 ? 1 : size);
      }
      INFO(size << " ranks, kind " << kind);
      CHECK(right);
    }
}

TEST_CASE("rounds send a block from every rank to every rank, even and ragged, in log p messages", "[comm]") {
  for (int size = 1; size <= 64; ++size)
    for (bool const even : {true, false}) {
      fleet ranks(size, {.kind = comm::collective::all_to_all});
      round_blocks blocks{.how = round_blocks::round_kind::distributed, .each = 12};
      for (int rank = 0; !even && rank < size; ++rank)
        blocks.sizes.push_back(static_cast<std::size_t>(rank < 9 ? 64 : rank % 3));
      for (int rank = 0; rank < size; ++rank) ranks.begin(rank, blocks);
      REQUIRE(ranks.run() == size);
      CHECK(most(ranks.net.sent) == comm::rounds_among(size));
      bool right = true;
      for (int rank = 0; rank < size; ++rank)
        ranks.all[static_cast<std::size_t>(rank)].for_each_block([&](int from, std::byte const* block) {
          for (std::size_t i = 0; i < blocks.of(rank); ++i) right = right && block[i] == value(from, rank, i);
        });
      INFO(size << " ranks" << (even ? "" : ", ragged"));
      CHECK(right);
    }
}

TEST_CASE("no rank finishes the rounds if calls differ, and the ranks that differ are named", "[comm]") {
  for (int size = 2; size <= 40; ++size)
    for (int odd = 0; odd < size; odd += size < 9 ? 1 : 7) {
      fleet ranks(size, {.kind = comm::collective::all_reduce, .count = 60});
      ranks.wires[static_cast<std::size_t>(odd)].what.count = 48;
      round_blocks usual{.how = round_blocks::round_kind::gathered, .each = 240};
      round_blocks other{.how = round_blocks::round_kind::gathered, .each = 192};
      for (int rank = 0; rank < size; ++rank) ranks.begin(rank, rank == odd ? other : usual);
      INFO(size << " ranks, rank " << odd << " calls something else");
      CHECK(ranks.run() == 0);
      CHECK(!ranks.told.empty());
      for (auto const& each : ranks.told) CHECK((each.a == odd || each.b == odd));
    }
}

TEST_CASE("no rank finishes the rounds while a rank has not called", "[comm]") {
  for (int const size : {2, 3, 5, 8, 13, 64}) {
    fleet ranks(size, {});
    for (int rank = 0; rank < size; ++rank)
      if (rank != size / 2) ranks.begin(rank, {});
    CHECK(ranks.run() == 0);
    int waits = 0;
    for (int rank = 0; rank < size; ++rank)
      if (rank != size / 2 && ranks.all[static_cast<std::size_t>(rank)].waits_for() >= 0) ++waits;
    CHECK(waits == size - 1);
  }
}

TEST_CASE("rounds of 1024 ranks take ten messages", "[comm]") {
  fleet ranks(1024, {});
  for (int rank = 0; rank < 1024; ++rank) ranks.begin(rank, {});
  REQUIRE(ranks.run() == 1024);
  CHECK(most(ranks.net.sent) == 10);
  CHECK(*std::ranges::max_element(ranks.net.bytes) == 10 * sizeof(comm::call));
}

TEST_CASE("a roll call finds all missing ranks, whichever rank begins it", "[comm]") {
  using comm::detail::roll_call;
  for (int const size : {2, 3, 4, 7, 8, 33, 64, 200}) {
    std::vector<int> missing{size / 3};
    if (size > 7) missing.insert(missing.end(), {size / 3 + 1, size - 1});
    auto const is_missing = [&](int rank) { return std::ranges::find(missing, rank) != missing.end(); };
    std::vector<roll_call> rolls(static_cast<std::size_t>(size));
    std::deque<std::pair<int, std::vector<std::uint64_t>>> under_way;
    auto const tell = [&](int rank) {
      auto const bits = rolls[static_cast<std::size_t>(rank)].bits();
      roll_call::for_each_neighbour(rank, size, [&](int peer) {
        if (!is_missing(peer)) under_way.push_back({peer, {bits.begin(), bits.end()}});
      });
    };
    for (int rank = 0; rank < size; ++rank) {
      if (is_missing(rank)) continue;
      auto& roll = rolls[static_cast<std::size_t>(rank)];
      roll.begin(size);
      roll.add_here(rank);
      for (int peer = 0; peer < size; ++peer) roll.add_wanted(peer);
      tell(rank);
    }
    long messages = 0;
    for (; !under_way.empty(); under_way.pop_front(), ++messages)
      if (rolls[static_cast<std::size_t>(under_way.front().first)].merge(under_way.front().second))
        tell(under_way.front().first);
    INFO(size << " ranks, " << messages << " messages");
    for (int rank = 0; rank < size; ++rank) {
      std::vector<int> named;
      rolls[static_cast<std::size_t>(rank)].append_missing(named);
      if (!is_missing(rank)) CHECK(named == missing);
    }
  }
}

TEST_CASE("bytes of another rank are read as a call only if they are one", "[comm]") {
  comm::call const sent{comm::collective::all_reduce, trireme::dtype::f32, comm::reduction_kind::sum, false, -1, 60};
  comm::call read;
  REQUIRE(comm::read_call(read, &sent));
  CHECK(read == sent);
  // Whatever the first bytes are: a call that can be printed, or none.
  for (std::size_t at = 0; at < 4; ++at)
    for (int value = 0; value < 256; ++value) {
      unsigned char bytes[sizeof sent];
      std::memcpy(bytes, &sent, sizeof sent);
      bytes[at] = static_cast<unsigned char>(value);
      comm::call damaged;
      if (comm::read_call(damaged, bytes)) CHECK(to_string(damaged).find('?') == std::string::npos);
    }
  for (std::int64_t const count : {std::int64_t{-1}, std::int64_t{-1} << 62}) {
    auto wrong = sent;
    wrong.count = count;
    CHECK(!comm::read_call(read, &wrong));
  }
  auto wrong = sent;
  wrong.root = -2;
  CHECK(!comm::read_call(read, &wrong));
}
