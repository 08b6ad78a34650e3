// test-compilers: g++ clang++
#include "trireme/nn/layers.hpp"

#include "bench.hpp"

using namespace trireme;

// expected-error: trireme::nn::attend needs the kernels of ops::heads_kernels, of which the
// communicator's memory space lacks some; add them to it (the headers of ops/sets list them), or leave nn::attend
// out
auto const nodes = nn::nodes_of<environment<precision::fp32, bench>>(nn::attend{});
