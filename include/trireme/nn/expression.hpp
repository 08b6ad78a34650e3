#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/pack.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/nn/detail/chain_node.hpp"
#include "trireme/nn/node.hpp"
#include "trireme/ops/sets/set.hpp"

namespace trireme::nn {

// ---- descriptions

/// Layers one after the other.
template <class... L>
struct chain_of {
  pack<L...> layers;
  friend bool operator==(chain_of const&, chain_of const&) = default;
};
/// A layer with a name, which its parameters' names begin with.
template <class L>
struct named_of {
  std::string name;
  L layer;
  friend bool operator==(named_of const&, named_of const&) = default;
};
/// How the branches of a composite begin and end.
struct branch_rule {
  flow does = flow::rows;  ///< rows: each branch takes whole rows; fork: each takes what the composite takes
  activation_layout exit = activation_layout::rows;  ///< how a branch's result lies; nothing: a branch ends in a loss
  bool spreads = false;     ///< branches may also end in this rank's columns, if all of them can
  bool runs_again = false;  ///< the branches' forward runs in backward, too
  node_facts facts{};       ///< of the node
};
/// Branches on one input, which `Kind` combines: an empty struct with a `static constexpr branch_rule rule`. The node
/// of a kind is layer_node<Env, Kind>.
template <class Kind, class... Branches>
struct composite {
  pack<Branches...> branches;
  friend bool operator==(composite const&, composite const&) = default;
};
struct residual_kind {
  static constexpr branch_rule rule{.facts = {.in_place = true}};
};
struct product_kind {
  static constexpr branch_rule rule{.does = flow::fork, .spreads = true};
};
struct concat_kind {
  static constexpr branch_rule rule{.does = flow::fork};
};
/// `count` layers alike, one after the other, named 0, 1, 2, ...; each has parameters of its own.
template <class L>
struct repeat_of {
  std::int64_t count = 0;
  L layer;
  friend bool operator==(repeat_of const&, repeat_of const&) = default;
};

/// One layer after the other. A chain within it counts as its layers, so products meet their activations.
template <class... L>
[[nodiscard]] chain_of<L...> chain(L... layers) {
  return {{std::move(layers)...}};
}
template <class L>
[[nodiscard]] named_of<L> named(std::string name, L layer) {
  return {std::move(name), std::move(layer)};
}
template <class Kind, class... B>
[[nodiscard]] composite<Kind, B...> compose(B... branches) {
  return {pack<B...>(std::move(branches)...)};
}
/// x + branch(x), where the branch is these layers one after the other.
template <class... L>
[[nodiscard]] auto residual(L... layers) {
  return compose<residual_kind>(nn::chain(std::move(layers)...));
}
/// a(x) * b(x), number by number.
template <class A, class B>
[[nodiscard]] auto product(A a, B b) {
  return compose<product_kind>(std::move(a), std::move(b));
}
/// The results of all branches on x, side by side in each row.
template <class... L>
[[nodiscard]] auto concat(L... branches) {
  return compose<concat_kind>(std::move(branches)...);
}
template <class L>
[[nodiscard]] repeat_of<L> repeat(std::int64_t count, L layer) {
  return {count, std::move(layer)};
}

// ---- checks at compile time

/// What a layer says of itself, from its type: `static constexpr layer_traits traits` or `static constexpr nn::flow
/// flow`.
template <class L>
struct traits_of {
  static constexpr layer_traits value = [] {
    if constexpr (requires { L::traits; }) {
      return L::traits;
    } else {
      return layer_traits{.does = L::flow};
    }
  }();
};

namespace detail {

/// The layers of an expression in their order, without names, and with chains within chains taken apart.
template <class... L>
struct layer_list {};
template <class... A, class... B>
constexpr layer_list<A..., B...> operator+(layer_list<A...>, layer_list<B...>) {
  return {};
}
template <class L>
struct layers_in {
  using type = layer_list<L>;
};
template <class... L>
struct layers_in<chain_of<L...>> {
  using type = decltype((layer_list<>{} + ... + typename layers_in<L>::type{}));
};
template <class L>
struct layers_in<named_of<L>> : layers_in<L> {};
// Two of them show what follows what.
template <class L>
struct layers_in<repeat_of<L>> : layers_in<chain_of<L, L>> {};

/// Refuses a layer that cannot stand where it does. The compiler's message names the layer: it is the first argument.
template <class Layer, placement_error What>
struct stands {
  static_assert(
      What != placement_error::rows_of_columns,
      "trireme::nn::chain: this layer works on whole rows, but the one before it leaves each rank of a tensor "
      "group some columns; put a linear layer between them");
  static_assert(
      What != placement_error::columns_of_rows,
      "trireme::nn::chain: this layer works on the columns of its heads, but what comes before it gives whole "
      "rows; put the linear layer that makes queries, keys and values before it");
  static_assert(What != placement_error::fork_of_columns,
                "trireme::nn::chain: the branches of a product begin with whole rows, but the layer before it leaves "
                "each rank of a tensor group some columns; put a linear layer between them");
  static_assert(What != placement_error::columns_left,
                "trireme::nn::chain: the last layer leaves each rank of a tensor group some columns; end with a linear "
                "layer");
  static_assert(
      What != placement_error::source_within,
      "trireme::nn::chain: this layer makes rows of the batch's numbers, but there are rows already; it is the "
      "first layer of a unit");
  static_assert(What != placement_error::loss_within,
                "trireme::nn::chain: a loss is the last layer of a unit; what comes behind it gets no rows");
  static_assert(What != placement_error::loss_missing,
                "trireme::nn::chain: the numbers of a product with a table of words are never all in memory; put the "
                "loss right behind it");
  static constexpr bool value = What == placement_error::none;
};
struct the_end;

[[nodiscard]] constexpr activation_layout entry_of_branch(branch_rule const& rule, activation_layout takes) noexcept {
  return rule.does == flow::fork ? takes : activation_layout::rows;
}
[[nodiscard]] constexpr activation_layout exit_of_branch(branch_rule const& rule, role as) noexcept {
  return rule.spreads && as == role::column_parallel ? activation_layout::columns : rule.exit;
}

/// Whether the branches inside a layer fit, given how the layer is cut and how its input lies.
template <class L>
struct inside {
  template <role As, activation_layout Takes>
  static constexpr bool fits() {
    return true;
  }
};

template <class List>
struct list_check;
template <class... L>
struct list_check<layer_list<L...>> {
  static constexpr std::size_t count = sizeof...(L);
  static constexpr std::array<layer_traits, count> traits{traits_of<L>::value...};
  struct placed {
    std::array<layer_step, count> steps{};
    placement found{};
  };
  static constexpr placed place(activation_layout entry, activation_layout exit) {
    placed out;
    out.found = resolve(traits, out.steps, entry, exit);
    return out;
  }
  static constexpr layer_traits as_branch() {
    std::array<layer_step, count> steps{};
    return branch_traits(traits, steps);
  }
  template <std::size_t Index>
  using layer = std::tuple_element_t<Index, std::tuple<L..., the_end>>;
  /// The same of all layers of a unit.
  static constexpr bool fits_unit() { return fits<entry_of(traits), exit_of(traits)>(); }
  /// Refuses what does not fit, in one sentence.
  template <activation_layout Entry, activation_layout Exit>
  static constexpr bool fits() {
    constexpr auto found = place(Entry, Exit).found;
    if constexpr (found.what != placement_error::none) {
      return stands<layer<found.where>, found.what>::value;
    } else {
      return all_inside<Entry, Exit>(std::make_index_sequence<count>{});
    }
  }

