// Routes of comm::nccl on the stand-in: messages along them wait only for earlier ones on the same route.
#include "routes.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ranks.hpp"

namespace comm = trireme::comm;
using namespace std::chrono_literals;
using stand_in::on_ranks;
using trireme::cuda;

namespace {

using transfers = std::vector<trireme::transfer<cuda>>;

/// Every rank to its neighbours, both ways.
std::vector<trireme::route> ring(int size) {
  std::vector<trireme::route> all;
  for (int rank = 0; rank < size; ++rank) {
    auto const add = [&](trireme::route each) {
      if (each.from != each.to && std::ranges::find(all, each) == all.end()) all.push_back(each);
    };
    add({rank, (rank + 1) % size});
    add({(rank + 1) % size, rank});
  }
  return all;
}
void put(trireme::tensor_view<float, cuda> to, float value) {
  std::vector<float> const values(static_cast<std::size_t>(to.size()), value);
  ladder::memory<cuda>::put(to, values.data());
}
void expect_all(trireme::tensor_view<float, cuda> here, float value, char const* what) {
  for (auto const each : ladder::memory<cuda>::get(here))
    ladder::expect(each == value, what, ": ", each, " in place of ", value);
}

/// As a stage of a pipeline: receives are started ahead of the sends without which they never end, in both directions;
/// and memory is freed meanwhile.
void stages(comm::nccl_world& world) {
  constexpr int rounds = 5;
  int const me = world.rank(), next = me + 1, last = me - 1;
  bool const has_next = next<world.size(), has_last = me> 0;
  std::vector<trireme::tensor<float, cuda>> down, up;
  std::vector<std::optional<comm::nccl_request>> from_last, from_next;
  for (int k = 0; k < rounds; ++k) {
    down.emplace_back(trireme::shape{100 + k});
    up.emplace_back(trireme::shape{200 + k});
    if (has_last) from_last.emplace_back(world.exchange_async(transfers{receive_from(last, down.back().view())}));
    if (has_next) from_next.emplace_back(world.exchange_async(transfers{receive_from(next, up.back().view())}));
  }
  for (int k = 0; k < rounds; ++k) {
    auto const at = static_cast<std::size_t>(k);
    { trireme::tensor<float, cuda> const freed({1000}); }
    if (has_last)
      trireme::order(*from_last[at]);
    else
      put(down[at].view(), static_cast<float>(k + 1));
    if (has_next) world.exchange(transfers{send_to(next, down[at].view())});
  }
  for (int k = 0; k < rounds; ++k) {
    auto const at = static_cast<std::size_t>(k);
    if (has_next)
      from_next[at]->wait();
    else
      put(up[at].view(), static_cast<float>(10 * (k + 1)));
    if (has_last) world.exchange(transfers{send_to(last, up[at].view())});
    expect_all(down[at].view(), static_cast<float>(k + 1), "what went down");
    expect_all(up[at].view(), static_cast<float>(10 * (k + 1)), "what came up");
  }
  from_last.clear();
  from_next.clear();
  world.barrier();
}

/// Exchanges with both neighbours at once, in device and host memory, beside collectives.
void exchanges(comm::nccl_world& world) {
  int const p = world.size(), right = (world.rank() + 1) % p, left = (world.rank() + p - 1) % p;
  trireme::tensor<float, cuda> mine({300}), from_left({300}), from_right({300});
  for (int k = 0; k < 20; ++k) {
    put(mine.view(), static_cast<float>(100 * k + world.rank()));
    transfers both{send_to(right, mine.view()), receive_from(left, from_left.view()), send_to(left, mine.view()),
                   receive_from(right, from_right.view())};
    if (p == 2) both.resize(2);
    world.exchange(both);
    expect_all(from_left.view(), static_cast<float>(100 * k + left), "of the left rank");
    if (p > 2) expect_all(from_right.view(), static_cast<float>(100 * k + right), "of the right rank");
    std::vector<std::int32_t> const own{world.rank() + k};
    std::vector<std::int32_t> theirs{-1}, again{-1};
    // To itself, and along a route.
    world.exchange({trireme::send_to(right, trireme::tensor_view(own)),
                    trireme::receive_from(left, trireme::tensor_view(theirs)),
                    trireme::send_to(world.rank(), trireme::tensor_view(own)),
                    trireme::receive_from(world.rank(), trireme::tensor_view(again))});
    ladder::expect(theirs[0] == left + k && again == own, "in host memory: ", theirs[0], " and ", again[0]);
    std::vector<std::int64_t> sum{1};
    world.all_reduce(trireme::tensor_view(sum));
    ladder::expect(sum[0] == p, "a sum beside them is ", sum[0]);
  }
}

/// The sentence of rank 0, whose neighbour never sends.
std::string late(bool with_routes, bool waits) {
  std::string said;
  on_ranks(2, {.deadline = 300ms}, [&](comm::nccl_world& world) {
    if (with_routes) world.open_routes(ring(2));
    if (world.rank() == 1) return;
    said = sentence_of<trireme::comm_error>([&] {
      trireme::tensor<float, cuda> here({100}), there({100});
      auto sent = world.exchange_async(transfers{send_to(1, there.view())});
      auto pending = world.exchange_async(transfers{receive_from(1, here.view())});
      if (waits) pending.wait();
      trireme::order(pending);
      cuda::finish();
    });
  });
  return said;
}

}  // namespace

