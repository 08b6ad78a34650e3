#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/counted.hpp"

using namespace trireme;

namespace {

struct reading {
  double value = 0;
  std::int32_t rank = 0;  // and four bytes of padding
  friend bool operator==(reading const&, reading const&) = default;
};

// These functions throw, like the rungs of the ladder: Catch2's checks are for one thread.
void expect(bool condition, char const* what) {
  if (!condition) throw std::runtime_error(what);
}

template <class World>
void reduce_buffers(World& world) {
  int const p = world.size();
  int const me = world.rank();
  auto const ranks_sum = static_cast<float>(p * (p - 1) / 2);
  std::vector<float> list(8, static_cast<float>(me));
  world.all_reduce(list);
  expect(list == std::vector<float>(8, ranks_sum), "all_reduce of a vector");
  std::array<std::int32_t, 3> fixed{me, -me, 7};
  world.all_reduce(fixed, reduction::max{});
  expect(fixed == std::array<std::int32_t, 3>{p - 1, 0, 7}, "all_reduce of an array");
  double plain[2] = {1.0 * me, 5.0};
  world.all_reduce(plain, reduction::min{});
  expect(plain[0] == 0.0 && plain[1] == 5.0, "all_reduce of a C array");
  world.all_reduce(std::span(list).first(1), reduction::mean{});
  expect(list[0] == ranks_sum && list[7] == ranks_sum, "all_reduce of a temporary span");
  tensor<float> matrix(shape{2, 3});
  for (auto& each : matrix.span()) each = 1;
  auto pending = world.all_reduce_async(matrix);
  pending.wait();
  expect(matrix[5] == static_cast<float>(p), "all_reduce_async of a tensor");

  std::vector<std::int64_t> slices(static_cast<std::size_t>(2 * p), 1);
  world.reduce_scatter(slices);
  expect(slices[static_cast<std::size_t>(2 * me)] == p, "reduce_scatter of a vector");
  std::vector<std::int64_t> counts(static_cast<std::size_t>(p), 0);
  counts.back() = 3;
  std::array<std::int64_t, 3> for_one{1, 2, me};
  world.reduce_scatter(for_one, counts);
  expect(me != p - 1 || for_one == std::array<std::int64_t, 3>{p, 2 * p, p * (p - 1) / 2}, "ragged reduce_scatter");
  std::vector<std::int64_t> at_root(3, 2);
  world.reduce(at_root, p - 1);
  expect(at_root[2] == (me == p - 1 ? 2 * p : 2), "reduce of a vector");
}

template <class World>
void move_buffers(World& world) {
  int const p = world.size();
  int const me = world.rank();
  auto const n = static_cast<std::size_t>(p);
  std::vector<float> const own(2, static_cast<float>(me));
  std::vector<float> whole(2 * n, -1.0F);
  world.gather(own, whole, 0);
  expect(me != 0 || whole.back() == static_cast<float>(p - 1), "gather of vectors, from what is constant");
  std::array<float, 2> part{};
  world.scatter(whole, part, 0);
  expect(part[1] == static_cast<float>(me), "scatter of a vector");
  std::vector<float> arrived(2 * n);
  std::vector<float> const leaving(2 * n, static_cast<float>(me));
  world.all_to_all(leaving, arrived);
  expect(arrived[0] == 0.0F && arrived.back() == static_cast<float>(p - 1), "all_to_all of vectors");
  std::vector<std::int64_t> const one(n, 2);
  arrived.assign(2 * n, -1.0F);
  world.all_to_all(tensor_view{leaving}, one, arrived, one);  // a view and a buffer
  expect(arrived[0] == 0.0F && arrived.back() == static_cast<float>(p - 1), "ragged all_to_all");
}

template <class World>
void send_objects(World& world) {
  int const p = world.size();
  int const me = world.rank();
  auto const n = static_cast<std::size_t>(p);
  std::vector<reading> all(2 * n);
  all[static_cast<std::size_t>(2 * me + 1)] = {0.5 * me, me};
  auto const before = world.traffic();
  world.all_gather(all);
  expect(world.traffic().bytes_sent - before.bytes_sent == 2 * sizeof(reading) * (n - 1), "bytes of all_gather");
  for (int rank = 0; rank < p; ++rank)
    expect(all[static_cast<std::size_t>(2 * rank + 1)] == reading{0.5 * rank, rank}, "all_gather of a struct");

  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  for (int rank = 0; rank < p; ++rank) total += counts.emplace_back(rank % 3);
  std::vector<reading> uneven(static_cast<std::size_t>(total));
  std::int64_t at = 0;
  for (int rank = 0; rank < me; ++rank) at += counts[static_cast<std::size_t>(rank)];
  for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(me)]; ++i)
    uneven[static_cast<std::size_t>(at + i)] = {1.0, me};
  world.all_gather(uneven, counts);
  std::size_t place = 0;
  for (int rank = 0; rank < p; ++rank)
    for (int i = 0; i < rank % 3; ++i) expect(uneven[place++] == reading{1.0, rank}, "ragged all_gather of a struct");

  std::string name = me == p - 1 ? "abcdef" : "------";
  world.broadcast(name, p - 1);
  expect(name == "abcdef", "broadcast of a string");
  reading one[1] = {{2.0 * me, me}};
  auto pending = world.broadcast_async(one, 0);
  pending.wait();
  expect(one[0] == reading{0.0, 0}, "broadcast of a struct");

  std::array<reading, 1> const own{reading{3, me}};
  std::vector<reading> whole(n);
  world.gather(own, whole, 0);
  for (int rank = 0; me == 0 && rank < p; ++rank)
    expect(whole[static_cast<std::size_t>(rank)] == reading{3, rank}, "gather of a struct");
  std::array<reading, 1> dealt{};
  world.scatter(whole, dealt, 0);
  expect(dealt == own, "scatter of a struct");
  std::vector<reading> const leaving(n, reading{4, me});
  world.all_to_all(leaving, whole);
  std::vector<reading> other(n);
  std::vector<std::int64_t> const one_each(n, 1);
  world.all_to_all(leaving, one_each, other, one_each);
  for (int rank = 0; rank < p; ++rank)
    expect(whole[static_cast<std::size_t>(rank)] == reading{4, rank}, "all_to_all of a struct");
  expect(other == whole, "ragged all_to_all of a struct");

  std::array<reading, 2> const out{reading{1, me}, reading{2, me}};
  std::vector<reading> in(2);
  world.exchange({send_to((me + 1) % p, out), receive_from((me + p - 1) % p, in)});
  expect(in[1] == reading{2, (me + p - 1) % p}, "exchange of a struct");
}