 private:
  template <activation_layout Entry, activation_layout Exit, std::size_t... Index>
  static constexpr bool all_inside(std::index_sequence<Index...>) {
    [[maybe_unused]] constexpr auto steps = place(Entry, Exit).steps;
    return (inside<L>::template fits<steps[Index].as, steps[Index].takes>() && ...);
  }
};

template <class Expression>
using check = list_check<typename layers_in<Expression>::type>;

template <class Kind, class... B>
struct inside<composite<Kind, B...>> {
  template <role As, activation_layout Takes>
  static constexpr bool fits() {
    static_assert(Kind::rule.exit != activation_layout::nothing ||
                      ((exit_of(check<B>::traits) == activation_layout::nothing) && ...),
                  "trireme::nn::auxiliary_loss: the last of its layers is not a loss; end with one of nn::loss");
    return (check<B>::template fits<entry_of_branch(Kind::rule, Takes), exit_of_branch(Kind::rule, As)>() && ...);
  }
};

}  // namespace detail

template <class Kind, class... B>
struct traits_of<composite<Kind, B...>> {
  static constexpr layer_traits value = [] {
    if constexpr (!Kind::rule.spreads) {
      return layer_traits{.does = Kind::rule.does};
    } else {
      std::array<layer_traits, sizeof...(B)> const branches{detail::check<B>::as_branch()...};
      return fork_traits(branches);
    }
  }();
};

/// Whether the layers of an expression can stand in their order. What cannot is a compile error of one sentence. Every
/// unit that is an expression is checked like this without a call.
template <class L>
[[nodiscard]] constexpr bool fits(L const&) {
  return detail::check<L>::fits_unit();
}

// ---- run states

/// A layer of your own: three functions over the rows (or columns) that lie here, and one word, `L::flow`, that says
/// where it may stand.
///
/// `L::instance<Env>` is constructed from (description, placing<Env>&). It has a type saved,
/// forward(pass, saved, x) -> y, backward_input(pass, saved, x, dy) -> dx, backward_weight(pass, saved, x, dy), and
/// visit(f) if it has parameters. The chain keeps x and dy for it.
template <class S, class Env>
concept layer_state = requires(S& state, pass<Env>& pass, typename S::saved& saved, detail::view_of<Env> x) {
  { state.forward(pass, saved, x) } -> std::same_as<detail::view_of<Env>>;
  { state.backward_input(pass, saved, x, x) } -> std::same_as<detail::view_of<Env>>;
  state.backward_weight(pass, saved, x, x);
};

namespace detail {

/// The node of a layer of the library: it keeps the description, which supplies the traits.
template <class Env, class L>
class library_node : public node<Env> {
 public:
  explicit library_node(L const& what, node_facts facts = {}) : node<Env>(facts), what_(what) {}
  [[nodiscard]] layer_traits traits() const override { return traits_of<L>::value; }

