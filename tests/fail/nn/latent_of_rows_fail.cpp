// test-compilers: g++ clang++
// expected-error: trireme::nn::latent_attention: its heads are columns, which a tensor group shares; put a linear
#include "trireme/nn/latent_attention.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(latent_attention{}, layer_norm{}));
