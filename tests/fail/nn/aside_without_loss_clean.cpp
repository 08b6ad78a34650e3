#include "trireme/nn/multi_token.hpp"

#include "trireme/nn/layers.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit =
    fits(chain(layer_norm{}, auxiliary_loss(linear{.outputs = 4}, loss::squared_error{}), loss::squared_error{}));