template <class World>
void everything(World& world) {
  reduce_buffers(world);
  move_buffers(world);
  send_objects(world);
}

// Temporaries and read-only outputs do not compile.
template <class B>
concept is_reduced = requires(comm::threads_world& world, B&& values) {
  world.all_reduce(std::forward<B>(values));
};
static_assert(is_reduced<std::vector<float>&> && is_reduced<std::span<float>> && is_reduced<float (&)[3]>);
static_assert(!is_reduced<std::vector<float>> && !is_reduced<std::vector<float> const&>);
static_assert(!is_reduced<std::vector<reading>&> && !is_reduced<std::vector<bool>&>);
template <class B>
concept is_broadcast = requires(comm::threads_world& world, B&& values) {
  world.broadcast(std::forward<B>(values), 0);
  world.all_gather(std::forward<B>(values));
  receive_from(0, std::forward<B>(values));
};
static_assert(is_broadcast<std::string&> && is_broadcast<std::span<reading>> && !is_broadcast<std::string const&>);
template <class From, class To>
concept is_gathered = requires(comm::threads_world& world, From&& from, To&& to) {
  world.gather(std::forward<From>(from), std::forward<To>(to), 0);
  world.all_to_all(std::forward<From>(from), std::forward<To>(to));
};
static_assert(is_gathered<std::vector<float> const&, std::vector<float>&>);
static_assert(is_gathered<tensor_view<float>, std::vector<float>&> && !is_gathered<int, std::vector<float>&>);
static_assert(!is_gathered<std::vector<float>, std::vector<float>&>);
static_assert(!is_gathered<std::vector<float>&, std::vector<float> const&>);

}  // namespace

TEST_CASE("collectives take vectors, arrays, spans and tensors as they are", "[comm]") {
  launch(comm::self{}, [](auto& world) { everything(world); });
  for (int const ranks : {1, 2, 3, 5})
    CHECK_NOTHROW(launch(comm::threads{.ranks = ranks}, [](auto& world) { everything(world); }));
  CHECK_NOTHROW(
      launch(comm::decorate(comm::threads{.ranks = 3}, comm::counted{}), [](auto& world) { everything(world); }));
}

TEST_CASE("slices of data sent as bytes contain whole elements", "[comm]") {
  // 3 elements of 16 bytes would divide into two halves of 24.
  auto const told = [](auto call) {
    std::string sentence;
    try {
      launch(comm::threads{.ranks = 2}, [&](auto& world) {
        std::vector<reading> three(3);
        call(world, three);
      });
    } catch (config_error const& problem) {
      sentence = problem.what();
    }
    return sentence;
  };
  CHECK(told([](auto& world, auto& three) {
          world.all_gather(three);
        }).find("all_gather: 3 elements do not divide into 2 equal slices") != std::string::npos);
  CHECK(told([](auto& world, auto& three) {
          world.all_gather(three, std::vector<std::int64_t>{1, 1});
        }).find("the counts add up to 2 but the view has 3 elements") != std::string::npos);
}
