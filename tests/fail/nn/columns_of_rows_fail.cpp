// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: this layer works on the columns of its heads, but what comes before it
#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(linear{.outputs = 36}, layer_norm{}, attend{.heads = 4}, linear{.outputs = 12}));
