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

/// What a node can do, and what it needs, besides its traits; the chain does the rest.
struct node_facts {
  bool weights = false;             ///< backward_weight(pass, x, dy): the chain keeps x and dy for it
  bool inside = false;              ///< contains chains, which keep what their second half needs; it reads x then
  bool in_place = false;            ///< backward_input is given one memory for dy and dx
  bool reads_y = false;             ///< backward_input reads the result
  bool adds_residual = false;       ///< forward can add the residual to its result
  bool overwrites = false;          ///< backward_input cannot add to where dx goes
  bool does_slope = false;          ///< backward_input can multiply dx by an activation's derivative
  bool adds_sample_losses = false;  ///< adds terms to the loss that each sample has once
  ops::activation activation = ops::activation::none;  ///< which one it is, so that the product before can do it
};

/// How columns are cut over a tensor group: `fused` matrices lie side by side, and each is cut between `granules` of
/// equal width (the heads of attention, for instance).
struct columns {
  std::int64_t granules = 1;
  std::int64_t fused = 1;
  shape tensors{};  ///< parameter_info::fused of the product that makes these columns
  friend bool operator==(columns const&, columns const&) = default;
};

/// States that rows are images: (height, width, channels), channels innermost. It is a layer that computes nothing.
/// Layers of images follow it; each passes the shape of its result on to the next.
///
/// Errors   config_error if the width of rows is not height * width * channels.
struct image {
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t height = 0, width = 0, channels = 0;
  friend bool operator==(image const&, image const&) = default;

  [[nodiscard]] constexpr std::int64_t size() const noexcept { return height * width * channels; }
};

/// Low-rank changes of products; see nn::lora.
struct lora_options {
  std::int64_t rank = 8;     ///< 0: no changes, and nothing is frozen
  double alpha = 16;         ///< changes are multiplied by alpha / rank
  std::string layers = "*";  ///< which linear layers: patterns separated by spaces ("self_attn.* down_proj"); each
                             ///< matches a full name or a dot-separated suffix; * matches any letters, ? one letter
  friend bool operator==(lora_options const&, lora_options const&) = default;
};

template <class Env>
class loss_node;
template <class Env>
class node;

/// What a row of an activation is made of.
struct row_shape {
  std::int64_t width = 0;  ///< numbers in a whole row
  nn::image image{};       ///< the image that a row is; none if its size differs from `width`
  columns cut{};           ///< where each rank has some columns; set by the layer that made them
};

/// Multiplications and additions of a row in training.
struct operations {
  double forward = 0, backward = 0;

  /// A product of a row of `inputs` numbers with a matrix of `outputs` columns.
  /// @param forms_dx  whether backward forms the gradient of its input.
  void product(std::int64_t inputs, std::int64_t outputs, bool forms_dx = true) noexcept {
    auto const one = 2.0 * static_cast<double>(inputs) * static_cast<double>(outputs);
    forward += one;
    backward += forms_dx ? 2 * one : one;
  }
  /// Attention: two products forward, five backward.
  /// @param channels  numbers of all heads together.
  /// @param seen      twice the number of positions that a position sees on average: with the causal mask, which hides
  ///                  half of a sample, all of its positions.
  void attention(std::int64_t channels, std::int64_t seen) noexcept {
    auto const one = static_cast<double>(channels) * static_cast<double>(seen);
    forward += 2 * one;
    backward += 5 * one;
  }
};

/// What a layer learns when its run state is made. It is passed from layer to layer, from left to right, and each layer
/// changes the row's shape to that of its result.
template <class Env>
struct placing : row_shape {
  rank_groups<Env> const& groups;      ///< the ranks that share this unit's work
  group_rank own;                      ///< this rank's share of the tensor group
  std::string name{};                  ///< of the layer: its parameters are `name` + ".weight" and so on
  lora_options const* lora = nullptr;  ///< if given, all parameters are frozen, and these changes are trained instead
  std::int64_t positions = 0;          ///< of a sample, where operations are counted
  std::uint32_t sites = 0;             ///< dropout sites of the layers so far: take_site()
  operations counted{};                ///< of the layers so far
  node<Env> const* taker = nullptr;    ///< the layer that takes the columns of a product with role::column_parallel
  ops::activation act = ops::activation::none;  ///< the activation behind, if this layer does it
  loss_node<Env>* loss = nullptr;               ///< the loss behind, if this layer does it
  bool forms_dx = true;                         ///< whether this layer forms the gradient of its input
  bool auxiliary = false;                       ///< a loss here is added to that of the model, whose rows are counted
  std::vector<parameter<Env>*> terms{};  ///< set by a product that is cut: parameters that are whole on each rank, and
                                         ///< of whose gradients it forms a term

