// test-compilers: g++ clang++
// expected-error: trireme::nn::onnx_nodes: this layer has no function that gives its nodes of ONNX; write
#include "trireme/nn/onnx_layers.hpp"

using namespace trireme::nn;

struct doubled {};

std::string within(onnx_walk& at) { return onnx_nodes(at, chain(relu(), doubled{}), "x"); }
