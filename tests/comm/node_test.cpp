// test-timeout: 300
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "node_ranks.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

template <class T>
T value_of(int rank, std::int64_t i) {
  auto const raw = static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(rank * 1'000'003 + i)) % 2001) - 1000;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(raw);
  else
    return static_cast<T>(static_cast<float>(raw) * 0.37F);
}

template <class T>
void set_values(tensor_view<T> view, int rank) {
  for (std::int64_t i = 0; i < view.size(); ++i) view.address()[i] = value_of<T>(rank, i);
}

/// The reduction of element i over `size` ranks, one rank after the other.
template <class T, class Op>
T reduced(int size, std::int64_t i) {
  using wide = comm::detail::combine_t<Op, T>;
  auto total = static_cast<wide>(value_of<T>(0, i));
  for (int rank = 1; rank < size; ++rank)
    total = comm::detail::combined(Op{}, total, static_cast<wide>(value_of<T>(rank, i)));
  if constexpr (std::is_same_v<Op, reduction::mean>) total /= static_cast<wide>(size);
  return static_cast<T>(total);
}

/// The first difference between views and their expected contents.
struct findings {
  std::string text;
  template <class T, class Expected>
  void expect(char const* what, tensor_view<T> view, std::int64_t first, std::int64_t count, Expected&& expected) {
    for (std::int64_t i = first; text.empty() && i < first + count; ++i) {
      T const want = expected(i);
      if (std::memcmp(&want, view.address() + i, sizeof(T)) != 0)
        text = trireme::text(what, " of ", view.size(), " elements of type ", static_cast<int>(dtype_of<T>),
                             " is wrong at ", i);
    }
  }
};

enum class memory { own, heap, mixed };

template <class T>
tensor<T> make(node_world& world, memory where, std::int64_t count, int salt = 0) {
  bool const heap = where == memory::heap || (where == memory::mixed && (world.rank() + salt) % 2 == 0);
  return heap ? world.allocate<T>(shape{count}) : tensor<T>(shape{count});
}

template <class T, class Op>
void try_reductions(node_world& world, memory where, std::int64_t each, findings& found) {
  auto const size = world.size();
  auto const count = each * size;
  auto values = make<T>(world, where, each);
  set_values(values.view(), world.rank());
  world.all_reduce(values.view(), Op{});
  found.expect("all_reduce", values.view(), 0, each, [&](auto i) { return reduced<T, Op>(size, i); });
  for (int root = 0; root < size; ++root) {
    set_values(values.view(), world.rank());
    world.reduce(values.view(), root, Op{});
    found.expect("reduce", values.view(), 0, each,
                 [&](auto i) { return world.rank() == root ? reduced<T, Op>(size, i) : value_of<T>(world.rank(), i); });
  }
  auto slices = make<T>(world, where, count);
  set_values(slices.view(), world.rank());
  world.reduce_scatter(slices.view(), Op{});
  found.expect("reduce_scatter", slices.view(), world.rank() * each, each,
               [&](auto i) { return reduced<T, Op>(size, i); });
}