 protected:
  L what_;
};

/// The node that a description becomes. The library's layers specialise it; this one is of layers written by hand.
template <class Env, class L>
class layer_node final : public library_node<Env, L> {
  using state = typename L::template instance<Env>;
  using library_node<Env, L>::what_;
  static_assert(
      layer_state<state, Env>,
      "trireme::nn: a layer's instance<Env> needs saved, forward(pass, saved, x), backward_input(pass, saved, "
      "x, dy) and backward_weight(pass, saved, x, dy)");
  static_assert(traits_of<L>::value.does == flow::rows || traits_of<L>::value.does == flow::columns ||
                    traits_of<L>::value.does == flow::any,
                "trireme::nn: a layer written by hand says flow::rows, flow::columns or flow::any");

 public:
  using typename node<Env>::view;

  explicit layer_node(L const& what) : library_node<Env, L>(what, {.weights = true, .overwrites = true}) {}
  void visit(parameter_visitor<Env> const& each) override {
    if constexpr (requires { state_->visit(each); }) state_->visit(each);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
    auto const y = state_->forward(pass, saved_[pass], x.v);
    return {y, false, x.entry && y.address() == x.v.address()};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    ops::on<typename Env::space>::copy(to.into, state_->backward_input(pass, saved_[pass], x.get(pass), dy));
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view dy) override {
    state_->backward_weight(pass, saved_[pass], x.get(pass), dy);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const from = at.width;
    state_.emplace(what_, at);
    at.width = from;
    if constexpr (requires { what_.width(from); }) at.width = what_.width(from);
  }
  std::optional<state> state_;
  per_micro_batch<typename state::saved> saved_;
};

}  // namespace detail

/// Appends the nodes of a description: of a chain one for each layer, else a single one.
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, L const& layer) {
  // Not make_unique: a type of pointer for each type of node would take the compiler longer than the node.
  if constexpr (ops::finds_kernels<L, Env>())
    out.push_back(node_pointer<Env>(new detail::layer_node<Env, L>(layer)));
  else
    static_cast<void>(ops::expect_kernels<L, Env>());
}
template <class Env, class Kind, class... B>
void append_nodes(std::vector<node_pointer<Env>>& out, composite<Kind, B...> const& layer);
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, named_of<L> const& layer);
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, repeat_of<L> const& layers);
template <class Env, class... L>
void append_nodes(std::vector<node_pointer<Env>>& out, chain_of<L...> const& chain) {
  chain.layers.each([&](auto const& each) { append_nodes<Env>(out, each); });
}
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, repeat_of<L> const& layers) {
  if (layers.count < 1) {
    throw config_error(text("trireme::nn::repeat: ", how_many(layers.count, "layer"), "; repeat a layer once or more"));
  }
  for (std::int64_t i = 0; i < layers.count; ++i) append_nodes<Env>(out, nn::named(std::to_string(i), layers.layer));
}
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, named_of<L> const& layer) {
  auto const first = out.size();
  append_nodes<Env>(out, layer.layer);
  for (auto i = first; i < out.size(); ++i) out[i]->prefix(layer.name);
}
template <class Env, class L>
[[nodiscard]] std::vector<node_pointer<Env>> nodes_of(L const& layer) {
  std::vector<node_pointer<Env>> out;
  append_nodes<Env>(out, layer);
  return out;
}