void stand_in::try_routes(gpu::cases& cases) {
  for (int const order : {0, 1, 2, 3, 4, 5})
    for (int const size : {2, 3, 4}) {
      auto const on = trireme::text(" on ", size, " ranks, in order ", order);
      cases.run("receives ahead of the sends that they wait for, along routes," + on, [&] {
        simt::order() = order;
        frees_wait = true;
        on_ranks(size, {.deadline = 60s}, [&](comm::nccl_world& world) {
          auto part = world.split(0, world.rank());
          part.open_routes(ring(size));
          part.open_routes(ring(size));  // they are open
          stages(part);
          stages(part);
        });
        frees_wait = false;
        simt::order() = 0;
        ladder::expect(endless_frees == 0, endless_frees.load(), " frees waited for messages");
      });
      cases.run("exchanges over several routes" + on, [&] {
        simt::order() = order;
        on_ranks(size, {.deadline = 60s}, [&](comm::nccl_world& world) {
          world.open_routes(ring(size));
          exchanges(world);
        });
        simt::order() = 0;
      });
    }
  cases.run("a message that never comes is named with its route", [] {
    for (bool const waits : {false, true}) {
      auto const sentence = late(true, waits);
      ladder::expect(sentence.starts_with("trireme::comm::nccl: exchange from rank 1 to rank 0, call number 1 waited "
                                          "300ms and is not done; find out why"),
                     sentence);
    }
  });
  cases.run("without routes an exchange waits for the one before, and its sentence says what helps", [] {
    auto const sentence = late(false, true);
    ladder::expect(sentence.find("exchange, call number 1 waited 300ms") != std::string::npos &&
                       sentence.find("needs open_routes())") != std::string::npos,
                   sentence);
  });
  cases.run("a rank that does not open routes ends the others' waits at the deadline", [] {
    std::string said;
    on_ranks(2, {.deadline = 300ms}, [&](comm::nccl_world& world) {
      if (world.rank() == 1) return;
      said = sentence_of<trireme::comm_error>([&] { world.open_routes(ring(2)); });
    });
    ladder::expect(said.starts_with("trireme::comm::nccl: barrier number 1 waited 300ms"), said);
  });
  cases.run("a route that is none is refused", [] {
    on_ranks(2, {.deadline = 60s}, [&](comm::nccl_world& world) {
      for (trireme::route const wrong : {trireme::route{0, 2}, trireme::route{-1, 0}, trireme::route{1, 1}}) {
        auto const sentence = sentence_of<trireme::config_error>([&] { world.open_routes(std::vector{wrong}); });
        ladder::expect(sentence.starts_with("trireme::comm::nccl::open_routes: there is no route from rank "),
                       sentence);
      }
    });
  });
}
