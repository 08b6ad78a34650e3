// Trireme 0.1.0: trireme/nn/images.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 83d23a38e847aa7c5cf9cacafbbd5e1d66e0240609c7a6924fcd08f38a469886
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/images.hpp"
#include "trireme/ops/sets/images.hpp"

// ---- trireme/nn/images.hpp
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

namespace trireme::nn {

// Layers of images. A row is an image, (height, width, channels) with channels innermost; nn::image states the shape of
// the first ones. Where a tensor group or a sequence cuts rows, each rank works on its own images; every rank has whole
// weights.

/// A convolution: y[i, j, o] = bias[o] + the sum over a window of x times weight[., ., ., o].
///
/// Shapes   x (rows, height * width * channels), y (rows, places * places * outputs), where there are
///          (pixels + 2 * padding - kernel) / stride + 1 places along so many pixels; weight (kernel, kernel, channels,
///          outputs), bias (outputs). PyTorch's weight is (outputs, channels, kernel, kernel).
/// Bytes    keeps x. Each pass copies the windows of a few images to scratch memory, at most 2 MiB of float or one
///          image's windows; a window of one pixel needs none.
/// Numerics as a product of matrices: see ops::host_products. Starts as PyTorch's does, uniform within
///          1 / sqrt(kernel * kernel * channels).
/// Errors   config_error for sizes that are not positive, padding that is negative or not below the kernel, input
///          without an nn::image before it, and a kernel larger than the padded image.
struct conv2d {
  TRIREME_NEEDS_KERNELS("nn::conv2d", images);
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t outputs = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool bias = true;
  friend bool operator==(conv2d const&, conv2d const&) = default;
};

/// The largest number of each channel in each place of a window; padding is never the largest.
///
/// Bytes    keeps x, and searches the largest numbers again in the backward pass. Of equal ones the first gets the
///          gradient.
/// Errors   as conv2d.
struct max_pool2d {
  TRIREME_NEEDS_KERNELS("nn::max_pool2d", images);
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t kernel = 2;
  std::int64_t stride = 0;  ///< 0: as large as the kernel
  std::int64_t padding = 0;
  friend bool operator==(max_pool2d const&, max_pool2d const&) = default;
};

/// The mean of each channel in each place of a window.
///
/// Numerics summed in the accumulate type and rounded once.
/// Errors   as conv2d; and for a kernel of 0, images that are not square.
struct average_pool2d {
  TRIREME_NEEDS_KERNELS("nn::average_pool2d", images);
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t kernel = 0;  ///< 0: the whole image, which must be square
  std::int64_t stride = 0;  ///< 0: as large as the kernel
  friend bool operator==(average_pool2d const&, average_pool2d const&) = default;
};

namespace detail {

/// Throws config_error unless rows are images of the shape that the layers before have set.
template <class Env>
void expect_images(char const* layer, placing<Env> const& at) {
  if (at.image.size() == at.width && at.width > 0) return;
  throw config_error(text("trireme::nn::", layer, " ", at.name, ": no layer before it says what images its rows of ",
                          how_many(at.width, "number"), agreeing(at.width, " is", " are"),
                          "; put nn::image{height, width, channels} of that size before it"));
}

/// The window of the layer that is placed; its result becomes the image of the layers behind.
template <class Env>
[[nodiscard]] ops::window place_window(char const* layer, placing<Env>& at, std::int64_t kernel, std::int64_t stride,
                                       std::int64_t padding, std::int64_t outputs) {
  expect_images(layer, at);
  auto const& in = at.image;
  if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel || outputs < 1) {
    throw config_error(text("trireme::nn::", layer, " ", at.name, ": kernel ", kernel, ", stride ", stride,
                            ", padding ", padding, ", ", outputs,
                            " outputs; padding is at least 0 and less than the kernel, and "
                            "nothing else is below 1"));
  }
  ops::window const it{in.height, in.width, in.channels, kernel, stride, padding};
  if (it.count() == 0) {
    throw config_error(text("trireme::nn::", layer, " ", at.name, ": a kernel of ", kernel,
                            " does not fit into images of ", in.height, " x ", in.width, " with padding ", padding));
  }
  at.image = {it.rows(), it.columns(), outputs};
  at.width = at.image.size();
  return it;
}

template <class Env>
class layer_node<Env, image> final : public library_node<Env, image> {
  using library_node<Env, image>::what_;

 public:
  using typename node<Env>::view;

  explicit layer_node(image const& what) : library_node<Env, image>(what, {.in_place = true}) {}
  [[nodiscard]] bool idle(pass<Env> const&) const override { return true; }
  held<Env> forward(pass<Env>&, held<Env> x, arena_of<Env>&, view) override { return x; }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const& [height, width, channels] = what_;
    if (height < 1 || width < 1 || channels < 1 || what_.size() != at.width) {
      throw config_error(text("trireme::nn::image: rows of ", how_many(at.width, "number"), " of ", at.name,
                              " are not images of ", height, " x ", width, " x ", channels,
                              " (height, width, channels)"));
    }
    at.image = what_;
  }
};