template <class T>
void try_moves(node_world& world, memory where, std::int64_t each, findings& found) {
  auto const size = world.size();
  auto const rank = world.rank();
  auto const count = each * size;
  auto part = make<T>(world, where, each);
  auto whole = make<T>(world, where, count, 1);
  auto other = make<T>(world, where, count);
  auto const source = [&](auto i) { return value_of<T>(static_cast<int>(i / std::max<std::int64_t>(each, 1)), i); };
  auto const own_slice = [&] {
    set_values(whole.view(), -1);
    for (std::int64_t i = rank * each; i < (rank + 1) * each; ++i) whole.view().address()[i] = value_of<T>(rank, i);
  };
  own_slice();
  world.all_gather(whole.view());
  found.expect("all_gather", whole.view(), 0, count, source);
  std::vector<std::int64_t> counts;
  for (int i = 0; i < size; ++i) counts.push_back(i == 0 ? count - each * (size - 1) / 2 * (size > 1) : 0);
  if (size > 1) counts[1] = count - counts[0];
  std::int64_t first = 0;
  for (int i = 0; i < rank; ++i) first += counts[static_cast<std::size_t>(i)];
  set_values(whole.view(), -1);
  for (std::int64_t i = first; i < first + counts[static_cast<std::size_t>(rank)]; ++i)
    whole.view().address()[i] = value_of<T>(7, i);
  world.all_gather(whole.view(), counts);
  found.expect("ragged all_gather", whole.view(), 0, count, [&](auto i) { return value_of<T>(7, i); });

  set_values(whole.view(), rank);
  set_values(other.view(), -1);
  world.all_to_all(whole.view(), other.view());
  found.expect("all_to_all", other.view(), 0, count,
               [&](auto i) { return value_of<T>(static_cast<int>(i / each), rank * each + i % each); });
  // Ragged: rank r gives r + s elements to s, in a buffer that is large enough for it where `each` is not tiny.
  std::vector<std::int64_t> sent, received;
  std::int64_t sum = 0;
  for (int i = 0; i < size; ++i) {
    auto const some = each < 2 * size ? 0 : each - rank - i;
    sent.push_back(some);
    received.push_back(some);
    sum += some;
  }
  set_values(other.view(), -1);
  world.all_to_all(tensor_view<T>(whole.view().address(), shape{sum}), sent,
                   tensor_view<T>(other.view().address(), shape{sum}), received);
  std::int64_t at = 0;
  for (int from = 0; from < size; ++from) {
    std::int64_t skip = 0;
    for (int i = 0; i < rank; ++i) skip += each < 2 * size ? 0 : each - from - i;
    auto const begin = at;
    found.expect("ragged all_to_all", other.view(), begin, received[static_cast<std::size_t>(from)],
                 [&](auto i) { return value_of<T>(from, skip + i - begin); });
    at += received[static_cast<std::size_t>(from)];
  }
  for (int root = 0; root < size; ++root) {
    set_values(part.view(), rank);
    world.broadcast(part.view(), root);
    found.expect("broadcast", part.view(), 0, each, [&](auto i) { return value_of<T>(root, i); });
    set_values(part.view(), rank);
    set_values(whole.view(), -1);
    world.gather(part.view(), whole.view(), root);
    if (rank == root)
      found.expect("gather", whole.view(), 0, count,
                   [&](auto i) { return value_of<T>(static_cast<int>(i / each), i % each); });
    set_values(whole.view(), rank);
    world.scatter(whole.view(), part.view(), root);
    found.expect("scatter", part.view(), 0, each, [&](auto i) { return value_of<T>(root, rank * each + i); });
  }
  auto const after = (rank + 1) % size;
  auto const before = (rank + size - 1) % size;
  set_values(part.view(), rank);
  auto got = make<T>(world, where, each);
  std::uint8_t byte = static_cast<std::uint8_t>(rank);
  std::uint8_t byte_got = 99;
  tensor_view<std::uint8_t> const small(&byte, shape{1});
  tensor_view<std::uint8_t> const small_got(&byte_got, shape{1});
  tensor_view<T> const nothing(part.view().address(), shape{0});
  world.exchange({receive_from(before, got.view()), send_to(after, part.view()), send_to(after, small),
                  receive_from(before, small_got), send_to(after, nothing), receive_from(before, nothing)});
  found.expect("exchange", got.view(), 0, each, [&](auto i) { return value_of<T>(before, i); });
  if (byte_got != before && found.text.empty()) found.text = "exchange of a byte";
}

void expect_silence(std::vector<std::string> const& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(said[rank] == "");
  }
}

std::size_t open_files() {
  std::size_t count = 0;
  auto* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}
std::set<std::string> shared_files() {
  std::set<std::string> names;
  if (auto* const folder = ::opendir("/dev/shm")) {
    while (auto const* const each = ::readdir(folder)) {
      std::string name = static_cast<char const*>(each->d_name);
      if (name.find("trireme") != name.npos) names.insert(std::move(name));  // others are of programs beside this test
    }
    ::closedir(folder);
  }
  return names;
}

}  // namespace

