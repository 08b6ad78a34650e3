// Trireme 0.1.0: trireme/nn/onnx_images.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 89e9fb2e0b2f301ec5900b3c50c1823e2778e10dd6656375630278a0f3312862
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/batch_norm.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/nn/patches.hpp"
#include "trireme/ops/images.hpp"

// ---- trireme/nn/onnx_images.hpp
#include <string>

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

#ifndef TRIREME_NN_ONNX_IMAGES_IPP_INCLUDED
#define TRIREME_NN_ONNX_IMAGES_IPP_INCLUDED

// ---- trireme/nn/onnx_images.ipp
#include <cstdint>
#include <vector>

namespace trireme::nn {

namespace detail {

using integers = std::vector<std::int64_t>;

/// What the layer's window makes of images: their shape becomes that of the result.
TRIREME_BODY formats::onnx::attributes onnx_window(onnx_walk& at, std::int64_t kernel, std::int64_t stride,
                                                   std::int64_t padding, std::int64_t outputs) {
  ops::window const it{at.image.height, at.image.width, at.image.channels, kernel, stride, padding};
  at.image = {it.rows(), it.columns(), outputs};
  at.width = at.image.size();
  formats::onnx::attributes out{{"kernel_shape", integers{kernel, kernel}}, {"strides", integers{stride, stride}}};
  if (padding > 0) out.emplace_back("pads", integers{padding, padding, padding, padding});
  return out;
}

}  // namespace detail

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, patches const& what, std::string const&) {
  auto& graph = at.graph;
  auto const side = what.side, channels = what.images.channels;
  auto const pixels = at.pixels(what.images);
  auto const cut = at.reshaped(pixels, {0, channels, what.images.height / side, side, what.images.width / side, side});
  at.planes = false;
  at.image = {};
  at.width = what.width();
  auto const rows = at.reshaped(at.transposed(cut, {0, 2, 4, 3, 5, 1}), {0, what.count(), at.width});
  if (!what.first) return rows;
  auto const one_before = graph.constant_of(detail::integers{1, 0});
  return graph.add("Pad", {rows, one_before, graph.constant_of(0.0F), graph.constant_of(detail::integers{1})});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, positions const& what, std::string const& x) {
  auto& graph = at.graph;
  auto rows = at.rows_of(x);
  if (what.first) {
    auto const others = graph.constant_of(detail::integers{1}), end = graph.constant_of(detail::integers{what.rows});
    auto const behind = graph.add("Slice", {rows, others, end, graph.constant_of(detail::integers{1})});
    auto const batch = graph.add("Shape", {rows}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
    auto const one =
        graph.add("Concat", {batch, graph.constant_of(detail::integers{1, 1})}, {{"axis", std::int64_t{0}}});
    auto const token = graph.add("Expand", {at.parameter("cls_token", {at.width}), one});
    rows = graph.add("Concat", {token, behind}, {{"axis", std::int64_t{1}}});
  }
  return graph.add("Add", {rows, at.parameter("position_embeddings", {what.rows, at.width})});
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, features const& what, std::string const&) {
  if (at.planes) return at.pixels(at.image);
  at.graph.inputs.push_back({"inputs", formats::onnx::element::f32, {std::string("batch_size"), what.outputs}});
  at.width = what.outputs;
  return "inputs";
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, image const& what, std::string const& x) {
  auto const rows = at.planes && at.image == what ? x : at.rows_of(x);
  at.image = what;
  return rows;
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, conv2d const& what, std::string const& x) {
  auto const planes = at.planes_of(x);
  auto const weight = at.parameter("weight", {what.kernel, what.kernel, at.image.channels, what.outputs});
  std::vector<std::string> from{planes, at.transposed(weight, {3, 2, 0, 1})};
  if (what.bias) from.push_back(at.parameter("bias", {what.outputs}));
  return at.graph.add("Conv", from, detail::onnx_window(at, what.kernel, what.stride, what.padding, what.outputs));
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, max_pool2d const& what, std::string const& x) {
  auto const planes = at.planes_of(x);
  auto const stride = what.stride > 0 ? what.stride : what.kernel;
  return at.graph.add("MaxPool", {planes},
                      detail::onnx_window(at, what.kernel, stride, what.padding, at.image.channels));
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, average_pool2d const& what, std::string const& x) {
  auto const planes = at.planes_of(x);
  auto const kernel = what.kernel > 0 ? what.kernel : at.image.height;
  auto const stride = what.stride > 0 ? what.stride : kernel;
  return at.graph.add("AveragePool", {planes}, detail::onnx_window(at, kernel, stride, 0, at.image.channels));
}

TRIREME_BODY std::string onnx_nodes(onnx_walk& at, batch_norm const& what, std::string const& x) {
  auto& graph = at.graph;
  bool const images = at.width > 0 && at.image.size() == at.width;
  auto const input = images ? at.planes_of(x) : x;
  shape const channels{images ? at.image.channels : at.width};
  auto const gain = at.parameter("weight", channels), bias = at.parameter("bias", channels);
  auto const mean = at.parameter("running_mean", channels), variance = at.parameter("running_var", channels);
  if (images)
    return graph.add("BatchNormalization", {input, gain, bias, mean, variance},
                     {{"epsilon", static_cast<float>(what.epsilon)}});
  auto const root = graph.add("Sqrt", {at.plus(variance, what.epsilon)});
  auto const normal = graph.add("Div", {graph.add("Sub", {input, mean}), root});
  return graph.add("Add", {graph.add("Mul", {normal, gain}), bias});
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_ONNX_IMAGES_IPP_INCLUDED
