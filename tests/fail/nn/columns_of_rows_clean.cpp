#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(layer_norm{}, linear{.outputs = 36}, attend{.heads = 4}, linear{.outputs = 12}));
