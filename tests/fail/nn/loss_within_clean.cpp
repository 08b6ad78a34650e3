#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(linear{.outputs = 4}, layer_norm{}, loss::squared_error{}));
