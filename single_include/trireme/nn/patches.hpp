// Trireme 0.1.0: trireme/nn/patches.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: de3bf96bd3b1c38dd6be64dc48a34b3608cbe03ffb43c1d84caa76dc10232ed8
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/ops/sets/images.hpp"

// ---- trireme/nn/patches.hpp
#include <cstdint>
#include <string>
#include <type_traits>

namespace trireme::nn {

/// The first layer of a model that reads images piece by piece: each square of `side` x `side` pixels is a row, in
/// the order of reading. A row of zeros may stand before those of each sample, for a token that stands for all of it.
///
/// Shapes   inputs (B, height, width, channels) float from the batch, channels innermost; y (B*rows_of_sample(),
///          side*side*channels). A model that begins with it says rows_of_sample(), see contract/model.hpp.
/// Errors   config_error for images that are not cut into whole squares, and for samples of another size.
struct patches {
  TRIREME_NEEDS_KERNELS("nn::patches", images);
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
  TRIREME_NEEDS_KERNELS("nn::positions", images);
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
    with_numbers<Env>(inputs, "inputs", [&](auto numbers) {
      if constexpr (std::is_same_v<typename decltype(numbers)::value_type, value>) {
        cut(y, numbers);
      } else {
        auto const mark = pass.scratch.mark();
        auto const images = pass.scratch.template take<value>({inputs.size()});
        kernels::copy(images, numbers.flat());
        cut(y, images);
        pass.scratch.rewind(mark);
      }
    });
    return {y, true};
  }
  view input_gradient(pass<Env>& pass, view dy) override {
    auto const dx = pass.take({pass.batch.count(), what_.images.size()});
    kernels::fill(dx, 0.0);
    ops::images_on<space>::patches_backward(dx, dy, window(), what_.first ? 1 : 0);
    return dx;
  }

 private:
  template <class Images>
  void cut(view y, Images images) const {
    ops::images_on<space>::patches(y, tensor_view<value const, space>(images), window(), what_.first ? 1 : 0);
  }
  [[nodiscard]] ops::window window() const {
    return {what_.images.height, what_.images.width, what_.images.channels, what_.side, what_.side, 0};
  }
  void do_place(placing<Env>& at, layer_step const&) override { at.width = what_.width(); }
};

template <class Env>
class layer_node<Env, positions> final : public library_node<Env, positions> {
  using library_node<Env, positions>::what_;
  using images = ops::images_on<typename Env::space>;

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
    images::add_positions(y, x.v, table_.value, token_.value, pass.group.rows_here(rows_of(pass)).first);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env>, view, view dy, target<Env> to, half) override {
    images::add_positions_backward(to.into, dy, table_.gradient, token_.gradient,
                                   pass.group.rows_here(rows_of(pass)).first, to.accumulate);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    table_.info = {at.name + ".position_embeddings", {what_.rows, at.width}, what_.start, true};
    token_.info = {at.name + ".cls_token", {at.width}, what_.start, true};
  }
  parameter<Env> table_{}, token_{};
};

}  // namespace detail

}  // namespace trireme::nn
