// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: the last layer leaves each rank of a tensor group some columns; end with
#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(product(chain(linear{.outputs = 36}, attend{.heads = 4}), linear{.outputs = 12}));
