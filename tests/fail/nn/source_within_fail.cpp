// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: this layer makes rows of the batch's numbers, but there are rows already; it is
// the
#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(linear{.outputs = 4}, embedding{.words = 5, .outputs = 4}));