template <class Env, class Kind, class... B>
void append_nodes(std::vector<node_pointer<Env>>& out, composite<Kind, B...> const& layer) {
  std::vector<detail::chain_node<Env>> branches;
  layer.branches.each([&](auto const& each) { branches.emplace_back(nodes_of<Env>(each)); });
  out.push_back(node_pointer<Env>(new detail::layer_node<Env, Kind>(Kind{}, std::move(branches))));
}

namespace detail {

/// The node of a composite: chains that all read its input. A kind adds forward and backward, and what it makes of the
/// rows that its branches make.
template <class Env>
class branching_node : public node<Env> {
 public:
  using typename node<Env>::view;

  template <class Kind>
  branching_node(Kind, std::vector<chain_node<Env>> branches)
      : node<Env>(Kind::rule.facts), branches_(std::move(branches)), rule_(Kind::rule) {
    this->facts_.inside = true;
    for (auto const& each : branches_)
      this->facts_.adds_sample_losses = this->facts_.adds_sample_losses || each.adds_sample_losses();
  }
  [[nodiscard]] layer_traits traits() const final {
    if (!rule_.spreads) return {.does = rule_.does};
    std::vector<layer_traits> all;
    for (auto const& each : branches_) all.push_back(each.as_branch());
    return fork_traits(all);
  }
  void visit(parameter_visitor<Env> const& each) final {
    for (auto& one : branches_) one.visit(each);
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view) override {
    for (auto& each : branches_) each.backward_weight(pass, x);
  }
  void shadow_forward(pass<Env>& pass) override {
    for (auto& each : branches_) each.shadow_forward(pass);
  }
  void shadow_backward(pass<Env>& pass) override {
    for (auto& each : branches_) each.shadow_backward(pass);  // in the order in which backward goes through them
  }

 protected:
  /// The rows that result from those that the branches make.
  /// @param from   the rows that each branch gets.
  /// @param whole  false: each rank has some columns of the result.
  /// Errors   config_error, naming the layer, if rows do not go together.
  virtual row_shape join(row_shape const& from, std::vector<row_shape> const& made, bool whole) = 0;

  std::vector<chain_node<Env>> branches_;

