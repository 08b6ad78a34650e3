// test-compilers: g++ clang++
// expected-error: trireme::nn::auxiliary_loss: the last of its layers is not a loss; end with one of nn::loss
#include "trireme/nn/multi_token.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(layer_norm{}, auxiliary_loss(linear{.outputs = 4}), loss::squared_error{}));
