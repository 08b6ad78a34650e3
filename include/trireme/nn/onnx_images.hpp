#pragma once

#include <string>

#include "trireme/core/compiled.hpp"
#include "trireme/nn/batch_norm.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/nn/patches.hpp"

/// The nodes of ONNX that layers of images become, as of the others in nn/onnx_layers.hpp. Images are
/// (batch, channels, height, width) in a graph, and a convolution's weights are turned to (outputs, channels, height,
/// width) by a node, which runtimes compute once.
namespace trireme::nn {

/// The input `pixel_values`, as onnx_walk::pixels() makes it, cut into squares.
std::string onnx_nodes(onnx_walk& at, patches const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, positions const& what, std::string const& x);
/// `pixel_values` where the walk begins with planes, else the input `inputs`, (batch, numbers).
std::string onnx_nodes(onnx_walk& at, features const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, image const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, conv2d const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, max_pool2d const& what, std::string const& x);
std::string onnx_nodes(onnx_walk& at, average_pool2d const& what, std::string const& x);
/// With the running statistics.
std::string onnx_nodes(onnx_walk& at, batch_norm const& what, std::string const& x);

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/onnx_images.ipp"
#endif
