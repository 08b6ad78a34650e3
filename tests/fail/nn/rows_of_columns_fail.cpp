// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: this layer works on whole rows, but the one before it leaves each rank
#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(residual(linear{.outputs = 36}, attend{.heads = 4}, layer_norm{}, linear{.outputs = 12}));