 private:
  void do_place(placing<Env>& at, layer_step const& step) final {
    row_shape const from = at;
    auto* const taker = at.taker;
    auto const auxiliary_loss = std::exchange(at.auxiliary, at.auxiliary || rule_.exit == activation_layout::nothing);
    auto const before = at.counted.forward;
    auto const exit = exit_of_branch(rule_, step.as);
    std::vector<row_shape> made;
    for (auto& each : branches_) {
      at.set(from);
      at.taker = taker;
      each.place(at, entry_of_branch(rule_, step.takes), exit);
      made.push_back(at);
    }
    at.auxiliary = auxiliary_loss;
    if (rule_.runs_again) at.counted.backward += at.counted.forward - before;
    at.set(join(from, made, exit != activation_layout::columns));
  }
  branch_rule rule_;
};

template <class Env>
class layer_node<Env, residual_kind> final : public branching_node<Env> {
 public:
  using branching_node<Env>::branching_node;
  using typename node<Env>::view;

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
    return this->branches_[0].forward(pass, x.v, x.v);
  }
  // dy is already the gradient of x along the residual stream; the branch adds its own to it.
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env>, half when) override {
    auto const mark = pass.scratch.mark();
    this->branches_[0].backward(pass, x, {dy, false, memory::passing}, {dy, true}, when);
    pass.scratch.rewind(mark);
  }

 private:
  row_shape join(row_shape const& from, std::vector<row_shape> const& made, bool) override {
    bool const alike = made[0].image == from.image || from.image.size() != from.width;
    if (made[0].width == from.width && alike) return made[0];
    throw config_error(text("trireme::nn::residual: a branch of ", this->name(), " makes rows of ", made[0].width,
                            " numbers from rows of ", from.width, "; what is added to its input must be as wide",
                            alike ? "" : ", and images of one shape"));
  }
};

template <class Env>
class layer_node<Env, product_kind> final : public branching_node<Env> {
  using branching_node<Env>::branches_;
  using kernels = ops::on<typename Env::space>;

 public:
  using branching_node<Env>::branching_node;
  using typename node<Env>::view;

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto& kept = kept_[pass];
    kept.a = branches_[0].forward(pass, x.v);
    kept.b = branches_[1].forward(pass, x.v);
    auto const y = to.template take<typename Env::compute>(kept.a.v.extents());
    kernels::elementwise_product(y, kept.a.v, kept.b.v);
    return {y, true};
  }
  // Both factors' gradients are formed before either branch runs, because the branches may write to the memory of dy.
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    auto const& kept = kept_[pass];
    auto const a = factor(pass, kept.a, x), b = factor(pass, kept.b, x);
    auto const da = times(pass, dy, b, kept.b.ours, when);
    auto const db = times(pass, dy, a, kept.a.ours, when);
    branches_[0].backward(pass, x, da, {to.into, to.accumulate}, when);
    branches_[1].backward(pass, x, db, {to.into, true}, when);
  }

 private:
  struct saved {
    held<Env> a, b;
  };
  row_shape join(row_shape const&, std::vector<row_shape> const& made, bool whole) override {
    if (made[0].width == made[1].width && (whole || made[0].cut == made[1].cut)) return made[1];
    throw config_error(text("trireme::nn::product: the factors of ", this->name(), " are ", made[0].width, " and ",
                            made[1].width, " numbers wide; both must be as wide, and cut alike"));
  }
  static view factor(pass<Env>& pass, held<Env> const& it, layer_input<Env> const& x) {
    return it.entry ? x.get(pass) : it.v;
  }
  // dy times one factor, in that factor's memory if it is not read later.
  static gradient<Env> times(pass<Env>& pass, view dy, view by, bool ours, half when) {
    bool const later = when == half::later;
    auto const d =
        ours ? by : (later ? pass.activations : pass.scratch).template take<typename Env::compute>(dy.extents());
    kernels::elementwise_product(d, dy, by);
    return {d, true, ours || later ? memory::kept : memory::scratch};
  }
  per_micro_batch<saved> kept_;
};

