#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(embedding{.words = 5, .outputs = 4}, linear{.outputs = 4}));
