// test-alone: mpi_network.hpp replaces operator new
// test-ranks: 1
// test-timeout: 120
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "mpi_network.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/mpi/notices.hpp"
#include "trireme/core/hash.hpp"

namespace comm = trireme::comm;
using comm::collective;
using comm::command;
using trireme::host;
namespace reduction = trireme::reduction;

namespace {

int rounds_among(int size) {
  int count = 0;
  while ((1 << count) < size) ++count;
  return count;
}

float value(int rank, std::int64_t i) {
  auto const bits = trireme::mix(static_cast<std::uint64_t>(i) * 1000 + static_cast<std::uint64_t>(rank));
  return (static_cast<float>(bits >> 40) / (1 << 24) - 0.5F) * static_cast<float>(1 << (bits % 20));
}
std::vector<std::vector<float>> values_of(int ranks, std::int64_t count) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    for (std::int64_t i = 0; i < count; ++i) all[static_cast<std::size_t>(rank)].push_back(value(rank, i));
  return all;
}

template <class T, class Op>
command reduces(collective kind, std::vector<T>& values, int root = -1) {
  return {.what = {kind, trireme::dtype_of<T>, comm::reduction_of<Op>, false, root,
                   static_cast<std::int64_t>(values.size())},
          .from = values.data(),
          .to = values.data(),
          .element_bytes = sizeof(T),
          .elements = &comm::detail::reducing_kernels<T, host, Op>};
}
template <class T>
command moves(collective kind, std::vector<T>& from, std::vector<T>& to, std::int64_t count, int root = -1) {
  return {.what = {kind, trireme::dtype_of<T>, comm::reduction_kind::none, false, root, count},
          .from = from.data(),
          .to = to.data(),
          .element_bytes = sizeof(T),
          .elements = &comm::detail::moving_kernels<host>};
}

/// What a rank sends and keeps at most.
struct most {
  long sends = 0;
  long receives = 0;
  std::size_t bytes = 0;
  std::size_t allocated = 0;
};
template <class Make>
most counted(int ranks, Make make) {
  auto const done = network::carry_out(ranks, make);
  REQUIRE(done == ranks);
  most out;
  for (auto const& each : network::now.of) {
    out.sends = std::max(out.sends, each.sends);
    out.receives = std::max(out.receives, each.most_receives);
    out.bytes = std::max(out.bytes, each.bytes);
    out.allocated = std::max(out.allocated, each.allocated);
  }
  return out;
}

struct small_call {
  char const* name;
  most (*count)(int ranks);
};
most count_barrier(int ranks) {
  return counted(ranks, [](int) { return command{}; });
}
template <class T, std::int64_t Count>
most count_all_reduce(int ranks) {
  std::vector<std::vector<T>> values(static_cast<std::size_t>(ranks), std::vector<T>(Count));
  return counted(ranks, [&](int rank) {
    return reduces<T, reduction::sum>(collective::all_reduce, values[static_cast<std::size_t>(rank)]);
  });
}
template <std::int64_t Each>
most count_all_gather(int ranks) {
  std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks),
                                         std::vector<float>(static_cast<std::size_t>(Each * ranks)));
  return counted(ranks, [&](int rank) {
    auto& mine = values[static_cast<std::size_t>(rank)];
    return moves(collective::all_gather, mine, mine, Each * ranks);
  });
}
most count_broadcast(int ranks) {
  std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks), std::vector<float>(1000));
  return counted(ranks, [&](int rank) {
    auto& mine = values[static_cast<std::size_t>(rank)];
    return moves(collective::broadcast, mine, mine, 1000, ranks / 2);
  });
}
constexpr small_call small_calls[] = {
    {"barrier", &count_barrier},
    {"vote (67 x 8 B)", &count_all_reduce<std::int64_t, 67>},
    {"all_reduce, 400 B", &count_all_reduce<float, 100>},
    {"all_reduce, 16 KB", &count_all_reduce<float, 4000>},
    {"all_gather, 400 B a rank", &count_all_gather<100>},
    {"broadcast, 4 KB", &count_broadcast},
};
most count_large(int ranks) { return count_all_reduce<float, 1 << 20>(ranks); }

}  // namespace