  void set(row_shape const& shape) { static_cast<row_shape&>(*this) = shape; }
  /// The dropout site of a layer that drops numbers: another one in each call. Sites of a unit begin at 0;
  /// pass::first_site is added to them.
  [[nodiscard]] std::uint32_t take_site() { return sites++; }
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
template <class Env>
using arena_of = arena<typename Env::space>;

/// The number of rows of a micro-batch, at the positions that lie here: for each sample as many as the model states, or
/// one a token if the inputs are int32, else one.
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

/// Where numbers are dropped in this pass, if it is one of training.
/// @param site  of the layer, from placing::take_site().
template <class Env>
[[nodiscard]] ops::dropout_site_in<typename Env::space> dropout_site_of(pass<Env> const& pass, double probability,
                                                                        std::uint32_t site) {
  return {pass.training() ? probability : 0, pass.key, pass.first_site + site, pass.batch.ids};
}

/// A layer's result in the forward pass.
template <class Env>
struct held {
  view_of<Env> v{};
  bool ours = false;   ///< this memory is not read later: the layer that gets it may write to it
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

/// Where a layer writes its input's gradient. `act` and `before` are given only to nodes whose facts say does_slope;
/// `accumulate` is not given to those that say overwrites.
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

/// When backward forms the gradients of parameters: together with the gradient of the input; in the second half; or
/// never, because only the gradient of the model's inputs is wanted.
enum class half { at_once, later, never };

/// What a node saves for each micro-batch in flight.
template <class Saved>
class per_micro_batch {
 public:
  template <class Pass>
  [[nodiscard]] Saved& operator[](Pass const& pass) {
    if (pass.saved_index >= all_.size()) all_.resize(pass.saved_index + 1);
    return all_[pass.saved_index];
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

  node(node const&) = delete;
  node& operator=(node const&) = delete;
  virtual ~node() = default;

  [[nodiscard]] virtual layer_traits traits() const = 0;
  /// How the columns of its input are to be cut; the input has `from` numbers a row.
  [[nodiscard]] virtual columns wants(std::int64_t from, group_rank) const { return {from, 1}; }
  /// Makes parameters. Called once, after resolve().
  void place(placing<Env>& at, layer_step const& step) {
    auto const outer = at.name;
    if (!name_.empty()) at.name += (outer.empty() ? "" : ".") + name_;
    name_ = at.name;
    do_place(at, step);
    at.name = outer;
  }
  /// Puts a name before its own.
  void prefix(std::string const& name) { name_ = name_.empty() ? name : name + "." + name_; }
  /// After place(): with the names of all that it is in.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] node_facts const& facts() const noexcept { return facts_; }
  /// This node, if it is a loss.
  [[nodiscard]] loss_node<Env>* as_loss() const noexcept { return loss_; }

  virtual void visit(detail::parameter_visitor<Env> const&) {}
  /// Whether it does nothing in this pass.
  [[nodiscard]] virtual bool idle(pass<Env> const&) const { return false; }
  /// Returns y, in memory of `to`, or in that of x if x is `ours`.
  /// @param residual  is added to y; given only to nodes whose facts say adds_residual.
  virtual detail::held<Env> forward(pass<Env>& pass, detail::held<Env> x, arena<space>& to, view residual) = 0;
  /// Forms dx, and adds to the gradients of its parameters unless backward_weight does.
  /// y is its result, for nodes whose facts say reads_y; `to` is where dx goes: the memory of dy, for nodes whose facts
  /// say in_place.
  virtual void backward_input(pass<Env>&, detail::layer_input<Env>, view /*y*/, view /*dy*/, detail::target<Env> /*to*/,
                              detail::half) {}
  virtual void backward_weight(pass<Env>&, detail::layer_input<Env>, view /*dy*/) {}
  [[nodiscard]] virtual detail::fused_activation<Env> fused(pass<Env> const&) { return {}; }
  /// Of a model's last layer: the gradient that backward begins with, in the rows that lie here.
  [[nodiscard]] virtual view starts(pass<Env> const&) { return {}; }
  /// Of a model's first layer: the gradient of the batch's inputs, (samples, numbers of each) in pass.activations.
  virtual view input_gradient(pass<Env>&, view /*dy*/) {
    throw config_error(
        "trireme::nn: the inputs of this model are tokens, which have no gradients; input_gradient is for models whose "
        "first layer reads numbers, such as nn::features");
  }
  /// Of a loss: how many rows of some samples it counts and leaves out; nothing if it cannot tell.
  [[nodiscard]] virtual loss_sum rows_of_loss(samples const&) const { return {}; }
  // Of experts: their collectives on a rank that has no rows of its own (contract/expert_group.hpp).
  virtual void shadow_forward(pass<Env>&) {}
  virtual void shadow_backward(pass<Env>&) {}

 protected:
  explicit node(node_facts facts) : facts_(facts) {}
  virtual void do_place(placing<Env>& at, layer_step const& step) = 0;
  node_facts facts_{};
  loss_node<Env>* loss_ = nullptr;

 private:
  std::string name_;
};

/// A node of a unit's chain, and its owner.
template <class Env>
using node_pointer = std::unique_ptr<node<Env>>;

}  // namespace trireme::nn
