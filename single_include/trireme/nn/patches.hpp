// Trireme 0.1.0: trireme/nn/patches.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d57e8bc237064af859240292ee03dcb36f7d486fdf79c42a37b9b17071ab5b13
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/images.hpp"

// ---- trireme/nn/patches.hpp
#include <algorithm>
#include <cstdint>
#include <string>

namespace trireme::nn {

/// The first layer of a model that reads images piece by piece: each square of `side` x `side` pixels is a row, in
/// the order of reading. A row of zeros may stand before those of each sample, for a token that stands for all of it.
///
/// Shapes   inputs (B, height, width, channels) float from the batch, channels innermost; y (B*rows_of_sample(),
///          side*side*channels). A model that begins with it says rows_of_sample(), see contract/model.hpp.
/// Errors   config_error for images that are not cut into whole squares, and for samples of another size.
struct patches {
  static constexpr layer_traits traits{.does = flow::source};
  static constexpr bool reads_numbers = true;  // which have gradients
  nn::image images{};
  std::int64_t side = 0;
  bool first = false;  ///< with the row of zeros
  friend bool operator==(patches const&, patches const&) = default;

  [[nodiscard]] std::int64_t count() const noexcept { return (images.height / side) * (images.width / side); }
  [[nodiscard]] std::int64_t rows_of_sample() const noexcept { return count() + (first ? 1 : 0); }
  [[nodiscard]] std::int64_t width() const noexcept { return side * side * images.channels; }
};

/// Learned positions: y[b,t] = x[b,t] + table[t]; with `first`, y[b,0] = token + table[0], whatever x[b,0] is.
///
/// Shapes   x, y (B*rows, width); the table `position_embeddings` (rows, width), the token `cls_token` (width).
/// Errors   config_error for samples of another number of rows.
struct positions {
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t rows = 0;
  bool first = false;
  initial start{initial::distribution::normal, 0.02};
  friend bool operator==(positions const&, positions const&) = default;
};

namespace detail {

template <class Env>
class layer_node<Env, patches> final : public library_node<Env, patches> {
  using library_node<Env, patches>::what_;
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit layer_node(patches const& what) : library_node<Env, patches>(what) {
    auto const& [height, width, channels] = what.images;
    if (height >= 1 && width >= 1 && channels >= 1 && what.side >= 1 && height % what.side == 0 &&
        width % what.side == 0)
      return;
    throw config_error(text("trireme::nn::patches: images of ", height, " x ", width, " x ", channels,
                            " are not cut into whole squares of ", what.side, " x ", what.side, " pixels"));
  }
  held<Env> forward(pass<Env>& pass, held<Env>, arena_of<Env>& to, view) override {
    auto const& inputs = pass.batch.inputs;
    auto const count = pass.batch.count(), rows = what_.rows_of_sample();
    if (inputs.size() != count * what_.images.size()) {
      throw config_error(text("trireme::nn::patches: inputs of shape ", to_string(inputs.extents), " for ",
                              this->name(), ", which takes ", how_many(what_.images.size(), "number"), " a sample"));
    }
    auto const y = to.template take<value>({count * rows, what_.width()});
    auto const mark = pass.scratch.mark();
    auto const image = pass.scratch.template take<value>({1, what_.images.size()});
    for (std::int64_t b = 0; b < count; ++b) {
      with_numbers<Env>(inputs, "inputs", [&](auto numbers) {
        kernels::copy(image.flat(), numbers.flat().flat(b * image.size(), image.size()));
      });
      if (what_.first) kernels::fill(y.rows(b * rows, 1), 0.0);
      ops::images_on<space>::patches(y.rows((b + 1) * rows - what_.count(), what_.count()), image, window());
    }
    pass.scratch.rewind(mark);
    return {y, true};
  }
  view input_gradient(pass<Env>& pass, view dy) override {
    auto const count = pass.batch.count(), rows = what_.rows_of_sample();
    auto const dx = pass.take({count, what_.images.size()});
    kernels::fill(dx, 0.0);
    for (std::int64_t b = 0; b < count; ++b) {
      ops::images_on<space>::patches_backward(dx.rows(b, 1), dy.rows((b + 1) * rows - what_.count(), what_.count()),
                                              window());
    }
    return dx;
  }

 private:
  [[nodiscard]] ops::window window() const {
    return {what_.images.height, what_.images.width, what_.images.channels, what_.side, what_.side, 0};
  }
  void do_place(placing<Env>& at, layer_step const&) override { at.width = what_.width(); }
};

template <class Env>
class layer_node<Env, positions> final : public library_node<Env, positions> {
  using library_node<Env, positions>::what_;
  using number = typename Env::accumulate;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  using library_node<Env, positions>::library_node;
  void visit(parameter_visitor<Env> const& each) override {
    if (what_.first) each(token_);
    each(table_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    if (positions_of(pass) != what_.rows) {
      throw config_error(text("trireme::nn::positions ", table_.info.name, ": samples of ", positions_of(pass),
                              " rows for a table of ", what_.rows));
    }
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    for_each_stretch(pass, [&](std::int64_t row, interval at, bool token) {
      auto const table = table_.value.rows(at.first, at.count);
      if (token)
        kernels::each(y.rows(row, 1), token_.value, table, add);
      else
        kernels::each(y.rows(row, at.count), x.v.rows(row, at.count), table, add);
    });
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env>, view, view dy, target<Env> to, half) override {
    for_each_stretch(pass, [&](std::int64_t row, interval at, bool token) {
      auto const d = dy.rows(row, at.count), into = to.into.rows(row, at.count);
      auto const table = table_.gradient.rows(at.first, at.count);
      kernels::each(table, table, d, add);
      if (token) {
        kernels::each(token_.gradient, token_.gradient, d, add);
        if (!to.accumulate) kernels::fill(into, 0.0);
      } else if (to.accumulate) {
        kernels::add(into, d);
      } else {
        kernels::copy(into, d);
      }
    });
  }

 private:
  static constexpr auto add = [](number a, number b) { return a + b; };

  void do_place(placing<Env>& at, layer_step const&) override {
    table_.info = {at.name + ".position_embeddings", {what_.rows, at.width}, what_.start, true};
    token_.info = {at.name + ".cls_token", {at.width}, what_.start, true};
  }
  // Calls f(row that lies here, positions, whether it is the token's) for rows of one sample behind each other.
  template <class F>
  void for_each_stretch(pass<Env> const& pass, F const& f) const {
    auto const here = pass.group.rows_here(rows_of(pass));
    for (auto row = here.first; row < here.first + here.count;) {
      auto const position = row % what_.rows;
      bool const token = what_.first && position == 0;
      auto const n = token ? 1 : std::min(what_.rows - position, here.first + here.count - row);
      f(row - here.first, interval{position, n}, token);
      row += n;
    }
  }
  parameter<Env> table_{}, token_{};
};

}  // namespace detail

}  // namespace trireme::nn