TEST_CASE("small calls take at most 2 log2(ranks) messages, and no buffer for each peer", "[comm][mpi]") {
  for (int ranks = 2; ranks <= 64; ++ranks)
    for (auto const& each : small_calls) {
      auto const found = each.count(ranks);
      INFO(each.name << " among " << ranks << " ranks: " << found.sends << " sends, " << found.receives
                     << " receives at a time, " << found.allocated << " bytes");
      CHECK(found.sends <= 2 * rounds_among(ranks));
      CHECK(found.receives <= 2);
      // What is gathered is 64 KiB at most, or what is asked for; the rest are lists.
      auto const lists = static_cast<std::size_t>(ranks) * 64 + 4096;
      CHECK(found.allocated <= (std::size_t{2} << 16) + lists);
      if (each.count == &count_barrier) CHECK(found.allocated <= 1024);
    }
}

TEST_CASE("a large all_reduce sends 2 n (p - 1) / p bytes a rank", "[comm][mpi]") {
  for (int const ranks : {2, 3, 4, 7, 8, 16, 31, 64}) {
    auto const found = count_large(ranks);
    auto const n = 4.0 * (1 << 20);
    INFO(ranks << " ranks sent " << found.bytes << " bytes each");
    CHECK(static_cast<double>(found.bytes) <= 2.1 * n * (ranks - 1) / ranks);
  }
}

TEST_CASE("sums by messages are in rank order bit for bit, from one element to large, on 2 to 64 ranks",
          "[comm][mpi]") {
  for (int ranks = 2; ranks <= 64; ranks += ranks < 10 ? 1 : 9)
    for (std::int64_t const each : {0, 1, 5, 37, 300, 900}) {
      auto const count = each * ranks;
      auto const given = values_of(ranks, count);
      std::vector<float> sum(given[0]);
      for (int rank = 1; rank < ranks; ++rank)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += given[static_cast<std::size_t>(rank)][i];
      auto const bytes = [](std::int64_t of) { return static_cast<std::size_t>(of) * sizeof(float); };
      auto const part = [&](int rank) { return static_cast<std::size_t>(rank * each); };
      INFO(ranks << " ranks, " << count << " elements");
      for (auto const kind : {collective::all_reduce, collective::reduce, collective::reduce_scatter}) {
        auto values = given;
        int const root = kind == collective::reduce ? ranks / 3 : -1;
        REQUIRE(network::carry_out(ranks, [&](int rank) {
                  return reduces<float, reduction::sum>(kind, values[static_cast<std::size_t>(rank)], root);
                }) == ranks);
        bool right = true;
        for (int rank = 0; rank < ranks; ++rank) {
          auto const* const mine = values[static_cast<std::size_t>(rank)].data();
          if (kind == collective::all_reduce || rank == root)
            right = right && std::memcmp(mine, sum.data(), bytes(count)) == 0;
          else if (kind == collective::reduce)
            right = right && std::memcmp(mine, given[static_cast<std::size_t>(rank)].data(), bytes(count)) == 0;
          else
            right = right && std::memcmp(mine + part(rank), sum.data() + part(rank), bytes(each)) == 0;
        }
        INFO(comm::name_of(kind));
        CHECK(right);
      }
    }
}

