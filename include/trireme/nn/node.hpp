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

/// How columns are cut over a tensor group: `fused` matrices side by side, each in so many granules of equal width.
struct columns {
  std::int64_t granules = 1;
  std::int64_t fused = 1;
  friend bool operator==(columns const&, columns const&) = default;
};

template <class Env>
class loss_node;

/// Where a layer finds itself while run states are made, from left to right.
template <class Env>
struct placing {
  rank_groups<Env> const& groups;  ///< who shares this unit's work
  share own;                       ///< of its tensor group
  std::string name{};              ///< of the layer: its parameters are `name` + ".weight" and so on
  std::int64_t width = 0;          ///< of a whole row of what comes in; a layer sets it to that of what it gives
  std::uint32_t site = 0;          ///< the next dropout site
  columns cut{};                   ///< of what comes in, where it lies in columns; set by who makes columns
  columns wanted{};                ///< of what a product that is spread gives
  ops::activation act = ops::activation::none;  ///< of the layer behind, which this one does
  loss_node<Env>* loss = nullptr;               ///< behind it, which this one does

  /// What lies here of each of the fused matrices that a row of `whole` numbers is made of.
  [[nodiscard]] interval part(columns const& how, std::int64_t whole) const noexcept {
    auto const each = whole / how.fused / how.granules;
    auto const here = own.of(how.granules);
    return {here.first * each, here.count * each};
  }
};

namespace detail {

template <class Env>
using view_of = tensor_view<typename Env::compute, typename Env::space>;

/// Rows of the activations of a micro-batch, over all positions that lie here: whole numbers are tokens, of which each
/// is a row; of other numbers each sample is one.
template <class Env>
[[nodiscard]] std::int64_t rows_of(pass<Env> const& pass) {
  auto const& inputs = pass.batch.inputs;
  return inputs.type == dtype::i32 ? inputs.extents.size() : pass.batch.count();
}

/// Positions of each sample that lie here.
template <class Env>
[[nodiscard]] std::int64_t positions_of(pass<Env> const& pass) {
  auto const count = pass.batch.count();
  return count == 0 ? 1 : rows_of(pass) / count;
}

/// A result on its way forward.
template <class Env>
struct held {
  view_of<Env> v{};
  bool ours = false;   ///< nobody reads this memory again: who gets it may write to it
  bool entry = false;  ///< it is the input of the chain itself, passed on by layers that do nothing
};

/// Where a gradient lies: with the unit it goes (scratch), it is handed from unit to unit and may change afterwards
/// (passing), or it stays until the micro-batch is done (kept).
enum class memory { scratch, passing, kept };

/// A gradient on its way back.
template <class Env>
struct gradient {
  view_of<Env> v{};
  bool ours = false;  ///< who gets it may write to it
  memory lies = memory::scratch;
  bool through = false;  ///< it has gone through the activation of the layer that gets it
};

/// A layer's input once more, in the backward pass: rows that a product gathers are gathered when somebody asks.
template <class Env>
struct layer_input {
  view_of<Env> here{};
  bool crosses = false;
  [[nodiscard]] view_of<Env> get(pass<Env>& pass) const {
    return crosses ? pass.group.gather(here, rows_of(pass), pass.scratch) : here;
  }
  [[nodiscard]] shape extents(pass<Env> const& pass) const {
    return crosses ? shape{rows_of(pass), here.extent(1)} : here.extents();
  }
};

/// Where a layer writes its input's gradient. `act` and `before` are asked of those alone that can do an activation's
/// derivative, `accumulate` of those that can add.
template <class Env>
struct target {
  view_of<Env> into{};
  bool accumulate = false;
  ops::activation act = ops::activation::none;
  view_of<Env> before{};
};

/// The activation that a product does, and what it kept for its derivative.
template <class Env>
struct fused_activation {
  ops::activation act = ops::activation::none;
  view_of<Env> before{};
};

/// When parameters' gradients are made.
enum class half { at_once, later };

/// What a node can do, and what it needs; the chain does the rest.
struct node_facts {
  bool weights = false;        ///< backward_weight(pass, x, dy): the chain keeps x and dy for it
  bool inside = false;         ///< a composite: keeps by itself what its second half needs, and reads x then
  bool in_place = false;       ///< backward changes dy to dx
  bool reads_y = false;        ///< backward_input reads the result
  bool adds_residual = false;  ///< forward adds it on the way out
  bool accumulates = false;    ///< backward_input can add to where dx goes
  bool does_slope = false;     ///< and multiply by an activation's derivative
  bool replicated = false;     ///< dx is no term but the same on all ranks
  bool source = false;         ///< has no input, and so no dx
  bool loss = false;           ///< its result is the loss; forward has made dx, and starts() gives it
};

/// What nodes save of each micro-batch that is in flight.
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

/// A layer, or layers put together, in a unit's run state. All that composes them (chains, residuals, gates) is written
/// once against this face, so it is compiled once for an environment however many models there are.
///
/// Layers know nothing of halves, neighbours, gathers or sums over ranks.
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
  /// Activations of a fixed kind say which: ops::activation::none otherwise.
  [[nodiscard]] virtual ops::activation activation() const { return ops::activation::none; }
  /// Numbers a row of what it gives.
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
  /// Puts a name before the one that it has.
  void prefix(std::string const& name) { name_ = name_.empty() ? name : name + "." + name_; }
  [[nodiscard]] detail::node_facts const& facts() const noexcept { return facts_; }

  virtual void visit(detail::parameter_visitor<Env> const&) {}
  /// Whether it does nothing in this pass.
  [[nodiscard]] virtual bool idle(pass<Env> const&) const { return false; }
  /// y, in memory of `to` (or in that of x, if it is ours).
  virtual detail::held<Env> forward(pass<Env>& pass, detail::held<Env> x, arena<space>& to, view residual) = 0;
  virtual void backward_input(pass<Env>&, detail::layer_input<Env>, view /*y*/, view /*dy*/, detail::target<Env>,
                              detail::half) {}
  virtual void backward_in_place(pass<Env>&, detail::layer_input<Env>, detail::gradient<Env>, detail::half) {}
  virtual void backward_weight(pass<Env>&, detail::layer_input<Env>, view /*dy*/) {}
  [[nodiscard]] virtual detail::fused_activation<Env> fused(pass<Env> const&) { return {}; }
  /// Of a model's last layer: the gradient that backward begins with, in the rows that lie here.
  [[nodiscard]] virtual view starts(pass<Env> const&) { return {}; }
  [[nodiscard]] virtual loss_node<Env>* as_loss() { return nullptr; }
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
