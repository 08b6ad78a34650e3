#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(residual(linear{.outputs = 36}, attend{.heads = 4}, linear{.outputs = 12}, layer_norm{}));
