#pragma once

#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/elementwise.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/llama.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/nn/mlp.hpp"
