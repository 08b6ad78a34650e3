// test-compilers: g++ clang++
#include "trireme/nn/experts.hpp"

#include "bench.hpp"

using namespace trireme;

// expected-error: trireme::nn::experts needs the kernels of ops::experts_kernels, of which the
// communicator's memory space lacks some; add them to it (the headers of ops/sets list them), or leave nn::experts
// out
auto const nodes = nn::nodes_of<environment<precision::fp32, bench>>(nn::experts{});
