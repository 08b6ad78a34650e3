// test-compilers: g++ clang++
#include "trireme/nn/batch_norm.hpp"

#include "bench.hpp"

using namespace trireme;

// expected-error: trireme::nn::batch_norm needs the kernels of ops::batch_norm_kernels, of which the
// communicator's memory space lacks some; add them to it (the headers of ops/sets list them), or leave nn::batch_norm
// out
auto const nodes = nn::nodes_of<environment<precision::fp32, bench>>(nn::batch_norm{});
