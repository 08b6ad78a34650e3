#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(
    chain(product(chain(linear{.outputs = 36}, attend{.heads = 4}), linear{.outputs = 12}), linear{.outputs = 12}));
