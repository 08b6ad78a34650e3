// The world of NCCL and threads on CUDA memory, compiled with every warning (tests/headers.cmake).
#include <vector>

#include "trireme/comm/cuda.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/nccl.hpp"

using namespace trireme;

namespace {

template <class T>
void collectives_of(auto& world) {
  tensor<T, cuda> values({1024});
  world.all_reduce(values.view(), reduction::sum{});
  world.reduce_scatter_async(values.view(), reduction::sum{}).wait();
  world.all_gather(values.view());
  world.broadcast(values.view(), 0);
  auto other = world.duplicate();
  other.split(0, 0).barrier();
}

}  // namespace

void worlds() {
  auto const body = [](auto& world) {
    collectives_of<float>(world);
    collectives_of<double>(world);
    collectives_of<bfloat16>(world);
    collectives_of<std::int64_t>(world);
  };
  launch(comm::threads{}, body);
  launch(comm::nccl{}, body);
  launch(comm::nccl{.order = comm::sum_order::ranks}, body);
}
