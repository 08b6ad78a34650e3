// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: the numbers of a product with a table of words are never all in memory; put the
#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(layer_norm{}, unembedding{.words = 5}));
