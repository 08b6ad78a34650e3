// Trireme 0.1.0: trireme/nn/images.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: aa80415eaf764c51eae494a805c9f85d186b1d3d7f47d634bd2633e1e06e86fa
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/images.hpp"

// ---- trireme/nn/images.hpp
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

namespace trireme::nn {

// Layers of images. A row is an image, (height, width, channels) with channels innermost; nn::image says of which shape
// those are that come in. Where a tensor group or a sequence cuts rows, each rank works on images of its own; weights
// are whole on each.

/// A convolution: y[i, j, o] = bias[o] + the sum over a window of x times weight[., ., ., o].
///
/// Shapes   x (rows, height * width * channels), y (rows, places * places * outputs), where there are
///          (pixels + 2 * padding - kernel) / stride + 1 places along so many pixels; weight (kernel, kernel, channels,
///          outputs), bias (outputs). PyTorch's weight is (outputs, channels, kernel, kernel).
/// Bytes    keeps x. What the windows of some images see, at most 2 MiB of float, or that of one image if it is more,
///          is scratch memory in each pass; a window of one pixel needs none.
/// Numerics as a product of matrices: see ops::host_products. Starts as PyTorch's does, uniform within
///          1 / sqrt(kernel * kernel * channels).
/// Errors   config_error for sizes that are not positive, padding that is negative or not below the kernel, input that
///          nobody says is images, and a kernel larger than the padded image.
struct conv2d {
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
/// Bytes    keeps x, and looks for the largest numbers again in the backward pass: the first one has the gradient.
/// Errors   as conv2d.
struct max_pool2d {
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
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t kernel = 0;  ///< 0: the whole image, which must be square
  std::int64_t stride = 0;  ///< 0: as large as the kernel
  friend bool operator==(average_pool2d const&, average_pool2d const&) = default;
};

namespace detail {

/// Throws config_error unless rows are images of the shape that the layers before have told.
template <class Env>
void expect_images(char const* layer, placing<Env> const& at) {
  if (at.image.size() == at.width && at.width > 0) return;
  throw config_error(text("trireme::nn::", layer, " ", at.name, ": no layer before it says what images its rows of ",
                          how_many(at.width, "number"), agreeing(at.width, " is", " are"),
                          "; put nn::image{height, width, channels} of that size before it"));
}

/// The window of a layer that stands there; what comes out of it is the image of the layers behind.
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
class image_node final : public node<Env> {
 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit image_node(nn::image const& what) : what_(what) { this->facts_.in_place = true; }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] bool idle(pass<Env> const&) const override { return true; }
  held<Env> forward(pass<Env>&, held<Env> x, arena<space>&, view) override { return x; }

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
  nn::image what_;
};

template <class Env>
class conv2d_node final : public node<Env> {
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;
  using images = ops::images_on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit conv2d_node(conv2d const& what) : what_(what) {
    this->facts_ = {.weights = true, .adds_residual = true, .accumulates = true};
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  void visit(parameter_visitor<Env> const& each) override {
    each(weight_);
    if (what_.bias) each(bias_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>& to, view residual) override {
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
    auto& weights = packed(pass);
    bool const direct = at_.one_pixel();
    if (!to.accumulate && !direct) kernels::fill(to.into, 0.0);
    for_each_part(pass, to.into, [&](std::int64_t first, view part, view seen) {
      auto const d =
          pass.operand(weight_.info.name, product_operand::role::gradient, as_places(dy.rows(first, part.extent(0))));
      kernels::linear_backward_input(seen, d, weights, {ops::activation::none, view{}, direct && to.accumulate});
      if (!direct) images::patches_backward(part, seen, at_);
    });
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view dy) override {
    auto const dw = weight_.gradient.reshaped({at_.numbers(), what_.outputs});
    for_each_part(pass, x.get(pass), [&](std::int64_t first, view part, view seen) {
      if (!at_.one_pixel()) images::patches(seen, part, at_);
      auto const d = as_places(dy.rows(first, part.extent(0)));
      kernels::linear_backward_weight(
          dw, bias_.gradient, pass.operand(weight_.info.name, product_operand::role::input, seen),
          pass.operand(weight_.info.name, product_operand::role::gradient, d), ops::orientation::in_out);
    });
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const channels = at.image.channels;
    at_ = place_window("conv2d", at, what_.kernel, what_.stride, what_.padding, what_.outputs);
    initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(at_.numbers()))};
    weight_.info = {at.name + ".weight", {what_.kernel, what_.kernel, channels, what_.outputs}, start, true};
    bias_.info = {at.name + ".bias", {what_.outputs}, start, false};
  }
  auto& packed(pass<Env>& pass) {
    return packed_weights(packed_, pass, weight_.info.name, weight_.value.reshaped({at_.numbers(), what_.outputs}));
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

  conv2d what_;
  ops::window at_;
  parameter<Env> weight_{}, bias_{};
  ops::weights<value, space> packed_;
};

/// Both kinds of pooling.
template <class Env, class Pool>
class pool_node final : public node<Env> {
  using images = ops::images_on<typename Env::space>;
  static constexpr bool largest = std::is_same_v<Pool, max_pool2d>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit pool_node(Pool const& what) : what_(what) { this->facts_.accumulates = true; }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  held<Env> forward(pass<Env>&, held<Env> x, arena<space>& to, view) override {
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
  Pool what_;
  ops::window at_;
};

}  // namespace detail

template <class Env>
struct node_of<Env, image> {
  using type = detail::image_node<Env>;
};
template <class Env>
struct node_of<Env, conv2d> {
  using type = detail::conv2d_node<Env>;
};
template <class Env>
struct node_of<Env, max_pool2d> {
  using type = detail::pool_node<Env, max_pool2d>;
};
template <class Env>
struct node_of<Env, average_pool2d> {
  using type = detail::pool_node<Env, average_pool2d>;
};

}  // namespace trireme::nn
