// comm::nccl, one process a rank and a device a rank. nccl_ladder FILE: ranks (TRIREME_RANK, TRIREME_SIZE; one if they
// say nothing) meet at FILE.
#include "nccl_cases.hpp"

namespace comm = trireme::comm;
using namespace std::chrono_literals;
using trireme::cuda;

namespace {

/// What needs no second rank.
void alone(gpu::cases& cases) {
  cases.run("ranks that do not come end the making of a communicator at the deadline", [] {
    comm::gathering const two{.rank = 0, .size = 2, .all_gather = [](std::string const& own) {
                                return std::vector<std::string>{own, own};
                              }};
    auto const begun = std::chrono::steady_clock::now();
    auto const sentence =
        sentence_of<trireme::comm_error>([&] { comm::nccl_world const world(comm::nccl{.deadline = 3s}, two); });
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
      auto const sentence = sentence_of<trireme::comm_error>([&] { each->all_reduce(values.view()); });
      ladder::expect(sentence.find("enough") != std::string::npos, sentence);
    }
  });
  cases.run("a send to itself without its receive is refused", [] {
    comm::gathering const one{.all_gather = [](std::string const& own) { return std::vector<std::string>{own}; }};
    comm::nccl_world world(comm::nccl{}, one);
    trireme::tensor<float, cuda> values({4});
    auto const sentence =
        sentence_of<trireme::config_error>([&] { world.exchange({trireme::send_to(0, values.view())}); });
    ladder::expect(sentence.find("sends to itself") != std::string::npos, sentence);
    world.barrier();
  });
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
    comm::nccl const description{
        .meet = comm::by_file, .file = file, .order = ordered ? comm::sum_order::ranks : comm::sum_order::any};
    auto const on = trireme::text(" on ", place.size, ordered ? " ranks of NCCL, in order" : " ranks of NCCL");
    trireme::launch(description, [&](comm::nccl_world& world) {
      ladder::for_each_rung([&](char const* name, auto rung) {
        cases.run(name + on, [&] {
          if (ordered) {
            gpu::in_order view(world.duplicate());
            rung(view);
          } else {
            rung(world);
          }
        });
      });
      cases.run("votes in host memory" + on, [&] { gpu::votes(world); });
    });
  }
  return cases.exit_code();
}
