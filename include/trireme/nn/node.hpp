#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/placement.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// How columns are cut over a tensor group: `fused` matrices lie side by side, and each is cut between `granules` of
/// equal width (the heads of attention, for instance).
struct columns {
  std::int64_t granules = 1;
  std::int64_t fused = 1;
  shape tensors{};  ///< parameter_info::fused of the product that makes these columns
  friend bool operator==(columns const&, columns const&) = default;
};

/// Says that rows are images: (height, width, channels), channels innermost. A layer of its own, which does nothing:
/// layers that work on images follow it, and tell each other what becomes of the shape.
///
/// Errors   config_error for rows of another number of numbers.
struct image {
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t height = 0, width = 0, channels = 0;
  friend bool operator==(image const&, image const&) = default;

  [[nodiscard]] constexpr std::int64_t size() const noexcept { return height * width * channels; }
};

/// Low-rank changes of products; nn::lora says what they are.
struct lora_options {
  std::int64_t rank = 8;     ///< 0: no changes, and nothing is frozen
  double alpha = 16;         ///< changes are multiplied by alpha / rank
  std::string layers = "*";  ///< which linear layers: patterns of their names, or of the ends of these behind a dot,
                             ///< separated by spaces; * stands for any letters, ? for one: "self_attn.* down_proj"
  friend bool operator==(lora_options const&, lora_options const&) = default;
};

template <class Env>
class loss_node;

/// What a layer is told when its run state is made. It is handed from layer to layer, from left to right, and each
/// layer writes what the next one needs.
template <class Env>
struct placing {
  rank_groups<Env> const& groups;  ///< who shares this unit's work
  share own;                       ///< this rank's share of the tensor group
  std::string name{};              ///< of the layer: its parameters are `name` + ".weight" and so on
  std::int64_t width = 0;          ///< numbers in a whole row of the input; a layer sets it to that of its result
  nn::image image{};               ///< that a row of the input is; of another size than `width`: it is none
  std::uint32_t site = 0;          ///< the next dropout site: take_site()
  std::vector<std::uint32_t> dropping{};  ///< those that drop numbers
  columns cut{};                          ///< of the input, where it lies in columns; set by the layer that made them
  columns wanted{};                       ///< of the result of a product with role::spread
  ops::activation act = ops::activation::none;  ///< the activation behind, if this layer does it
  loss_node<Env>* loss = nullptr;               ///< the loss behind, if this layer does it
  bool aside = false;                           ///< a loss here is added to that of the model, whose rows are counted
  lora_options const* lora = nullptr;           ///< all parameters are frozen, and these changes are trained instead

  /// A dropout site for a layer that drops numbers with this probability: another one in each call.
  [[nodiscard]] std::uint32_t take_site(double probability) {
    if (probability > 0) dropping.push_back(site);
    return site++;
  }
  /// This rank's columns of each of the fused matrices that make up a row of `whole` numbers.
  [[nodiscard]] interval part(columns const& how, std::int64_t whole) const noexcept {
    auto const each = whole / how.fused / how.granules;
    auto const here = own.of(how.granules);
    return {here.first * each, here.count * each};
  }
};

namespace detail {

template <class Env>
using view_of = tensor_view<typename Env::compute, typename Env::space>;

/// Rows of the activations of a micro-batch, at the positions that lie here: as many a sample as the model says, or one
/// a token if the inputs are int32, else one a sample.
template <class Env>
[[nodiscard]] std::int64_t rows_of(pass<Env> const& pass) {
  auto const& inputs = pass.batch.inputs;
  if (pass.rows_of_sample > 0) return pass.batch.count() * pass.rows_of_sample;
  return inputs.type == dtype::i32 ? inputs.extents.size() : pass.batch.count();
}

/// Positions of each sample that lie here.
template <class Env>
[[nodiscard]] std::int64_t positions_of(pass<Env> const& pass) {
  auto const count = pass.batch.count();
  return count == 0 ? 1 : rows_of(pass) / count;
}

/// A layer's result in the forward pass.
template <class Env>
struct held {
  view_of<Env> v{};
  bool ours = false;   ///< nobody reads this memory later: the layer that gets it may write to it
  bool entry = false;  ///< it is the chain's own input, which layers have passed on unchanged
};

/// How long the memory of a gradient lasts: until the unit returns (scratch); until the unit before has it and may
/// write to it (passing); until the micro-batch is done (kept).
enum class memory { scratch, passing, kept };

/// A gradient in the backward pass.
template <class Env>
struct gradient {
  view_of<Env> v{};
  bool ours = false;  ///< the layer that gets it may write to it
  memory lies = memory::scratch;
  bool through = false;  ///< the derivative of the activation fused into the layer that gets it is already applied
};

/// A layer's input in the backward pass. Rows that forward gathered are gathered again only if the layer calls get().
template <class Env>
struct layer_input {
  view_of<Env> here{};
  bool crosses = false;  ///< its rows are gathered
  [[nodiscard]] view_of<Env> get(pass<Env>& pass) const {
    return crosses ? pass.group.gather(here, rows_of(pass), pass.scratch) : here;
  }
  [[nodiscard]] shape extents(pass<Env> const& pass) const {
    return crosses ? shape{rows_of(pass), here.extent(1)} : here.extents();
  }
};

/// Where a layer writes its input's gradient. `act` and `before` are given only to nodes whose facts say does_slope,
/// `accumulate` only to those that say accumulates.
template <class Env>
struct target {
  view_of<Env> into{};
  bool accumulate = false;
  ops::activation act = ops::activation::none;
  view_of<Env> before{};
};

/// The activation that is fused into a product, and its input, which is kept for the derivative.
template <class Env>
struct fused_activation {
  ops::activation act = ops::activation::none;
  view_of<Env> before{};
};

/// When backward forms the gradients of parameters: with that of the input, in the second half, or not at all, because
/// only that of the model's inputs is asked for.
enum class half { at_once, later, never };

/// What a node can do, and what it needs; the chain does the rest.
struct node_facts {
  bool weights = false;        ///< backward_weight(pass, x, dy): the chain keeps x and dy for it
  bool inside = false;         ///< contains chains, which keep what their second half needs; it reads x then
  bool in_place = false;       ///< has backward_in_place(), which turns dy into dx, and no backward_input()
  bool reads_y = false;        ///< backward_input reads the result
  bool adds_residual = false;  ///< forward can add the residual to its result
  bool accumulates = false;    ///< backward_input can add to where dx goes
  bool does_slope = false;     ///< and multiply dx by an activation's derivative
  bool replicated = false;     ///< dx is the same on all ranks, not a term of a sum
  bool source = false;         ///< has no input, and so no dx
  bool loss = false;           ///< its result is the loss; forward has formed dx, and starts() returns it
};

/// What a node saves for each micro-batch in flight.
template <class Saved>
class per_slot {
 public:
  template <class Pass>
  [[nodiscard]] Saved& operator[](Pass const& pass) {
    if (pass.slot >= all_.size()) all_.resize(pass.slot + 1);
    return all_[pass.slot];
  }