template <class Env>
class layer_node<Env, concat_kind> final : public branching_node<Env> {
  using branching_node<Env>::branches_;
  using kernels = ops::on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using branching_node<Env>::branching_node;
  using typename node<Env>::view;

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto const y = to.template take<value>({x.v.extent(0), all_columns()});
    std::int64_t at = 0;
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      kernels::copy_columns(y, at, branches_[i].forward(pass, x.v).v, 0, columns_[i]);
      at += columns_[i];
    }
    return {y, true};
  }
  // Each branch gets its columns of dy before any of them runs: where dx goes may be the memory of dy.
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    bool const later = when == half::later;
    std::vector<view> parts;
    std::int64_t at = 0;
    for (auto const columns : columns_) {
      parts.push_back((later ? pass.activations : pass.scratch).template take<value>({dy.extent(0), columns}));
      kernels::copy_columns(parts.back(), 0, dy, at, columns);
      at += columns;
    }
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      branches_[i].backward(pass, x, {parts[i], true, later ? memory::kept : memory::scratch},
                            {to.into, to.accumulate || i > 0}, when);
    }
  }

 private:
  row_shape join(row_shape const&, std::vector<row_shape> const& made, bool) override {
    for (auto const& each : made) columns_.push_back(each.width);
    return {all_columns()};
  }
  [[nodiscard]] std::int64_t all_columns() const {
    return std::accumulate(columns_.begin(), columns_.end(), std::int64_t{0});
  }

  std::vector<std::int64_t> columns_;  // of each branch's result
};

}  // namespace detail

// ---- units

/// A description of a unit that is an expression: its parameters' names begin with name(), it takes rows of width()
/// numbers, and layers() is the expression.
template <class D>
concept unit_of_layers = requires(D const& unit) {
  { unit.name() } -> std::convertible_to<std::string>;
  { unit.width() } -> std::convertible_to<std::int64_t>;
  unit.layers();
};

namespace detail {

template <class L>
concept reads_numbers = requires {
  requires L::reads_numbers;
};
/// Whether an expression begins with a source whose inputs are tokens rather than numbers.
template <class List>
inline constexpr bool begins_with_tokens = false;
template <class First, class... L>
inline constexpr bool begins_with_tokens<layer_list<First, L...>> =
    traits_of<First>::value.does == flow::source && !reads_numbers<First>;

}  // namespace detail

/// The run state of every unit that is an expression. Its backward has two halves, whatever layers are in it.
template <class Env>
class expression {
 public:
  using view = detail::view_of<Env>;
  struct saved {
    view x;
  };

