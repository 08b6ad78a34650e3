// test-ranks: 2
// test-timeout: 120
#include "trireme/interop/torch.hpp"

#include "torch_cases.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/processes.hpp"

// Two processes that mpirun has started: as ranks of MPI, as ranks without MPI, and each with two threads of its own.

using namespace torch_cases;

namespace {

/// What a loop with data_parallel and a trainer with torch_model have learnt.
struct learnt {
  template <class Comm>
  Tensor operator()(Comm& world) const {
    interop::divide_threads(world);
    perceptron net;
    fill(*net, 3 + static_cast<std::uint64_t>(world.rank()));
    {
      auto ddp = interop::data_parallel(net, world);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
      for (std::uint64_t step = 0; step < 10; ++step) {
        optimizer.zero_grad();
        ddp->forward(numbers({4, 5}, 2 * step + static_cast<std::uint64_t>(world.rank()))).square().mean().backward();
        ddp.finish();
        optimizer.step();
      }
    }
    auto const x = numbers({4, 5}, 1).chunk(2)[static_cast<std::size_t>(world.rank())].contiguous();
    auto const y = torch::ones({2, 3});
    auto trainer = make_trainer(interop::torch_model(net, torch::nn::MSELoss()), optim::adamw{.learning_rate = 1e-2},
                                world, parallel::zero<1>{});
    for (int step = 0; step < 10; ++step)
      trainer.step(interop::detail::view_of<float>(x), interop::detail::view_of<float>(y));
    return values_of(*net);
  }
};

}  // namespace

TEST_CASE("a torch module trains to the same bits by threads, processes and MPI", "[torch]") {
  auto const expected = on_ranks<Tensor>(2, learnt());
  CHECK(expected[1].equal(expected[0]));
  CHECK(launch(comm::mpi{}, learnt()).equal(expected[0]));
  CHECK(launch(comm::processes{}, learnt()).equal(expected[0]));
}

TEST_CASE("tensors are summed, sent and gathered over processes and MPI", "[torch]") {
  auto const all = [](auto& world) {
    auto const own = torch::full({3}, 1.0F + static_cast<float>(world.rank()));
    auto const gathered = interop::all_gather(world, own);
    auto const sent = interop::broadcast(world, own.clone(), 1);
    return torch::cat({gathered.flatten(), sent, interop::all_reduce(world, own)});
  };
  auto const expected = torch::cat({torch::full({3}, 1.0F), torch::full({6}, 2.0F), torch::full({3}, 3.0F)});
  CHECK(launch(comm::mpi{}, all).equal(expected));
  CHECK(launch(comm::processes{}, all).equal(expected));
}

TEST_CASE("ranks that are threads divide torch's threads, and processes draw different random numbers", "[torch]") {
  auto const threads = on_ranks<int>(2, [](auto& world) { return interop::divide_threads(world); });
  CHECK(threads[1] == std::max(1, usable_cores() / 2));
  auto const before = torch::get_num_threads();
  CHECK(launch(comm::processes{}, [](auto& world) { return interop::divide_threads(world); }) == before);
  auto const drawn = launch(comm::processes{}, [](auto& world) {
    interop::manual_seed(world, 7);
    std::vector<float> all(2);
    all[static_cast<std::size_t>(world.rank())] = torch::rand({1}).template item<float>();
    world.all_gather(tensor_view<float>(all));
    return all;
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    torch::manual_seed(7 + rank);
    CHECK(torch::rand({1}).item<float>() == drawn[rank]);
  }
  CHECK(drawn[0] != drawn[1]);
}