namespace {

/// The bytes that a machine sends to others, the most of any.
std::size_t sent_between_machines(int ranks, int places) {
  std::vector<std::size_t> sent(static_cast<std::size_t>(ranks / places));
  for (auto const& each : network::now.requests)
    if (!each.receives && each.from / places != each.to / places)
      sent[static_cast<std::size_t>(each.from / places)] += each.bytes;
  return *std::max_element(sent.begin(), sent.end());
}

/// Reduces on machines of `places` ranks each, and flat: as many bytes as are allowed, in n, and the same bits.
template <class T, class Op>
void carries_as_flat(collective kind, int machines, int places, double allowed, bool fits, bool ragged = false) {
  int const ranks = machines * places;
  auto const least =
      static_cast<std::int64_t>(comm::detail::mpi_reduction::least_bytes / sizeof(T)) * 2 * machines * places;
  // Scattered slices are equal; the slices of all_reduce are not, and its last piece is short.
  auto count = fits ? least + least / 8 + 37 : least - 37 * ranks;
  if (kind == collective::reduce_scatter) count = (count + ranks - 1) / ranks * ranks;
  std::vector<std::int64_t> counts(ragged ? static_cast<std::size_t>(ranks) : 0);
  for (std::size_t rank = 0; rank < counts.size(); ++rank)
    counts[rank] = count / ranks * static_cast<std::int64_t>(rank % 3);
  if (ragged) counts.back() += count - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<T> some;
  for (int i = 0; i < 9973; ++i) some.push_back(static_cast<T>(value(i, i)));
  std::vector<std::vector<T>> results[2];
  std::size_t between[2] = {};
  for (int const carried : {0, 1}) {
    auto& values = results[carried];
    for (int rank = 0; rank < ranks; ++rank) {
      auto& mine = values.emplace_back();
      while (static_cast<std::int64_t>(mine.size()) < count) {
        auto const part = std::min<std::int64_t>(count - static_cast<std::int64_t>(mine.size()), 9973 - 100 * rank);
        mine.insert(mine.end(), some.begin() + 100 * rank, some.begin() + 100 * rank + part);
      }
    }
    REQUIRE(network::carry_out(
                ranks,
                [&](int rank) {
                  auto it = reduces<T, Op>(kind, values[static_cast<std::size_t>(rank)]);
                  it.counts = counts;
                  it.what.shape = ragged ? comm::detail::fingerprint(counts) : 0;
                  return it;
                },
                nullptr, carried == 1 ? places : 0) == ranks);
    between[carried] = sent_between_machines(ranks, places);
  }
  auto const n = static_cast<double>(count) * sizeof(T);
  comm::call const what{.kind = kind, .count = count};
  comm::geometry const cuts{what, sizeof(T), ranks, counts};
  bool same = true;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const* const flat = results[0][static_cast<std::size_t>(rank)].data();
    auto const* const mine = results[1][static_cast<std::size_t>(rank)].data();
    auto const part = kind == collective::all_reduce ? trireme::interval{0, count} : cuts.owned(rank);
    same = same &&
           std::memcmp(flat + part.first, mine + part.first, static_cast<std::size_t>(part.count) * sizeof(T)) == 0;
  }
  INFO(comm::name_of(kind) << " of " << count << " elements of " << sizeof(T) << " bytes on " << machines << " x "
                           << places << " ranks: a machine sends " << static_cast<double>(between[1]) / n
                           << " n to others, flat " << static_cast<double>(between[0]) / n << " n");
  CHECK(same);
  auto const calls = 64.0 * ranks * rounds_among(ranks);
  if (fits)
    CHECK(static_cast<double>(between[1]) <= allowed * n + calls);
  else
    CHECK(between[1] == between[0]);
}

}  // namespace

TEST_CASE("partial sums go from machine to machine: the bits of flat sums, at most 2 n bytes a machine",
          "[comm][mpi]") {
  for (int const machines : {2, 3, 4, 8})
    for (int const places : {1, 2, 3, 4}) {
      bool const fits = places > 1;
      carries_as_flat<float, reduction::sum>(collective::all_reduce, machines, places, machines == 2 ? 1 : 2, fits);
      if (machines * places > 12) continue;  // what follows differs in elements only
      carries_as_flat<float, reduction::sum>(collective::reduce_scatter, machines, places, 1, fits);
      carries_as_flat<float, reduction::sum>(collective::reduce_scatter, machines, places, 1, fits, true);
      carries_as_flat<double, reduction::mean>(collective::all_reduce, machines, places, 2, fits);
      carries_as_flat<std::int32_t, reduction::sum>(collective::all_reduce, machines, places, 2, fits);
      carries_as_flat<trireme::bfloat16, reduction::max>(collective::reduce_scatter, machines, places, 1, fits);
      // Partial sums of these are float.
      carries_as_flat<trireme::bfloat16, reduction::mean>(collective::all_reduce, machines, places, 3, fits);
      carries_as_flat<trireme::float16, reduction::sum>(collective::reduce_scatter, machines, places, 2, fits);
    }
  carries_as_flat<float, reduction::sum>(collective::all_reduce, 2, 2, 2, false);  // too small
}