 private:
  std::vector<Saved> all_ = std::vector<Saved>(1);
};

template <class Env>
using parameter_visitor = std::function<void(parameter<Env>&)>;

}  // namespace detail

/// A layer, or a composition of layers, in a unit's run state. Chains, residuals and products use this interface alone,
/// so they are compiled once for an environment, however many models a program has.
///
/// A single layer knows nothing of its neighbours, or of gathers and sums of rows over ranks: the chain does them.
template <class Env>
class node {
 public:
  using view = detail::view_of<Env>;
  using space = typename Env::space;

  node() = default;
  node(node const&) = delete;
  node& operator=(node const&) = delete;
  virtual ~node() = default;

  [[nodiscard]] virtual layer_says says() const = 0;
  /// Which activation this node is, so that the product before it can do it; none of all other nodes.
  [[nodiscard]] virtual ops::activation activation() const { return ops::activation::none; }
  /// Numbers in a row of its result, for `from` in a row of its input.
  [[nodiscard]] virtual std::int64_t width(std::int64_t from) const { return from; }
  /// How it wants the columns of its input cut.
  [[nodiscard]] virtual columns wants(std::int64_t from, share) const { return {from, 1}; }
  /// Makes parameters. Called once, after resolve().
  void place(placing<Env>& at, layer_step const& step) {
    auto const outer = at.name;
    if (!name_.empty()) at.name += (outer.empty() ? "" : ".") + name_;
    do_place(at, step);
    at.name = outer;
  }
  /// Puts a name before its own.
  void prefix(std::string const& name) { name_ = name_.empty() ? name : name + "." + name_; }
  [[nodiscard]] detail::node_facts const& facts() const noexcept { return facts_; }

  virtual void visit(detail::parameter_visitor<Env> const&) {}
  /// Of a product whose work a tensor group shares: the parameters that every rank has whole, and of whose gradients it
  /// forms a term.
  virtual void visit_terms(detail::parameter_visitor<Env> const&) {}
  /// Whether it does nothing in this pass.
  [[nodiscard]] virtual bool idle(pass<Env> const&) const { return false; }
  /// Returns y, in memory of `to`, or in that of x if x is `ours`.
  /// @param residual  is added to y; given only to nodes whose facts say adds_residual.
  virtual detail::held<Env> forward(pass<Env>& pass, detail::held<Env> x, arena<space>& to, view residual) = 0;
  virtual void backward_input(pass<Env>&, detail::layer_input<Env>, view /*y*/, view /*dy*/, detail::target<Env>,
                              detail::half) {}
  virtual void backward_in_place(pass<Env>&, detail::layer_input<Env>, detail::gradient<Env>, detail::half) {}
  virtual void backward_weight(pass<Env>&, detail::layer_input<Env>, view /*dy*/) {}
  [[nodiscard]] virtual detail::fused_activation<Env> fused(pass<Env> const&) { return {}; }
  /// Of a model's last layer: the gradient that backward begins with, in the rows that lie here.
  [[nodiscard]] virtual view starts(pass<Env> const&) { return {}; }
  [[nodiscard]] virtual loss_node<Env>* as_loss() { return nullptr; }
  /// Of a model's first layer: the gradient of the batch's inputs, (samples, numbers of each) in pass.activations.
  virtual view input_gradient(pass<Env>&, view /*dy*/) {
    throw config_error(
        "trireme::nn: the inputs of this model are tokens, which have no gradients; input_gradient is for models whose "
        "first layer reads numbers, such as nn::features");
  }
  /// Whether it adds terms to the loss that each sample has once; before place(), too.
  [[nodiscard]] virtual bool adds_sample_losses() const { return false; }
  /// Of a loss: how many rows of some samples it counts and leaves out; nothing if it cannot tell.
  [[nodiscard]] virtual loss_sum rows_of_loss(samples const&) const { return {}; }
  // Of experts: their collectives on a rank that has no rows of its own (contract/expert_group.hpp).
  virtual void serve_forward(pass<Env>&) {}
  virtual void serve_backward(pass<Env>&) {}

 protected:
  virtual void do_place(placing<Env>& at, layer_step const& step) = 0;
  detail::node_facts facts_{};

 private:
  std::string name_;
};

template <class Env>
using node_pointer = std::unique_ptr<node<Env>>;

}  // namespace trireme::nn
