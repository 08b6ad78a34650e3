#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/nn/detail/low_rank.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/node.hpp"

namespace trireme::nn::detail {

/// Layers one after the other. This class alone gathers rows, sums terms, chooses the memory of gradients and splits
/// backward into halves.
///
/// Memory   A result is `ours` (the next layer may write to it) unless it is the chain's input, or the layer that made
///          it reads it again in the backward pass. A gradient is `ours` unless the chain's caller needs it, or a layer
///          keeps it for the second half; it then lies among the activations. A layer that works in place gets a copy
///          of what is not `ours`.
/// Threads  one owner.
template <class Env>
class chain_node {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;

 public:
  using view = view_of<Env>;

  explicit chain_node(std::vector<node_pointer<Env>> nodes) : nodes_(std::move(nodes)), steps_(nodes_.size()) {}

  [[nodiscard]] std::vector<layer_traits> traits() const {
    std::vector<layer_traits> all;
    for (auto const& each : nodes_) all.push_back(each->traits());
    return all;
  }
  /// What these layers can do as a branch of a fork.
  [[nodiscard]] layer_traits as_branch() const {
    std::vector<layer_step> steps(nodes_.size());
    return branch_traits(traits(), steps);
  }
  /// Whether one of these layers adds terms to the loss that each sample has once.
  [[nodiscard]] bool adds_sample_losses() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](auto const& each) { return each->facts().adds_sample_losses; });
  }
  /// The loss that these layers end in; null if they do not.
  [[nodiscard]] loss_node<Env>* loss() const { return nodes_.empty() ? nullptr : nodes_.back()->as_loss(); }
  /// How many rows of some samples that loss counts.
  [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const {
    return nodes_.empty() ? loss_sum{} : nodes_.back()->rows_of_loss(batch);
  }

  void place(placing<Env>& at, activation_layout entry, activation_layout exit) {
    traits_ = traits();
    auto const found = resolve(traits_, steps_, entry, exit);
    if (!found.fits()) {
      throw config_error(text("trireme::nn::chain: ", at.name, ": layer ", found.where,
                              " cannot stand where it does; see the compiler's sentence for chains that it knows"));
    }
    parameters_.resize(nodes_.size());
    added_in_passing_.resize(nodes_.size());
    auto const* const outside = at.taker;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      auto const& step = steps_[i];
      if (step.absorbed) continue;
      at.act = step.fused ? nodes_[i + 1]->facts().activation : ops::activation::none;
      at.loss = step.fused ? nodes_[i + 1]->as_loss() : nullptr;
      auto taker = i + 1;
      while (taker < nodes_.size() && traits_[taker].does == flow::any) ++taker;
      at.taker = taker == nodes_.size() ? outside : nodes_[taker].get();
      at.forms_dx = i == 0 || !wants_nothing(i - 1);
      nodes_[i]->place(at, step);
      if (at.lora != nullptr) nodes_[i]->visit([](auto& each) { freeze_all_but_changes(each.info); });
      auto const terms = std::exchange(at.terms, {});
      if (nodes_[i]->facts().inside) continue;
      if (!nodes_[i]->facts().weights)
        nodes_[i]->visit([&](parameter<Env>& each) { added_in_passing_[i].push_back(&each); });
      bool const some =
          step.takes == activation_layout::rows || (step.as == role::none && step.takes == activation_layout::columns);
      auto const add = [&](parameter<Env>& each) {
        if (!each.info.frozen && (!some || !each.info.is_shard())) parameters_[i].push_back(&each);
      };
      if (some) nodes_[i]->visit(add);
      for (auto* const each : terms) add(*each);
    }
  }
  void visit(parameter_visitor<Env> const& each) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!steps_[i].absorbed) nodes_[i]->visit(each);
    }
  }

  /// @param residual  if not empty, is added to the result.
  held<Env> forward(pass<Env>& pass, view input, view residual = {}) {
    auto& kept = kept_[pass];
    kept.x.assign(nodes_.size() + 1, {});
    kept.dy.assign(nodes_.size(), {});
    auto const last = last_active(pass);
    bool const on_the_way = !residual.empty() && last != nodes_.size() && may_add(pass, last);
    held<Env> x{input, false, true};
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      kept.x[i] = x;
      if (!skips(pass, i)) x = forward(pass, i, x, on_the_way && i == last ? residual : view{});
    }
    kept.x.back() = x;
    if (residual.empty() || on_the_way) return x;
    if (!x.ours) x = {copy_of(pass.activations, x.v), true, false};
    kernels::add(x.v, residual);
    return x;
  }

  /// Returns the gradient of the input, in `out.into` if that is given.
  /// @param input  what forward() was given.
  gradient<Env> backward(pass<Env>& pass, layer_input<Env> input, gradient<Env> dy, target<Env> out, half when) {
    auto const first = first_active(pass);
    bool done = false;
    for (auto i = nodes_.size(); i-- > 0;) {
      if (!skips(pass, i)) dy = backward(pass, i, input, dy, i == first ? out : target<Env>{}, when, done);
    }
    if (done || out.into.address() == nullptr) return dy;
    if (out.accumulate) {
      kernels::add(out.into, dy.v);
    } else {
      kernels::copy(out.into, dy.v);
    }
    return {out.into, false, memory::scratch, false};
  }

  /// The second half.
  void backward_weight(pass<Env>& pass, layer_input<Env> input) {
    auto& kept = kept_[pass];
    for (auto i = nodes_.size(); i-- > 0;) {
      auto const& facts = nodes_[i]->facts();
      if (skips(pass, i) || !(facts.weights || facts.inside)) continue;
      auto const mark = pass.scratch.mark();
      auto const x = input_of(pass, i, input);
      if (facts.inside) {
        nodes_[i]->backward_weight(pass, x, {});
      } else {
        auto const dy = steps_[i].partial ? gathered(pass, kept.dy[i]) : kept.dy[i];
        auto const sum = begin_sum_of_rows(pass, i, half::later);
        nodes_[i]->backward_weight(pass, x, dy);
        end_sum_of_rows(pass, i, sum);
      }
      pass.scratch.rewind(mark);
    }
  }

  void shadow_forward(pass<Env>& pass) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!skips(pass, i)) nodes_[i]->shadow_forward(pass);
    }
  }
  void shadow_backward(pass<Env>& pass) {
    for (auto i = nodes_.size(); i-- > 0;) {
      if (!skips(pass, i)) nodes_[i]->shadow_backward(pass);
    }
  }

 private:
  struct saved {
    std::vector<held<Env>> x;  // each layer's input, not gathered; behind the last one the chain's result
    std::vector<view> dy;      // between the halves, of layers with weights; not gathered
  };

  [[nodiscard]] bool skips(pass<Env> const& pass, std::size_t i) const {
    return steps_[i].absorbed || nodes_[i]->idle(pass);
  }
  [[nodiscard]] std::size_t first_active(pass<Env> const& pass) const {
    std::size_t i = 0;
    while (i < nodes_.size() && skips(pass, i)) ++i;
    return i;
  }
  [[nodiscard]] std::size_t last_active(pass<Env> const& pass) const {
    for (auto i = nodes_.size(); i-- > 0;) {
      if (!skips(pass, i)) return i;
    }
    return nodes_.size();
  }
  // The last layer before i that does something in this pass; nodes_.size() if there is none.
  [[nodiscard]] std::size_t before(pass<Env> const& pass, std::size_t i) const {
    while (i-- > 0) {
      if (!skips(pass, i)) return i;
    }
    return nodes_.size();
  }
  [[nodiscard]] bool may_add(pass<Env> const& pass, std::size_t last) const {
    auto const& step = steps_[last];
    return nodes_[last]->facts().adds_residual && !step.fused && (!step.partial || pass.group.size() == 1);
  }
  static view copy_of(arena<space>& memory, view x) {
    auto const y = memory.template take<value>(x.extents());
    kernels::copy(y, x);
    return y;
  }
  static view gathered(pass<Env>& pass, view rows) { return pass.group.gather(rows, rows_of(pass), pass.scratch); }
  static view own_rows(pass<Env> const& pass, view all) {
    auto const here = pass.group.rows_here(all.extent(0));
    return all.rows(here.first, here.count);
  }

  held<Env> forward(pass<Env>& pass, std::size_t i, held<Env> x, view residual) {
    auto const& step = steps_[i];
    auto const mark = pass.scratch.mark();
    if (step.gathers() && pass.group.cuts_rows()) x = {gathered(pass, x.v), false, false};
    if (step.partial) {
      view const y =
          kept_sum(pass, [&](auto& from) { return partial_sum<view>(nodes_[i]->forward(pass, x, from, residual).v); });
      pass.scratch.rewind(mark);
      return {y, !nodes_[i]->facts().reads_y, false};
    }
    auto y = nodes_[i]->forward(pass, x, pass.activations, residual);
    if (step.takes == activation_layout::all && step.gives == activation_layout::rows && pass.group.cuts_rows())
      y.v = own_rows(pass, y.v);
    pass.scratch.rewind(mark);
    return y;
  }

  layer_input<Env> input_of(pass<Env>& pass, std::size_t i, layer_input<Env> const& input) {
    auto const& x = kept_[pass].x[i];
    layer_input<Env> out = x.entry ? input : layer_input<Env>{x.v, false};
    if (steps_[i].gathers()) out.crosses = true;
    return out;
  }
  // Whether a layer before i will keep for the second half the memory that the gradient of i's input lies in.
  [[nodiscard]] bool is_kept_behind(pass<Env> const& pass, std::size_t i) const {
    for (auto j = before(pass, i); j != nodes_.size(); j = before(pass, j)) {
      auto const& facts = nodes_[j]->facts();
      if (facts.weights) return true;
      if (!facts.in_place || facts.inside) return false;
    }
    return false;
  }

  // The gradient of its result is not needed: it is a source without weights.
  [[nodiscard]] bool wants_nothing(std::size_t i) const { return is_source(i) && !nodes_[i]->facts().weights; }
  [[nodiscard]] bool is_source(std::size_t i) const { return traits_[i].does == flow::source; }
  [[nodiscard]] bool is_loss(std::size_t i) const {
    return traits_[i].does == flow::loss || traits_[i].does == flow::words;
  }

  // dy is the gradient of layer i's result after terms are summed. Returns the gradient of its input before rows are
  // gathered. `done` is set if that gradient has been written to `out`, or if it is not needed.
  gradient<Env> backward(pass<Env>& pass, std::size_t i, layer_input<Env> const& input, gradient<Env> dy,
                         target<Env> const& out, half when, bool& done) {
    auto& one = *nodes_[i];
    auto& kept = kept_[pass];
    auto const& step = steps_[i];
    auto const& facts = one.facts();
    auto const x = input_of(pass, i, input);
    bool const later = when == half::later;
    auto const p = before(pass, i);
    bool const source = is_source(i), replicated = traits_[i].does == flow::all;
    if (is_loss(i)) return {one.starts(pass), true, memory::kept};

    if (step.fused && !dy.through) dy = through_activation(pass, one.fused(pass), dy, later);
    if (facts.in_place) {
      if (!dy.ours) {
        bool const stays = later && !facts.inside && is_kept_behind(pass, i);
        dy = {copy_of(stays ? pass.activations : pass.scratch, dy.v), true, stays ? memory::kept : memory::scratch};
      }
      auto const sum = begin_sum_of_rows(pass, i, when);
      one.backward_input(pass, x, kept.x[i + 1].v, dy.v, {dy.v}, when);
      end_sum_of_rows(pass, i, sum);
      dy.through = false;
      return dy;
    }
    // Decided before dy may be copied below, so that backward at once and in halves form the same sums and round alike.
    bool const may_go_there = out.into.address() != nullptr && out.into.address() != dy.v.address();
    if (facts.weights && later) {
      // No unit comes before a source, so the memory of dy is not written to later, and no copy is needed.
      bool const stays = dy.lies == memory::kept || (source && dy.lies == memory::passing);
      if (!dy.ours || !stays) dy = {copy_of(pass.activations, dy.v), true, memory::kept};
      kept.dy[i] = dy.v;
      dy.ours = false;
    }

    if (source && when == half::never) {
      done = true;
      auto const mark = pass.scratch.mark();
      auto const dx = one.input_gradient(pass, gathered(pass, dy.v));
      pass.scratch.rewind(mark);
      return {dx, true, memory::kept};
    }
    if (source || (facts.weights && when != half::never && p != nodes_.size() && wants_nothing(p))) {
      auto const mark = pass.scratch.mark();
      if (facts.weights && when == half::at_once) {
        auto const d = step.partial ? gathered(pass, dy.v) : dy.v;
        auto const sum = begin_sum_of_rows(pass, i, when);
        one.backward_weight(pass, x, d);
        end_sum_of_rows(pass, i, sum);
      }
      pass.scratch.rewind(mark);
      done = true;
      return {};
    }

    // dx goes to one of three places: directly to the memory that the chain's caller gives; or, in the first half of
    // backward, over the activation's input that the layer before has kept, which is not read later; or into scratch
    // memory.
    target<Env> to;
    gradient<Env> dx{.ours = true};
    if (may_go_there && !step.gathers() && !replicated && !(facts.overwrites && out.accumulate)) {
      to = {out.into, out.accumulate};
      done = true;
    } else {
      if (p != nodes_.size() && steps_[p].fused && facts.does_slope && !step.gathers()) {
        auto const activation = nodes_[p]->fused(pass);
        to.act = activation.act;
        to.before = activation.before;
        dx.through = true;
        if (later) {
          to.into = to.before;
          dx.lies = memory::kept;
        }
      }
      if (to.into.address() == nullptr) to.into = pass.scratch.template take<value>(x.extents(pass));
    }
    auto const mark = pass.scratch.mark();
    auto const d = step.partial || (step.takes == activation_layout::all && step.gives == activation_layout::rows)
                       ? gathered(pass, dy.v)
                       : dy.v;
    auto const sum = begin_sum_of_rows(pass, i, when);
    if (facts.weights && when == half::at_once) one.backward_weight(pass, x, d);
    one.backward_input(pass, x, kept.x[i + 1].v, d, to, when);
    end_sum_of_rows(pass, i, sum);
    pass.scratch.rewind(mark);
    dx.v = to.into;
    if (done) return dx;
    if (step.gathers()) dx.v = replicated ? own_rows(pass, dx.v) : pass.group.reduce(partial_sum<view>(dx.v));
    // A gradient that must be kept takes the memory of this layer's input, which is not read later.
    auto const& mine = kept.x[i];
    if (later && dx.lies != memory::kept && mine.ours && !facts.weights && !facts.inside && is_kept_behind(pass, i)) {
      kernels::copy(mine.v, dx.v);
      dx.v = mine.v;
      dx.lies = memory::kept;
    }
    return dx;
  }

  // Applies the derivative of the fused activation to dy, where the layer behind has not done so.
  gradient<Env> through_activation(pass<Env>& pass, fused_activation<Env> const& its, gradient<Env> dy, bool later) {
    auto const into = later ? its.before : dy.ours ? dy.v : pass.scratch.template take<value>(dy.v.extents());
    kernels::activate_backward(into, dy.v, its.before, its.act);
    return {into, true, later ? memory::kept : dy.ours ? dy.lies : memory::scratch, true};
  }

  // Where every rank has all of a layer's parameters but only some of its rows or columns, gradients are summed over
  // the group. Between begin and end the parameters' gradients are terms in scratch memory. With half::never they are
  // also written to scratch memory, and discarded at the end: the parameters may have no memory for gradients then.
  struct sum_of_rows {
    typename arena<space>::position mark;
    tensor_view<typename Env::accumulate, space> terms;
    bool wanted = true;
  };
  [[nodiscard]] sum_of_rows begin_sum_of_rows(pass<Env>& pass, std::size_t i, half when) {
    sum_of_rows sum{pass.scratch.mark(), {}, when != half::never};
    auto const& own = sum.wanted ? parameters_[i] : added_in_passing_[i];
    bool const cut = steps_[i].takes == activation_layout::rows ? pass.group.cuts_rows() : pass.group.size() > 1;
    if (own.empty() || (sum.wanted && !cut)) return sum;
    std::int64_t size = 0;
    for (auto const* each : own) size += each->info.extents.size();
    sum.terms = pass.scratch.template take<typename Env::accumulate>({size});
    kernels::fill(sum.terms, 0.0);
    whole_.clear();
    std::int64_t at = 0;
    for (auto* each : own) {
      whole_.push_back(each->gradient);
      each->gradient = sum.terms.flat(at, each->info.extents.size()).reshaped(each->info.extents);
      at += each->gradient.size();
    }
    return sum;
  }
  void end_sum_of_rows(pass<Env>& pass, std::size_t i, sum_of_rows const& sum) {
    if (sum.terms.empty()) return;
    if (sum.wanted) pass.group.sum(sum.terms);
    auto const& own = sum.wanted ? parameters_[i] : added_in_passing_[i];
    for (std::size_t k = 0; k < own.size(); ++k) {
      if (sum.wanted) kernels::add(whole_[k], own[k]->gradient);
      own[k]->gradient = whole_[k];
    }
    pass.scratch.rewind(sum.mark);
  }

  std::vector<node_pointer<Env>> nodes_;
  std::vector<layer_traits> traits_;  // since place()
  std::vector<layer_step> steps_;
  std::vector<std::vector<parameter<Env>*>> parameters_;        // whole on each rank, where rows or columns may be cut
  std::vector<std::vector<parameter<Env>*>> added_in_passing_;  // backward_input adds to their gradients
  std::vector<tensor_view<typename Env::gradient, space>> whole_;  // their own gradients, between begin and end
  per_micro_batch<saved> kept_;
};

}  // namespace trireme::nn::detail
