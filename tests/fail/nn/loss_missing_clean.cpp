#include "trireme/nn/losses.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(layer_norm{}, unembedding{.words = 5}, loss::cross_entropy{}));
