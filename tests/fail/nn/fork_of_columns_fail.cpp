// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: the branches of a product begin with whole rows, but the layer before
#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(linear{.outputs = 36}, attend{.heads = 4}, product(gelu(), linear{.outputs = 12})));