TEST_CASE("node: every collective is correct bit for bit, by value, directly and staged", "[comm][node]") {
  for (int size = 1; size <= 4; ++size) {
    node_family family(size, in_world([](node_world& world) {
                         findings found;
                         for (auto const where : {memory::own, memory::heap, memory::mixed}) {
                           for (std::int64_t const each : {0, 1, 7, 129, 1000, 20'001}) {
                             try_reductions<float, reduction::sum>(world, where, each, found);
                             try_reductions<float, reduction::mean>(world, where, each, found);
                             try_reductions<bfloat16, reduction::sum>(world, where, each, found);
                             try_reductions<std::int32_t, reduction::max>(world, where, each, found);
                             try_moves<float>(world, where, each, found);
                             try_moves<std::int8_t>(world, where, each, found);
                           }
                           if (where == memory::heap) continue;
                           try_reductions<float, reduction::sum>(world, where, 120'007, found);
                           try_moves<float>(world, where, 70'007, found);
                         }
                         return found.text;
                       }));
    watchdog dog(text("collectives of ", size, " ranks"), 60s);
    expect_silence(family.said());
  }
}

TEST_CASE("node: more requests of several groups than the ring of postings holds proceed together", "[comm][node]") {
  for (int const size : {1, 2, 3}) {
    node_family family(size, in_world([](node_world& world) {
                         auto twin = world.duplicate();
                         auto const count_of = [](std::size_t i) { return static_cast<std::int64_t>(i * i * 5); };
                         findings found;
                         std::vector<tensor<float>> values;
                         std::vector<comm::collective_request> requests;
                         for (std::size_t i = 0; i < 200; ++i) {
                           values.push_back(make<float>(world, i % 3 == 0 ? memory::heap : memory::own, count_of(i)));
                           set_values(values.back().view(), world.rank());
                         }
                         for (std::size_t i = 0; i < 200; ++i)
                           requests.push_back((i % 2 == 0 ? world : twin).all_reduce_async(values[i].view()));
                         std::vector<float> now(5000);
                         for (int i = 0; i < 5; ++i) {
                           set_values(tensor_view{now}, world.rank());
                           world.all_reduce(tensor_view{now});
                           found.expect("blocking all_reduce", tensor_view{now}, 0, 5000,
                                        [&](auto k) { return reduced<float, reduction::sum>(world.size(), k); });
                         }
                         for (std::size_t i = 200; i-- > 0;) {
                           if (i % 2 == 0)
                             while (!requests[i].test()) std::this_thread::yield();
                           requests[i].wait();
                           found.expect("all_reduce_async", values[i].view(), 0, count_of(i),
                                        [&](auto k) { return reduced<float, reduction::sum>(world.size(), k); });
                         }
                         auto const traffic = world.traffic();
                         if (traffic.collectives != 105) found.text = "the traffic is not counted";
                         return found.text;
                       }));
    watchdog dog(text("requests of ", size, " ranks"), 60s);
    expect_silence(family.said());
  }
}

TEST_CASE("node: a request proceeds while its rank computes", "[comm][node]") {
  int bell[2];
  REQUIRE(::pipe(bell) == 0);
  node_family family(2, in_world([bell](node_world& world) -> std::string {
                       std::vector<float> values(500'000, 1.0F);
                       auto request = world.all_reduce_async(tensor_view{values});
                       if (world.rank() == 1) {
                         request.wait();
                         return ::write(bell[1], "x", 1) == 1 ? "" : "write";
                       }
                       pollfd rung{bell[0], POLLIN, 0};  // without a call to the world
                       bool const in_time = ::poll(&rung, 1, 20'000) == 1;
                       request.wait();
                       return in_time ? "" : "nothing has happened";
                     }));
  watchdog dog("progress", 60s);
  expect_silence(family.said());
  ::close(bell[0]);
  ::close(bell[1]);
}

TEST_CASE("node: the helper thread of a rank sums with the rank's rounding mode", "[comm][node]") {
  node_family family(2, in_world([](node_world& world) -> std::string {
                       std::vector<float> values(500'000, 1.0F);
                       world.all_reduce_async(tensor_view{values}).wait();  // the helper is there
                       std::ranges::fill(values, world.rank() == 0 ? 1.0F : 1e-9F);
                       std::fesetround(FE_UPWARD);
                       auto request = world.all_reduce_async(tensor_view{values});
                       std::this_thread::sleep_for(100ms);  // without a call to the world
                       request.wait();
                       auto const above = std::nextafter(1.0F, 2.0F);
                       auto const wrong = values.size() - static_cast<std::size_t>(std::ranges::count(values, above));
                       return wrong == 0 ? "" : text(wrong, " sums are rounded otherwise");
                     }));
  watchdog dog("rounding", 60s);
  expect_silence(family.said());
}

TEST_CASE("node: groups are split, ordered by key, and give their memory back", "[comm][node]") {
  node_family family(4, in_world([](node_world& world) -> std::string {
                       for (int round = 0; round < 100; ++round) {
                         auto half = world.split(world.rank() % 2, -world.rank());
                         if (half.size() != 2 || half.rank() != (world.rank() < 2 ? 1 : 0)) return "wrong ranks";
                         std::vector<std::int32_t> sum(static_cast<std::size_t>(round) * 10 + 1, world.rank());
                         half.all_reduce(tensor_view{sum});
                         if (sum.back() != (world.rank() % 2 == 0 ? 2 : 4)) return "wrong sum";
                         auto quarter = half.split(half.rank(), 0);
                         quarter.all_reduce(tensor_view{sum});
                         if (quarter.size() != 1 || sum.back() != (world.rank() % 2 == 0 ? 2 : 4)) return "wrong";
                         auto twin = world.duplicate(5s);
                         if (twin.deadline() != 5s) return "wrong deadline";
                         std::uint8_t token = 0;
                         tensor_view<std::uint8_t> const view(&token, shape{1});
                         if (twin.rank() == 1) twin.exchange({send_to(3, view)});
                         if (twin.rank() == 3) twin.exchange({receive_from(1, view)});
                       }
                       return "";
                     }));
  watchdog dog("groups", 60s);
  expect_silence(family.said());
}

TEST_CASE("node: messages match in order, also large ones in both directions and to the sender itself",
          "[comm][node]") {
  for (int const size : {1, 2, 3}) {
    node_family family(size, in_world([](node_world& world) {
                         findings found;
                         for (auto const where : {memory::own, memory::heap, memory::mixed}) {
                           constexpr std::int64_t most = 400'000;
                           std::vector<tensor<float>> out, in;
                           std::vector<comm::collective_request> requests;
                           for (int i = 0; i < 12; ++i) {
                             auto const count = i % 4 == 3 ? most : i * 100;
                             out.push_back(make<float>(world, where, count));
                             set_values(out.back().view(), world.rank() * 50 + i);
                             for (int peer = 0; peer < world.size(); ++peer) {
                               transfer<host> const one[] = {send_to(peer, out.back().view())};
                               requests.push_back(world.exchange_async(std::span<transfer<host> const>(one)));
                             }
                           }
                           for (int i = 0; i < 12; ++i) {
                             auto const count = i % 4 == 3 ? most : i * 100;
                             for (int peer = world.size() - 1; peer >= 0; --peer) {
                               in.push_back(make<float>(world, where, count));
                               set_values(in.back().view(), -1);
                               world.exchange({receive_from(peer, in.back().view())});
                               found.expect("message", in.back().view(), 0, count,
                                            [&](auto k) { return value_of<float>(peer * 50 + i, k); });
                             }
                           }
                           for (auto& each : requests) each.wait();
                         }
                         return found.text;
                       }));
    watchdog dog(text("messages of ", size, " ranks"), 60s);
    expect_silence(family.said());
  }
}

TEST_CASE("node: in memory without data (phantom) a collective only synchronises", "[comm][node]") {
  node_family family(2, in_world([](node_world& world) -> std::string {
                       tensor<float, phantom> ghost(shape{1 << 20});
                       world.all_reduce(ghost.view());
                       world.all_gather(ghost.view());
                       auto request = world.reduce_scatter_async(ghost.view());
                       request.wait();
                       auto const peer = 1 - world.rank();
                       world.exchange({send_to(peer, ghost.view()), receive_from(peer, ghost.view())});
                       return world.traffic().bytes_sent > 0 ? "" : "nothing counted";
                     }));
  watchdog dog("phantom", 60s);
  expect_silence(family.said());
}

TEST_CASE("node: freed memory goes back to the system, and tensors outlive their world", "[comm][node]") {
  node_family family(2, [](int rank, node_family::gather const& gather) -> std::string {
    auto const files = open_files();
    auto const pages = [] {  // of this process's memory file
      std::int64_t most = 0;
      for (int file = 0; file < 100; ++file) {
        struct stat is {};
        if (::fstat(file, &is) == 0 && S_ISREG(is.st_mode)) most = std::max<std::int64_t>(most, is.st_blocks * 512);
      }
      return most;
    };
    tensor<float> kept;
    {
      node_world world(trireme::comm::detail::make_node_engine("trireme::comm::processes", rank, 2, 30s, gather));
      kept = world.allocate<float>(shape{1000});
      world.barrier();
      for (int round = 0; round < 3; ++round) {
        auto large = world.allocate<float>(shape{8 << 20});
        std::ranges::fill(large.span(), 1.0F);
        if (pages() < (32 << 20)) return "the pages are not there";
      }
      world.barrier();
      auto const left = pages();  // of all files
      world.barrier();
      if (left > (24 << 20)) return "the pages were kept";
    }
    std::ranges::fill(kept.span(), 2.0F);
    kept = {};
    return open_files() == files ? "" : "files are still open";
  });
  watchdog dog("memory", 60s);
  expect_silence(family.said());
}

TEST_CASE("node: a rank that is killed is named by the others at once", "[comm][node]") {
  auto const before = shared_files();
  for (bool const async : {false, true}) {
    node_family family(3, in_world([async](node_world& world) -> std::string {
                         std::vector<float> values(100'000, 1.0F);
                         world.all_reduce(tensor_view{values});
                         if (world.rank() == 1) ::raise(SIGKILL);
                         if (async) {
                           auto request = world.all_reduce_async(tensor_view{values});
                           while (!request.test()) std::this_thread::sleep_for(1ms);
                         }
                         world.all_reduce(tensor_view{values});
                         return "it went on";
                       }));
    watchdog dog("a killed rank", 60s);
    auto const begin = std::chrono::steady_clock::now();
    CHECK(family.said(1) == "ended");
    for (int const rank : {0, 2}) {
      auto const said = family.said(rank);
      INFO(said);
      CHECK(said.find("threw: rank " + std::to_string(rank) + ": trireme::comm::processes: rank 1 has died") == 0);
      CHECK(said.find("all_reduce(F32, 100000 elements, sum) number 2") != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - begin < 20s);
  }
  CHECK(shared_files() == before);
}

TEST_CASE("node: a stopped rank is named at the deadline, and gets the error when it continues", "[comm][node]") {
  node_family family(3, in_world(
                            [](node_world& world) -> std::string {
                              world.barrier();
                              if (world.rank() == 2) ::raise(SIGSTOP);
                              world.barrier();
                              return "it went on";
                            },
                            500ms));
  watchdog dog("a stopped rank", 60s);
  std::string const sentence =
      "trireme::comm::processes: barrier number 2 waited 500ms for rank 2, which did not call it; find out why "
      "it is late, or raise comm::processes{.deadline}";
  CHECK(family.said(0) == "threw: rank 0: " + sentence);
  CHECK(family.said(1) == "threw: rank 1: " + sentence);
  family.signal(2, SIGCONT);
  CHECK(family.said(2) == "threw: rank 2: " + sentence);
}

TEST_CASE("node: calls that differ are an error on every rank", "[comm][node]") {
  node_family family(3, in_world([](node_world& world) -> std::string {
                       std::vector<float> values(world.rank() == 1 ? 4 : 5000, 1.0F);
                       world.all_reduce(tensor_view{values});
                       return "it went on";
                     }));
  watchdog dog("differing calls", 60s);
  for (auto const& said : family.said()) {
    INFO(said);
    CHECK(said.find("call number 1 differs between ranks: rank ") != std::string::npos);
    CHECK(said.find("rank 1 called all_reduce(F32, 4 elements, sum)") != std::string::npos);
  }
}

TEST_CASE("node: messages that differ are an error on both sides", "[comm][node]") {
  node_family family(2, in_world([](node_world& world) -> std::string {
                       std::vector<float> values(5, 1.0F);
                       std::vector<std::int32_t> others(7, 1);
                       if (world.rank() == 0)
                         world.exchange({send_to(1, tensor_view{values})});
                       else
                         world.exchange({receive_from(0, tensor_view{others})});
                       return "it went on";
                     }));
  watchdog dog("differing messages", 60s);
  for (auto const& said : family.said()) {
    INFO(said);
    CHECK(said.find("rank 0 sends 5 elements of F32 to rank 1, which expects 7 elements of I32") != std::string::npos);
  }
}

TEST_CASE("node: a rank that leaves while others wait is named", "[comm][node]") {
  node_family family(2, in_world([](node_world& world) -> std::string {
                       world.barrier();
                       if (world.rank() == 1) return "";
                       world.barrier();
                       return "it went on";
                     }));
  watchdog dog("a rank that leaves", 60s);
  CHECK(family.said(1).empty());
  auto const said = family.said(0);
  INFO(said);
  CHECK(said.find("barrier number 2 cannot finish, because rank 1 has left without calling it") != std::string::npos);
}

TEST_CASE("node: a rank that only has to copy results does not wait for ranks that have finished and left",
          "[comm][node]") {
  using namespace trireme::comm::detail;
  node_board own, other;
  node_group group;
  group.members = {0, 1};
  group.boards = {&own, &other};
  node_operation op;
  op.where = &group;
  op.base = 5;
  op.rounds = 3;
  op.become(node_operation::stage::staging);
  auto const stand_at = [](node_board& board, std::uint64_t filled, std::uint64_t combined, std::uint64_t drained) {
    board.filled = filled;
    board.combined = combined;
    board.drained = drained;
  };
  stand_at(other, 8, 8, 8);
  for (std::uint64_t drained = 5; drained <= 8; ++drained) {
    stand_at(own, 8, 8, drained);
    CHECK_FALSE(awaits(op, 1));
  }
  stand_at(own, 8, 8, 7);
  stand_at(other, 8, 7, 7);
  CHECK(awaits(op, 1));  // the elements that it copies out are not reduced yet
  stand_at(own, 8, 7, 6);
  stand_at(other, 7, 7, 7);
  CHECK(awaits(op, 1));  // nor are the elements that it reduces copied in
}

TEST_CASE("node: several ranks that leave are named in one grammatical sentence", "[comm][node]") {
  node_family family(3, in_world([](node_world& world) -> std::string {
                       world.barrier();
                       if (world.rank() != 1) return "";
                       std::this_thread::sleep_for(200ms);  // both have left then
                       world.barrier();
                       return "it went on";
                     }));
  watchdog dog("ranks that leave", 60s);
  auto const said = family.said(1);
  INFO(said);
  CHECK(said.find("because ranks 0, 2 have left without calling it") != std::string::npos);
}

TEST_CASE("node: the others learn at once of a rank whose last world ends while an exception unwinds", "[comm][node]") {
  node_family family(3, [](int rank, node_family::gather const& gather) -> std::string {
    node_world world(comm::detail::make_node_engine("trireme::comm::processes", rank, 3, 30s, gather));
    std::string said = "nothing";
    try {
      auto const mine = std::move(world);  // as in a function of the program, which ends here
      auto& inside = const_cast<node_world&>(mine);
      try {
        auto part = inside.duplicate();
        throw std::domain_error("of a part only");
      } catch (std::domain_error const&) {  // the world goes on
        inside.barrier();
      }
      if (rank == 1) throw std::domain_error("loss is nan");
      inside.barrier();
    } catch (comm_error const& problem) {
      said = problem.what();
    } catch (std::domain_error const&) {
      said = "";
    }
    return said;
  });
  watchdog dog("unwinding", 20s);  // the deadline is 30 s
  CHECK(family.said(1).empty());
  for (int const rank : {0, 2}) {
    INFO(family.said(rank));
    CHECK(family.said(rank).find("rank 1 ended with an error: it left its world because of an exception") !=
          std::string::npos);
  }
}

TEST_CASE("node: a rank that ends with an error informs all others once", "[comm][node]") {
  node_family family(3, in_world([](node_world& world) -> std::string {
                       auto twin = world.duplicate();
                       if (world.rank() == 1) {
                         world.abandon("out of paper");
                         return "";
                       }
                       std::string first;
                       try {
                         world.barrier();
                       } catch (comm_error const& failure) {
                         first = failure.what();
                       }
                       try {
                         twin.barrier();
                       } catch (comm_error const& failure) {
                         return first == failure.what() ? first : "two sentences";
                       }
                       return "it went on";
                     }));
  watchdog dog("abandon", 60s);
  CHECK(family.said(0) == "rank 0: trireme::comm::processes: rank 1 ended with an error: out of paper");
  CHECK(family.said(1).empty());
  CHECK(family.said(2) == "rank 2: trireme::comm::processes: rank 1 ended with an error: out of paper");
}

TEST_CASE("node: the others learn of a rank that calls exit() before its process has ended", "[comm][node]") {
  auto const body = in_world([](node_world& world) -> std::string {
    world.barrier();
    if (world.rank() == 1) std::exit(0);
    world.barrier();
    return "it went on";
  });
  node_family family(2, [&](int rank, node_family::gather const& gather) {
    std::atexit([] { std::this_thread::sleep_for(60s); });  // as an MPI_Finalize that waits for the other ranks
    return body(rank, gather);
  });
  watchdog dog("exit", 20s);
  auto const said = family.said(0);
  INFO(said);
  CHECK(said.find("cannot finish, because rank 1 has left without calling it") != std::string::npos);
}

TEST_CASE("node: ranks that need their launcher learn that it has ended", "[comm][node]") {
  node_family family(2, [](int rank, node_family::gather const& gather) -> std::string {
    auto const launcher = ::getpid();
    if (::fork() != 0) {  // from now on this is the launcher of a rank, which ends it
      ::pause();
      ::_exit(0);
    }
    std::string why;
    auto const engine = comm::detail::try_node_engine("trireme::comm::processes", rank, 2, 30s, gather, why, true);
    node_world world(engine);
    world.barrier();
    if (rank == 0) {
      ::kill(launcher, SIGKILL);
      world.barrier();  // which rank 1 enters only after it has failed
    }
    while (!engine->failed()) std::this_thread::sleep_for(1ms);
    world.barrier();
    return "it went on";
  });
  watchdog dog("a launcher that ends", 60s);
  for (auto const& said : family.said()) {
    INFO(said);
    CHECK(said.find("cannot finish, because the process that started rank 0 (mpirun, or its daemon) has ended") !=
          std::string::npos);
  }
}

TEST_CASE("node: ranks that cannot share memory all get the same reason", "[comm][node]") {
  node_family family(3, [](int rank, node_family::gather const& gather) -> std::string {
    auto const elsewhere = [&](std::string const& line) {
      return gather(rank == 1 && line.starts_with("host:") ? "host:elsewhere" + line.substr(line.find(' ')) : line);
    };
    std::string why;
    auto const none = comm::detail::try_node_engine("trireme::comm::processes", rank, 3, 1s, elsewhere, why);
    return none == nullptr ? why : "it was made";
  });
  watchdog dog("strangers", 60s);
  for (auto const& said : family.said()) CHECK(said == "ranks 0 and 1 are on different hosts");

  node_family forged(2, [](int rank, node_family::gather const& gather) -> std::string {
    auto const forger = [&](std::string const& line) {
      std::string forgery = line;
      if (rank == 1 && line.starts_with("host:")) {  // a word of the token
        auto at = forgery.size();
        for (int word = 0; word < 3; ++word) at = forgery.rfind(' ', at - 1);  // cores, granted, stride
        --at;
        forgery[at] = forgery[at] == '7' ? '8' : '7';
      }
      return gather(forgery);
    };
    static_cast<void>(comm::detail::make_node_engine("trireme::comm::processes", rank, 2, 1s, forger));
    return "it was made";
  });
  for (auto const& said : forged.said())
    CHECK(said.find("the ranks cannot share memory: the file that rank 0 opened is not the memory of rank 1") !=
          std::string::npos);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("node: a limit on address space makes the memory smaller, not the launch fail", "[comm][node]") {
  node_family family(2, [](int rank, node_family::gather const& gather) -> std::string {
    rlimit const limit{std::size_t{1} << 30, std::size_t{1} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    node_world world(trireme::comm::detail::make_node_engine("trireme::comm::processes", rank, 2, 30s, gather));
    world.barrier();
    return "";
  });
  watchdog dog("a limit", 60s);
  expect_silence(family.said());
}
#endif