template <class Env>
class layer_node<Env, conv2d> final : public library_node<Env, conv2d> {
  using library_node<Env, conv2d>::what_;
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;
  using images = ops::images_on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit layer_node(conv2d const& what) : library_node<Env, conv2d>(what, {.weights = true, .adds_residual = true}) {}
  void visit(parameter_visitor<Env> const& each) override {
    each(weight_);
    if (what_.bias) each(bias_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view residual) override {
    auto const y = to.template take<value>({x.v.extent(0), at_.count() * what_.outputs});
    auto& weights = packed(pass);
    for_each_part(pass, x.v, [&](std::int64_t first, view part, view seen) {
      if (!at_.one_pixel()) images::patches(seen, part, at_);
      auto const n = part.extent(0);
      kernels::linear(
          as_places(y.rows(first, n)), pass.operand(weight_.info.name, product_operand::role::input, seen), weights,
          {bias_.value, ops::activation::none, view{}, residual.empty() ? view{} : residual.rows(first, n)});
    });
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env>, view, view dy, target<Env> to, half) override {
    auto& weights = packed(pass, product_operand::product::input_gradient);
    bool const direct = at_.one_pixel();
    if (!to.accumulate && !direct) kernels::fill(to.into, 0.0);
    for_each_part(pass, to.into, [&](std::int64_t first, view part, view seen) {
      auto const d = pass.operand(weight_.info.name, product_operand::role::gradient,
                                  as_places(dy.rows(first, part.extent(0))), product_operand::product::input_gradient);
      kernels::linear_backward_input(seen, d, weights, {ops::activation::none, view{}, direct && to.accumulate});
      if (!direct) images::patches_backward(part, seen, at_);
    });
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view dy) override {
    auto const dw = weight_.gradient.reshaped({at_.numbers(), what_.outputs});
    for_each_part(pass, x.get(pass), [&](std::int64_t first, view part, view seen) {
      if (!at_.one_pixel()) images::patches(seen, part, at_);
      auto const d = as_places(dy.rows(first, part.extent(0)));
      backward_weights(pass, weight_.info.name, dw, bias_.gradient, seen, d);
    });
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const channels = at.image.channels;
    at_ = place_window("conv2d", at, what_.kernel, what_.stride, what_.padding, what_.outputs);
    at.counted.product(at_.count() * at_.numbers(), what_.outputs, at.forms_dx);
    initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(at_.numbers()))};
    weight_.info = {at.name + ".weight", {what_.kernel, what_.kernel, channels, what_.outputs}, start, true};
    bias_.info = {at.name + ".bias", {what_.outputs}, start, false};
  }
  auto& packed(pass<Env>& pass, product_operand::product of = product_operand::product::forward) {
    return packed_weights(packed_, pass, weight_.info.name, weight_.value.reshaped({at_.numbers(), what_.outputs}), of);
  }
  [[nodiscard]] view as_places(view y) const { return y.reshaped({y.size() / what_.outputs, what_.outputs}); }

  // Calls f(first image, these images, room for what the windows see of them) for some images after the others; for
  // windows of one pixel the room is the images themselves. A pass over all of them at once would take kernel * kernel
  // times the memory of the images.
  template <class F>
  void for_each_part(pass<Env>& pass, view x, F const& f) {
    constexpr std::int64_t numbers = std::int64_t{1} << 19;
    auto const count = x.extent(0), each = std::max<std::int64_t>(1, numbers / (at_.count() * at_.numbers()));
    for (std::int64_t first = 0; first < count; first += each) {
      auto const n = std::min(each, count - first);
      auto const part = x.rows(first, n);
      auto const mark = pass.scratch.mark();
      shape const places{n * at_.count(), at_.numbers()};
      f(first, part, at_.one_pixel() ? part.reshaped(places) : pass.scratch.template take<value>(places));
      pass.scratch.rewind(mark);
    }
  }

  ops::window at_;
  parameter<Env> weight_{}, bias_{};
  ops::weights<value, space> packed_;
};

/// Both kinds of pooling.
template <class Env, class Pool>
requires(std::is_same_v<Pool, max_pool2d> || std::is_same_v<Pool, average_pool2d>) class layer_node<Env, Pool> final
    : public library_node<Env, Pool> {
  using library_node<Env, Pool>::what_;
  using images = ops::images_on<typename Env::space>;
  static constexpr bool largest = std::is_same_v<Pool, max_pool2d>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, Pool>::library_node;
  held<Env> forward(pass<Env>&, held<Env> x, arena_of<Env>& to, view) override {
    auto const y = to.template take<typename Env::compute>({x.v.extent(0), at_.count() * at_.channels});
    if constexpr (largest) {
      images::max_pool(y, x.v, at_);
    } else {
      images::average_pool(y, x.v, at_);
    }
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    if (!to.accumulate) ops::on<space>::fill(to.into, 0.0);
    if constexpr (largest) {
      images::max_pool_backward(to.into, dy, x.get(pass), at_);
    } else {
      images::average_pool_backward(to.into, dy, at_);
    }
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto kernel = what_.kernel;
    std::int64_t padding = 0;
    if constexpr (largest) {
      padding = what_.padding;
    } else if (kernel == 0) {
      expect_images("average_pool2d", at);
      kernel = at.image.height;
      if (at.image.width != kernel) {
        throw config_error(text("trireme::nn::average_pool2d ", at.name, ": images of ", at.image.height, " x ",
                                at.image.width, " are not square; say .kernel"));
      }
    }
    at_ = place_window(largest ? "max_pool2d" : "average_pool2d", at, kernel, what_.stride == 0 ? kernel : what_.stride,
                       padding, at.image.channels);
  }
  ops::window at_;
};

}  // namespace detail

}  // namespace trireme::nn