  template <unit_of_layers Unit>
  explicit expression(Unit const& unit, rank_groups<Env> const& groups = rank_groups<Env>::none())
      : expression(unit.name(), unit.width(), nodes_of<Env>(unit.layers()), groups, changes_of(unit)) {
    static_assert(detail::check<std::remove_cvref_t<decltype(unit.layers())>>::fits_unit());
  }
  expression(std::string const& name, std::int64_t width, std::vector<node_pointer<Env>> nodes,
             rank_groups<Env> const& groups, lora_options const* lora = nullptr, std::int64_t positions = 0)
      : layers_(std::move(nodes)), ranks_(tensor_group<Env>::of(groups).size()) {
    auto const traits = layers_.traits();
    begins_ = entry_of(traits) == activation_layout::nothing;
    ends_ = exit_of(traits) == activation_layout::nothing;
    placing<Env> at{{width}, groups, tensor_group<Env>::of(groups).coordinate(), name, lora, positions};
    layers_.place(at, entry_of(traits), exit_of(traits));
    sites_ = at.sites;
    counted_ = at.counted;
  }
  [[nodiscard]] std::uint32_t dropout_sites() const noexcept { return sites_; }
  void visit(auto&& each) {
    layers_.visit([&](parameter<Env>& one) { each(one); });
  }
  view forward(pass<Env>& pass, saved& kept, view x) {
    if (pass.group.size() != ranks_) throw config_error(made_for_others(pass.group.size()));
    kept.x = x;
    auto const y = layers_.forward(pass, x);
    return y.entry ? copy(pass, y.v) : y.v;
  }
  view backward(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::at_once); }
  view backward_input(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::later); }
  void backward_weight(pass<Env>& pass, saved& kept) { layers_.backward_weight(pass, {kept.x}); }
  view input_gradient(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::never); }
  void shadow_forward(pass<Env>& pass, saved&) { layers_.shadow_forward(pass); }
  void shadow_backward(pass<Env>& pass, saved&) { layers_.shadow_backward(pass); }
  template <unit_of_layers Unit>
  [[nodiscard]] static bool adds_sample_losses(Unit const& unit) {
    return detail::chain_node<Env>(nodes_of<Env>(unit.layers())).adds_sample_losses();
  }
  /// What a row of a unit costs in training, in samples of `positions` positions.
  template <unit_of_layers Unit>
  [[nodiscard]] static operations operations_of(Unit const& unit, std::int64_t positions) {
    auto const& alone = rank_groups<Env>::none();
    return expression(unit.name(), unit.width(), nodes_of<Env>(unit.layers()), alone, nullptr, positions).counted_;
  }
  [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const { return layers_.rows_of_loss(batch); }

 private:
  template <class Unit>
  static lora_options const* changes_of([[maybe_unused]] Unit const& unit) {
    if constexpr (requires { unit.lora(); }) {
      return unit.lora();
    } else {
      return nullptr;
    }
  }
  // The gradient that goes to the unit before must not lie in scratch memory, which ends with this unit.
  view backward(pass<Env>& pass, saved& kept, view dy, detail::half when) {
    detail::target<Env> out;
    if (ends_ && !begins_) out.into = pass.take(kept.x.extents());
    auto const mark = pass.scratch.mark();
    auto dx = layers_.backward(pass, {kept.x}, {dy, true, detail::memory::passing}, out, when);
    if (!begins_ && !ends_ && dx.lies == detail::memory::scratch) {
      auto const kept_dx = dy.extents() == dx.v.extents() ? dy : pass.take(dx.v.extents());
      ops::on<typename Env::space>::copy(kept_dx, dx.v);
      dx.v = kept_dx;
    }
    pass.scratch.rewind(mark);
    return dx.v;
  }
  [[nodiscard]] std::string made_for_others(int ranks) const {
    return text("trireme::nn: this unit was made for a tensor group of ", how_many(ranks_, "rank"),
                ", but the group of its pass has ", ranks,
                "; give it the pass's groups when it is made (expression(unit, groups)), or a pass without groups");
  }
  static view copy(pass<Env>& pass, view x) {
    auto const y = pass.take(x.extents());
    ops::on<typename Env::space>::copy(y, x);
    return y;
  }
  detail::chain_node<Env> layers_;
  int ranks_;  // of the tensor group for which the layers were cut
  std::uint32_t sites_ = 0;
  operations counted_{};
  bool begins_ = false, ends_ = false;  // this is a model's first unit, or its last
};

/// A unit made of any expression: name, width, layers (see unit_of_layers).
template <class Layers>
struct block {
  std::string prefix;
  std::int64_t channels = 0;
  Layers of;
  friend bool operator==(block const&, block const&) = default;

  [[nodiscard]] std::string const& name() const noexcept { return prefix; }
  [[nodiscard]] std::int64_t width() const noexcept { return channels; }
  [[nodiscard]] Layers const& layers() const noexcept { return of; }
  template <class Env>
  using instance = expression<Env>;
};
template <class Layers>
block(std::string, std::int64_t, Layers) -> block<Layers>;

}  // namespace trireme::nn

namespace trireme {

/// A unit of layers reads tokens if its first layer does.
template <nn::unit_of_layers Unit>
inline constexpr bool reads_tokens<Unit> = nn::detail::begins_with_tokens<
    typename nn::detail::layers_in<std::remove_cvref_t<decltype(std::declval<Unit const&>().layers())>>::type>;

}  // namespace trireme
