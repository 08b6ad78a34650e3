// test-compilers: g++ clang++
// expected-error: trireme::nn::chain: a loss is the last layer of a unit; what comes behind it gets no rows
#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(linear{.outputs = 4}, loss::squared_error{}, layer_norm{}));