TEST_CASE("partial sums go from machine to machine only if all have equally many consecutive ranks", "[comm][mpi]") {
  auto const places = [](std::vector<int> machines) {
    comm::detail::mpi_group group;
    group.size = static_cast<int>(machines.size());
    group.stand_on(std::move(machines));
    return group.local_size;
  };
  CHECK(places({}) == 0);
  CHECK(places({0, 0, 2, 2}) == 2);
  CHECK(places({5, 5, 5, 1, 1, 1}) == 3);
  CHECK(places({0, 0, 0, 0}) == 4);
  CHECK(places({0, 1, 2}) == 1);
  CHECK(places({0, 0, 2}) == 0);
  CHECK(places({0, 1, 0, 1}) == 0);
  CHECK(places({0, 0, 2, 2, 2, 0}) == 0);
  CHECK(places({0, 0, 1, 1, 0, 0}) == 0);
}

TEST_CASE("collectives by messages move all elements, from one to many, on 2 to 64 ranks", "[comm][mpi]") {
  for (int ranks = 2; ranks <= 64; ranks += ranks < 10 ? 1 : 9)
    for (std::int64_t const each : {0, 1, 37, 900, 5000}) {
      auto const whole = each * ranks;
      auto const given = values_of(ranks, whole);
      int const root = ranks / 3;
      auto const first_of = [&](int rank) { return static_cast<std::size_t>(rank * each); };
      for (auto const kind : {collective::all_gather, collective::gather, collective::scatter, collective::broadcast,
                              collective::all_to_all}) {
        auto from = given;
        std::vector<std::vector<float>> to(from.size(), std::vector<float>(static_cast<std::size_t>(whole), -1.0F));
        bool const in_place = kind == collective::all_gather || kind == collective::broadcast;
        bool const of_parts = kind == collective::gather || kind == collective::scatter;
        bool const rooted = of_parts || kind == collective::broadcast;
        REQUIRE(network::carry_out(ranks, [&](int rank) {
                  auto const me = static_cast<std::size_t>(rank);
                  return moves(kind, from[me], in_place ? from[me] : to[me], of_parts ? each : whole,
                               rooted ? root : -1);
                }) == ranks);
        bool right = true;
        for (int rank = 0; rank < ranks; ++rank) {
          auto const& got = (in_place ? from : to)[static_cast<std::size_t>(rank)];
          for (int peer = 0; peer < ranks; ++peer)
            for (std::size_t i = 0; i < static_cast<std::size_t>(each); ++i) {
              auto const at = first_of(peer) + i;
              auto const theirs = given[static_cast<std::size_t>(peer)].data();
              auto const roots = given[static_cast<std::size_t>(root)].data();
              float wanted = -1.0F;
              if (kind == collective::all_gather) wanted = theirs[at];
              if (kind == collective::gather && rank == root) wanted = theirs[i];
              if (kind == collective::broadcast) wanted = roots[at];
              if (kind == collective::all_to_all) wanted = theirs[first_of(rank) + i];
              if (kind == collective::scatter && peer == 0) wanted = roots[first_of(rank) + i];
              right = right && got[at] == wanted;
            }
        }
        INFO(comm::name_of(kind) << " among " << ranks << " ranks, " << each << " elements each");
        CHECK(right);
      }
    }
}

