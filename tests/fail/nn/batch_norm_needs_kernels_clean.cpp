#include "trireme/nn/batch_norm.hpp"

#include "bench.hpp"
#include "trireme/nn/layers.hpp"

using namespace trireme;

auto const nodes = nn::nodes_of<environment<precision::fp32, bench>>(nn::layer_norm{});
