// comm::nccl, one process a rank and a device a rank. nccl_ladder FILE: ranks (TRIREME_RANK, TRIREME_SIZE; one if they
// say nothing) meet at FILE.
#include "support.hpp"
#include "trireme/comm/nccl.hpp"

namespace comm = trireme::comm;
using namespace std::chrono_literals;
using trireme::cuda;

namespace {

/// The world of comm::nccl{.ordered = true}, whose sums the ladder expects bit for bit.
struct in_order : comm::nccl_world {
  static constexpr bool ordered = true;
  explicit in_order(comm::nccl_world&& base) noexcept : nccl_world(std::move(base)) {}
  in_order split(int color, int key) { return in_order(nccl_world::split(color, key)); }
  in_order duplicate() { return in_order(nccl_world::duplicate()); }
};

/// What needs no second rank.
void alone(gpu::cases& cases) {
  cases.run("ranks that do not come end the making of a communicator at the deadline", [] {
    comm::gathering const two{.rank = 0, .size = 2, .all_gather = [](std::string const& own) {
                                return std::vector<std::string>{own, own};
                              }};
    auto const begun = std::chrono::steady_clock::now();
    auto const sentence =
        gpu::sentence_of<trireme::comm_error>([&] { comm::nccl_world const world(comm::nccl{.deadline = 3s}, two); });
    ladder::expect(sentence.starts_with("trireme::comm::nccl: making a communicator waited 3s"), sentence);
    ladder::expect(std::chrono::steady_clock::now() - begun < 60s, "it took far longer than the deadline");
  });
  cases.run("after abandon every communicator of the launch throws what was said", [] {
    comm::gathering const one{.all_gather = [](std::string const& own) { return std::vector<std::string>{own}; }};
    comm::nccl_world world(comm::nccl{}, one);
    auto other = world.duplicate();
    trireme::tensor<float, cuda> values({1024});
    auto pending = other.all_reduce_async(values.view());
    world.abandon("trireme::comm::nccl: rank 0 ended with an error: enough");
    for (auto* const each : {&world, &other}) {
      auto const sentence = gpu::sentence_of<trireme::comm_error>([&] { each->all_reduce(values.view()); });
      ladder::expect(sentence.find("enough") != std::string::npos, sentence);
    }
  });
  cases.run("a send to itself without its receive is refused", [] {
    comm::gathering const one{.all_gather = [](std::string const& own) { return std::vector<std::string>{own}; }};
    comm::nccl_world world(comm::nccl{}, one);
    trireme::tensor<float, cuda> values({4});
    auto const sentence =
        gpu::sentence_of<trireme::config_error>([&] { world.exchange({trireme::send_to(0, values.view())}); });
    ladder::expect(sentence.find("sends to itself") != std::string::npos, sentence);
    world.barrier();
  });
}

/// Votes and counts, in host memory.
void votes(comm::nccl_world& world) {
  int const p = world.size();
  for (std::int64_t const count : {1, 3, 1000}) {
    std::vector<std::int64_t> sum(static_cast<std::size_t>(count), world.rank() + 1);
    world.all_reduce(trireme::tensor_view{sum});
    for (auto const each : sum) ladder::expect(each == p * (p + 1) / 2, "a sum of votes is ", each);
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(p));
  all[static_cast<std::size_t>(world.rank())] = static_cast<std::uint64_t>(world.rank()) + 7;
  world.all_gather(trireme::tensor_view{all});
  for (int rank = 0; rank < p; ++rank)
    ladder::expect(all[static_cast<std::size_t>(rank)] == static_cast<std::uint64_t>(rank) + 7, "gathered votes");
  std::vector<double> told{world.rank() == p - 1 ? 2.5 : 0.0};
  auto pending = world.broadcast_async(trireme::tensor_view{told}, p - 1);
  pending.wait();
  ladder::expect(told[0] == 2.5, "a broadcast in host memory");
}

}  // namespace

int main(int count, char** words) {
  if (auto const reason = gpu::reason_to_skip(); !reason.empty()) {
    std::printf("skipped: comm::nccl: %s\n", reason.c_str());
    return 77;
  }
  auto const place = comm::bootstrap::detect();
  gpu::cases cases(place.rank == 0);
  std::string const file = count > 1 ? words[1] : "nccl_ladder.id";
  if (place.size == 1) alone(cases);
  for (bool const ordered : {false, true}) {
    comm::nccl const description{.meet = comm::by_file, .file = file, .ordered = ordered};
    auto const on = trireme::text(" on ", place.size, ordered ? " ranks of NCCL, in order" : " ranks of NCCL");
    trireme::launch(description, [&](comm::nccl_world& world) {
      ladder::for_each_rung([&](char const* name, auto rung) {
        cases.run(name + on, [&] {
          if (ordered) {
            in_order view(world.duplicate());
            rung(view);
          } else {
            rung(world);
          }
        });
      });
      cases.run("votes in host memory" + on, [&] { votes(world); });
    });
  }
  return cases.exit_code();
}