TEST_CASE("ragged parts arrive by messages, and both sides name counts that do not match", "[comm][mpi]") {
  for (int ranks = 2; ranks <= 40; ranks += 7)
    for (std::int64_t const unit : {1, 400}) {
      auto const p = static_cast<std::size_t>(ranks);
      auto const count_of = [&](std::size_t sender, std::size_t receiver) {
        return static_cast<std::int64_t>((sender * 3 + receiver) % 4) * unit;
      };
      // all_gather: rank r gives count_of(r, 0)
      std::vector<std::int64_t> counts;
      for (std::size_t rank = 0; rank < p; ++rank) counts.push_back(count_of(rank, 0));
      auto const all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      auto const given = values_of(ranks, all);
      auto gathered = given;
      REQUIRE(network::carry_out(ranks, [&](int rank) {
                auto& mine = gathered[static_cast<std::size_t>(rank)];
                auto it = moves(collective::all_gather, mine, mine, all);
                it.what.shape = comm::detail::fingerprint(counts);
                it.counts = counts;
                return it;
              }) == ranks);
      bool right = true;
      for (auto const& mine : gathered)
        for (std::size_t sender = 0, at = 0; sender < p; ++sender)
          for (std::int64_t i = 0; i < counts[sender]; ++i, ++at) right = right && mine[at] == given[sender][at];
      INFO(ranks << " ranks, unit " << unit);
      CHECK(right);

      // all_to_all; with `odd`, rank 1 expects one element more of rank 0 than that sends
      for (bool const odd : {false, true}) {
        std::vector<std::vector<comm::raw_transfer>> raw_transfers(p);
        std::vector<std::vector<float>> out(p, std::vector<float>(p * 1200)), in(p, std::vector<float>(p * 1201));
        for (std::size_t rank = 0; rank < p; ++rank) {
          for (std::size_t peer = 0; peer < p; ++peer) {
            for (std::int64_t i = 0; i < count_of(rank, peer); ++i)
              out[rank][peer * 1200 + static_cast<std::size_t>(i)] = value(static_cast<int>(rank * p + peer), i);
            raw_transfers[rank].push_back({static_cast<int>(peer), true, trireme::dtype::f32, count_of(rank, peer),
                                           reinterpret_cast<std::byte*>(&out[rank][peer * 1200])});
          }
          for (std::size_t peer = 0; peer < p; ++peer)
            raw_transfers[rank].push_back({static_cast<int>(peer), false, trireme::dtype::f32,
                                           count_of(peer, rank) + (odd && rank == 1 && peer == 0 ? 1 : 0),
                                           reinterpret_cast<std::byte*>(&in[rank][peer * 1201])});
        }
        std::vector<std::string> told;
        auto const done = network::carry_out(
            ranks,
            [&](int rank) {
              auto const me = static_cast<std::size_t>(rank);
              auto it = moves(collective::all_to_all, out[me], in[me], 0);
              it.what.shape = 1;
              it.raw_transfers = raw_transfers[me];
              return it;
            },
            &told);
        if (odd) {
          CHECK(done == 0);
          REQUIRE(told.size() == 1);  // the others are told by it
          auto const sends = count_of(0, 1);
          CHECK(
              std::regex_search(told[0], std::regex("rank 0 sends " + std::to_string(sends) + " .*of F32 to rank 1.* " +
                                                    std::to_string(sends + 1) + " .*of F32")));
          continue;
        }
        CHECK(done == ranks);
        bool arrived = true;
        for (std::size_t rank = 0; rank < p; ++rank)
          for (std::size_t peer = 0; peer < p; ++peer)
            for (std::int64_t i = 0; i < count_of(peer, rank); ++i)
              arrived = arrived && in[rank][peer * 1201 + static_cast<std::size_t>(i)] ==
                                       value(static_cast<int>(peer * p + rank), i);
        CHECK(arrived);
      }
    }
}

