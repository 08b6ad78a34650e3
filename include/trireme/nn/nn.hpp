#pragma once

#include "trireme/nn/attention.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/layer_norm.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/linear.hpp"
#include "trireme/nn/mlp.hpp"
