#include "trireme/nn/layers.hpp"

#include "bench.hpp"

using namespace trireme;

auto const nodes = nn::nodes_of<environment<precision::fp32, bench>>(nn::layer_norm{});