TEST_CASE("a failure costs a rank 2 log2 p notices however many ranks detect it, and passes around silent ranks",
          "[comm][mpi]") {
  using comm::detail::mpi_group;
  using comm::detail::mpi_notices;
  enum : int { nobody = 0, one = 1, half = 2, all = 3 };
  for (int ranks = 2; ranks <= 64; ++ranks)
    for (int const finders : {one, half, all})
      for (int const silent : {nobody, one, half}) {
        if (finders == all && silent != nobody) continue;
        auto const p = static_cast<std::size_t>(ranks);
        network::now.reset(ranks);
        std::vector<mpi_group> groups(p);
        std::vector<mpi_notices> notices(p);
        // Of two neighbours one is silent in the hardest case: every second rank neither hears nor passes on.
        auto const is_silent = [&](int rank) {
          return silent == one ? rank == 1 % ranks : silent == half && rank % 2 == 1;
        };
        std::vector<bool> knows(p);
        std::string const sentence = "rank 1 is late";
        for (int rank = 0; rank < ranks; ++rank) {
          auto& group = groups[static_cast<std::size_t>(rank)];
          group.rank = rank;
          group.size = ranks;
          for (int each = 0; each < ranks; ++each) group.members.push_back(each);
        }
        auto const tell = [&](int rank, std::string const& what, int from) {
          auto const me = static_cast<std::size_t>(rank);
          mpi_group* const group = &groups[me];
          network::now.rank = rank;
          notices[me].send_failure({&group, 1}, what, from);
          knows[me] = true;
        };
        for (int rank = 0; rank < ranks; ++rank)
          if (!is_silent(rank) && (finders == all || (finders == half && rank % 4 == 0) || rank == 0))
            tell(rank, sentence, -1);
        int steps = 0;
        for (bool news = true; news; ++steps) {
          news = false;
          std::vector<std::pair<int, int>> heard;  // in this step, so that steps are counted
          for (int rank = 0; rank < ranks; ++rank) {
            if (is_silent(rank) || knows[static_cast<std::size_t>(rank)]) continue;
            network::now.rank = rank;
            if (auto const it =
                    notices[static_cast<std::size_t>(rank)].receive_failure(groups[static_cast<std::size_t>(rank)])) {
              CHECK(it->sentence == sentence);
              heard.emplace_back(rank, it->from);
            }
          }
          for (auto const& [rank, from] : heard) tell(rank, sentence, from);
          news = !heard.empty();
        }
        INFO(ranks << " ranks, " << finders << " find it, " << silent << " are silent, " << steps << " steps");
        bool everyone = true;
        long most = 0;
        long total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          everyone = everyone && (is_silent(rank) || knows[static_cast<std::size_t>(rank)]);
          most = std::max(most, network::now.of[static_cast<std::size_t>(rank)].sends);
          total += network::now.of[static_cast<std::size_t>(rank)].sends;
        }
        CHECK(everyone);
        CHECK(most <= 2 * rounds_among(ranks));
        CHECK(total <= 2L * rounds_among(ranks) * ranks);
        CHECK(steps <= rounds_among(ranks) + 1);  // one more to see that nothing is new
        // Then ranks end with it, and tell the higher ones around them. (The one that prints it tells everybody.)
        long before = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          network::now.rank = rank;
          before = network::now.mine().sends;
          mpi_notices::send_end(groups[static_cast<std::size_t>(rank)]);
          CHECK(network::now.mine().sends - before <= 2 * rounds_among(ranks));
        }
        network::now.rank = ranks - 1;
        notices.back().receive_reports(groups.back());
        CHECK(notices.back().lowest_failed() == 0);  // rank 0 is beside the last one
      }
}

TEST_CASE("the numbers in the table of docs/communicators.md are right", "[.table]") {
  for (auto const& each : small_calls)
    for (int const ranks : {2, 4, 8, 16, 32, 64}) {
      auto const found = each.count(ranks);
      std::printf("%-26s p = %3d: %4ld sends, %4ld receives at a time, %8zu bytes sent, %8zu bytes kept\n", each.name,
                  ranks, found.sends, found.receives, found.bytes, found.allocated);
    }
  for (auto const kind : {collective::all_reduce, collective::reduce_scatter})
    for (int const places : {2, 4})
      for (int const machines : {2, 4, 8}) {
        int const ranks = machines * places;
        auto const count = std::int64_t{1} << 20;
        std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks), std::vector<float>(count));
        double sent[2] = {};
        for (int const carried : {0, 1}) {
          static_cast<void>(network::carry_out(
              ranks,
              [&](int rank) { return reduces<float, reduction::sum>(kind, values[static_cast<std::size_t>(rank)]); },
              nullptr, carried == 1 ? places : 0));
          sent[carried] = static_cast<double>(sent_between_machines(ranks, places)) / (4 << 20);
        }
        std::printf("%-15s 4 MiB, %d machines of %d ranks: one sends %.2f n to others, flat %.2f n\n",
                    std::string(comm::name_of(kind)).c_str(), machines, places, sent[1], sent[0]);
      }
  for (int const ranks : {2, 4, 8, 16, 32, 64}) {
    auto const found = count_large(ranks);
    std::printf(
        "all_reduce, 4 MiB          p = %3d: %4ld sends, %4ld receives at a time, %8zu bytes sent = %.3f n, %8zu "
        "bytes kept\n",
        ranks, found.sends, found.receives, found.bytes, static_cast<double>(found.bytes) / (4 << 20), found.allocated);
  }
}
