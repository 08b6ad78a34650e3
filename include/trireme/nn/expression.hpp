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
/// x + branch(x)
template <class Chain>
struct residual_of {
  Chain branch;
  friend bool operator==(residual_of const&, residual_of const&) = default;
};
/// a(x) * b(x), number by number.
template <class A, class B>
struct product_of {
  A a;
  B b;
  friend bool operator==(product_of const&, product_of const&) = default;
};
/// The results of all branches on x, side by side in each row.
template <class... L>
struct beside_of {
  chain_of<L...> branches;
  friend bool operator==(beside_of const&, beside_of const&) = default;
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
template <class... L>
[[nodiscard]] residual_of<chain_of<L...>> residual(L... layers) {
  return {nn::chain(std::move(layers)...)};
}
template <class A, class B>
[[nodiscard]] product_of<A, B> product(A a, B b) {
  return {std::move(a), std::move(b)};
}
template <class... L>
[[nodiscard]] beside_of<L...> beside(L... branches) {
  return {nn::chain(std::move(branches)...)};
}
template <class L>
[[nodiscard]] repeat_of<L> repeat(std::int64_t count, L layer) {
  return {count, std::move(layer)};
}

// ---- checks at compile time

/// What a layer says of itself, from its type: `static constexpr layer_says says` or `static constexpr nn::flow flow`.
template <class L>
struct says_of {
  static constexpr layer_says value = [] {
    if constexpr (requires { L::says; }) {
      return L::says;
    } else {
      return layer_says{.does = L::flow};
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
template <class Layer, misfit What>
struct stands {
  static_assert(
      What != misfit::rows_of_columns,
      "trireme::nn::chain: this layer works on whole rows, but the one before it leaves each rank of a tensor "
      "group some columns; put a linear layer between them");
  static_assert(
      What != misfit::columns_of_rows,
      "trireme::nn::chain: this layer works on the columns of its heads, but what comes before it gives whole "
      "rows; put the linear layer that makes queries, keys and values before it");
  static_assert(What != misfit::fork_of_columns,
                "trireme::nn::chain: the branches of a product begin with whole rows, but the layer before it leaves "
                "each rank of a tensor group some columns; put a linear layer between them");
  static_assert(What != misfit::columns_left,
                "trireme::nn::chain: the last layer leaves each rank of a tensor group some columns; end with a linear "
                "layer");
  static_assert(
      What != misfit::source_within,
      "trireme::nn::chain: this layer makes rows of the batch's numbers, but there are rows already; it is the "
      "first layer of a unit");
  static_assert(What != misfit::loss_within,
                "trireme::nn::chain: a loss is the last layer of a unit; what comes behind it gets no rows");
  static_assert(What != misfit::loss_missing,
                "trireme::nn::chain: the numbers of a product with a table of words are never all in memory; put the "
                "loss right behind it");
  static constexpr bool value = What == misfit::none;
};
struct the_end;

/// Whether the branches inside a layer fit, given how the layer is cut and how its input lies.
template <class L>
struct inside {
  template <role As, lie Takes>
  static constexpr bool fits() {
    return true;
  }
};

template <class List>
struct list_check;
template <class... L>
struct list_check<layer_list<L...>> {
  static constexpr std::size_t count = sizeof...(L);
  static constexpr std::array<layer_says, count> says{says_of<L>::value...};
  struct placed {
    std::array<layer_step, count> steps{};
    placement found{};
  };
  static constexpr placed place(lie entry, lie exit) {
    placed out;
    out.found = resolve(says, out.steps, entry, exit);
    return out;
  }
  static constexpr layer_says as_branch() {
    std::array<layer_step, count> steps{};
    return branch_says(says, steps);
  }
  template <std::size_t Index>
  using layer = std::tuple_element_t<Index, std::tuple<L..., the_end>>;
  /// The same of all layers of a unit.
  static constexpr bool fits_unit() { return fits<entry_of(says), exit_of(says)>(); }
  /// Refuses what does not fit, in one sentence.
  template <lie Entry, lie Exit>
  static constexpr bool fits() {
    constexpr auto found = place(Entry, Exit).found;
    if constexpr (found.what != misfit::none) {
      return stands<layer<found.where>, found.what>::value;
    } else {
      return all_inside<Entry, Exit>(std::make_index_sequence<count>{});
    }
  }

 private:
  template <lie Entry, lie Exit, std::size_t... Index>
  static constexpr bool all_inside(std::index_sequence<Index...>) {
    [[maybe_unused]] constexpr auto steps = place(Entry, Exit).steps;
    return (inside<L>::template fits<steps[Index].as, steps[Index].takes>() && ...);
  }
};

template <class Expression>
using check = list_check<typename layers_in<Expression>::type>;

template <class A, class B>
struct inside<product_of<A, B>> {
  template <role As, lie Takes>
  static constexpr bool fits() {
    constexpr auto exit = As == role::spread ? lie::columns : lie::rows;
    return check<A>::template fits<Takes, exit>() && check<B>::template fits<Takes, exit>();
  }
};
template <class... L>
struct inside<beside_of<L...>> {
  template <role, lie Takes>
  static constexpr bool fits() {
    return (check<L>::template fits<Takes, lie::rows>() && ...);
  }
};
template <class Chain>
struct inside<residual_of<Chain>> {
  template <role, lie>
  static constexpr bool fits() {
    return check<Chain>::template fits<lie::rows, lie::rows>();
  }
};

}  // namespace detail

template <class Chain>
struct says_of<residual_of<Chain>> {
  static constexpr layer_says value{.does = flow::rows};
};
template <class... L>
struct says_of<beside_of<L...>> {
  static constexpr layer_says value{.does = flow::fork};
};
template <class A, class B>
struct says_of<product_of<A, B>> {
  static constexpr layer_says a = detail::check<A>::as_branch(), b = detail::check<B>::as_branch();
  static constexpr layer_says value{
      .does = flow::fork, .spreads = a.spreads && b.spreads, .shares_entry = a.shares_entry && b.shares_entry};
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

template <class Env, class L>
class hand_written final : public node<Env> {
  using state = typename L::template instance<Env>;
  static_assert(
      layer_state<state, Env>,
      "trireme::nn: a layer's instance<Env> needs saved, forward(pass, saved, x), backward_input(pass, saved, "
      "x, dy) and backward_weight(pass, saved, x, dy)");
  static_assert(says_of<L>::value.does == flow::rows || says_of<L>::value.does == flow::columns ||
                    says_of<L>::value.does == flow::any,
                "trireme::nn: a layer written by hand says flow::rows, flow::columns or flow::any");

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit hand_written(L const& what) : what_(what) { this->facts_.weights = true; }
  [[nodiscard]] layer_says says() const override { return says_of<L>::value; }
  [[nodiscard]] std::int64_t width(std::int64_t from) const override {
    if constexpr (requires { what_.width(from); }) {
      return what_.width(from);
    } else {
      return from;
    }
  }
  void visit(parameter_visitor<Env> const& each) override {
    if constexpr (requires { state_->visit(each); }) state_->visit(each);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>&, view) override {
    auto const y = state_->forward(pass, saved_[pass], x.v);
    return {y, false, x.entry && y.address() == x.v.address()};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    ops::on<space>::copy(to.into, state_->backward_input(pass, saved_[pass], x.get(pass), dy));
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view dy) override {
    state_->backward_weight(pass, saved_[pass], x.get(pass), dy);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const after = width(at.width);
    state_.emplace(what_, at);
    at.width = after;
  }
  L what_;
  std::optional<state> state_;
  per_slot<typename state::saved> saved_;
};

}  // namespace detail

/// The type of the node that a description becomes. Layers of the library specialise it.
template <class Env, class L>
struct node_of {
  using type = detail::hand_written<Env, L>;
};

/// Appends the nodes of a description: of a chain one for each layer, else a single one.
template <class Env, class L>
void append_nodes(std::vector<node_pointer<Env>>& out, L const& layer) {
  // Not make_unique: a type of pointer for each type of node would take the compiler longer than the node.
  out.push_back(node_pointer<Env>(new typename node_of<Env, L>::type(layer)));
}
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

namespace detail {

/// What a node of chains that all read its input has in common.
template <class Env>
class branching_node : public node<Env> {
 public:
  using typename node<Env>::view;

  void visit(parameter_visitor<Env> const& each) final {
    for (auto& one : branches_) one.visit(each);
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view) final {
    for (auto& each : branches_) each.backward_weight(pass, x);
  }
  void serve_forward(pass<Env>& pass) final {
    for (auto& each : branches_) each.serve_forward(pass);
  }
  void serve_backward(pass<Env>& pass) final {
    for (auto& each : branches_) each.serve_backward(pass);  // in the order in which backward goes through them
  }
  [[nodiscard]] bool adds_sample_losses() const override {
    return std::any_of(branches_.begin(), branches_.end(), [](auto const& one) { return one.adds_sample_losses(); });
  }

 protected:
  template <class... Nodes>
  explicit branching_node(Nodes... of_each) {
    this->facts_.inside = true;
    (branches_.emplace_back(std::move(of_each)), ...);
  }

  std::vector<chain_node<Env>> branches_;
};

template <class Env>
class residual_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class Chain>
  explicit residual_node(residual_of<Chain> const& what) : residual_node(nodes_of<Env>(what.branch)) {}
  explicit residual_node(std::vector<node_pointer<Env>> branch) : branching_node<Env>(std::move(branch)) {
    this->facts_.in_place = true;
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>&, view) override {
    return branch().forward(pass, x.v, x.v);
  }
  // d is already the gradient of x along the residual stream; the branch adds its own to it.
  void backward_in_place(pass<Env>& pass, layer_input<Env> x, gradient<Env> d, half when) override {
    auto const mark = pass.scratch.mark();
    branch().backward(pass, x, {d.v, false, memory::passing}, {d.v, true}, when);
    pass.scratch.rewind(mark);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const from = at.width;
    auto const image = at.image;
    branch().place(at, lie::rows, lie::rows);
    bool const alike = at.image == image || image.size() != from;
    if (at.width == from && alike) return;
    throw config_error(text("trireme::nn::residual: a branch of ", at.name, " makes rows of ", at.width,
                            " numbers from rows of ", from, "; what is added to its input must be as wide",
                            alike ? "" : ", and images of one shape"));
  }
  [[nodiscard]] chain_node<Env>& branch() { return branches_[0]; }
};

template <class Env>
class product_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class A, class B>
  explicit product_node(product_of<A, B> const& what) : product_node(nodes_of<Env>(what.a), nodes_of<Env>(what.b)) {}
  product_node(std::vector<node_pointer<Env>> a, std::vector<node_pointer<Env>> b)
      : branching_node<Env>(std::move(a), std::move(b)) {
    this->facts_.accumulates = true;
  }
  [[nodiscard]] layer_says says() const override {
    auto const a = branches_[0].as_branch(), b = branches_[1].as_branch();
    return {.does = flow::fork, .spreads = a.spreads && b.spreads, .shares_entry = a.shares_entry && b.shares_entry};
  }
  [[nodiscard]] std::int64_t width(std::int64_t from) const override { return branches_[0].width(from); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>& to, view) override {
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
  void do_place(placing<Env>& at, layer_step const& step) override {
    auto const before = at;
    bool const spread = step.as == role::spread;
    auto const exit = spread ? lie::columns : lie::rows;
    branches_[0].place(at, step.takes, exit);
    auto const one = at;
    at.width = before.width, at.cut = before.cut, at.wanted = before.wanted, at.act = before.act;
    at.image = before.image;
    branches_[1].place(at, step.takes, exit);
    if (one.width == at.width && (!spread || one.cut == at.cut)) return;
    throw config_error(text("trireme::nn::product: the factors of ", at.name, " are ", one.width, " and ", at.width,
                            " numbers wide; both must be as wide, and cut alike"));
  }
  static view factor(pass<Env>& pass, held<Env> const& it, layer_input<Env> const& x) {
    return it.entry ? x.get(pass) : it.v;
  }
  // dy times one factor, in that factor's memory if nobody reads it later.
  static gradient<Env> times(pass<Env>& pass, view dy, view by, bool ours, half when) {
    bool const later = when == half::later;
    auto const d =
        ours ? by : (later ? pass.activations : pass.scratch).template take<typename Env::compute>(dy.extents());
    kernels::elementwise_product(d, dy, by);
    return {d, true, ours || later ? memory::kept : memory::scratch};
  }
  per_slot<saved> kept_;
};

template <class Env>
class beside_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;
  using kernels = ops::on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class... L>
  explicit beside_node(beside_of<L...> const& what) : beside_node() {
    what.branches.layers.each([&](auto const& each) { branches_.emplace_back(nodes_of<Env>(each)); });
  }
  explicit beside_node(std::vector<std::vector<node_pointer<Env>>> branches) : beside_node() {
    for (auto& each : branches) branches_.emplace_back(std::move(each));
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::fork}; }
  [[nodiscard]] std::int64_t width(std::int64_t from) const override {
    std::int64_t sum = 0;
    for (auto const& each : branches_) sum += each.width(from);
    return sum;
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>& to, view) override {
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
  beside_node() { this->facts_.accumulates = true; }
  void do_place(placing<Env>& at, layer_step const& step) override {
    auto const from = at.width;
    auto const image = at.image;
    for (auto& each : branches_) {
      at.width = from, at.image = image;
      at.act = ops::activation::none;
      each.place(at, step.takes, lie::rows);
      columns_.push_back(at.width);
    }
    at.width = all_columns(), at.image = {};
  }
  [[nodiscard]] std::int64_t all_columns() const {
    return std::accumulate(columns_.begin(), columns_.end(), std::int64_t{0});
  }

  std::vector<std::int64_t> columns_;  // of each branch's result
};

}  // namespace detail

template <class Env, class... L>
struct node_of<Env, beside_of<L...>> {
  using type = detail::beside_node<Env>;
};
template <class Env, class Chain>
struct node_of<Env, residual_of<Chain>> {
  using type = detail::residual_node<Env>;
};
template <class Env, class A, class B>
struct node_of<Env, product_of<A, B>> {
  using type = detail::product_node<Env>;
};

// ---- units

/// A description of a unit that is an expression: its parameters' names begin with name(), it takes rows of width()
/// numbers, its first dropout site is site(), and layers() is the expression.
template <class D>
concept unit_of_layers = requires(D const& unit) {
  { unit.name() } -> std::convertible_to<std::string>;
  { unit.width() } -> std::convertible_to<std::int64_t>;
  { unit.site() } -> std::convertible_to<std::uint32_t>;
  unit.layers();
};

namespace detail {

template <class L>
concept reads_numbers = requires {
  requires L::reads_numbers;
};
/// Whether an expression begins with a source whose inputs are no numbers.
template <class List>
inline constexpr bool begins_with_tokens = false;
template <class First, class... L>
inline constexpr bool begins_with_tokens<layer_list<First, L...>> =
    says_of<First>::value.does == flow::source && !reads_numbers<First>;

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
      : expression(unit.name(), unit.width(), unit.site(), nodes_of<Env>(unit.layers()), groups, changes_of(unit)) {
    static_assert(detail::check<std::remove_cvref_t<decltype(unit.layers())>>::fits_unit());
  }
  expression(std::string const& name, std::int64_t width, std::uint32_t site, std::vector<node_pointer<Env>> nodes,
             rank_groups<Env> const& groups, lora_options const* lora = nullptr)
      : layers_(std::move(nodes)) {
    auto const says = layers_.says();
    begins_ = entry_of(says) == lie::nothing;
    ends_ = exit_of(says) == lie::nothing;
    placing<Env> at{groups, tensor_group<Env>::of(groups).share(), name, width, {}, site};
    at.lora = lora;
    layers_.place(at, entry_of(says), exit_of(says));
    dropping_ = std::move(at.dropping);
  }
  /// The dropout sites at which its layers drop numbers.
  [[nodiscard]] std::vector<std::uint32_t> const& dropout_sites() const noexcept { return dropping_; }
  void visit(auto&& each) {
    layers_.visit([&](parameter<Env>& one) { each(one); });
  }
  view forward(pass<Env>& pass, saved& kept, view x) {
    kept.x = x;
    auto const y = layers_.forward(pass, x);
    return y.entry ? copy(pass, y.v) : y.v;
  }
  view backward(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::at_once); }
  view backward_input(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::later); }
  void backward_weight(pass<Env>& pass, saved& kept) { layers_.backward_weight(pass, {kept.x}); }
  view input_gradient(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, detail::half::never); }
  void serve_forward(pass<Env>& pass, saved&) { layers_.serve_forward(pass); }
  void serve_backward(pass<Env>& pass, saved&) { layers_.serve_backward(pass); }
  template <unit_of_layers Unit>
  [[nodiscard]] static bool adds_sample_losses(Unit const& unit) {
    return detail::chain_node<Env>(nodes_of<Env>(unit.layers())).adds_sample_losses();
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
  static view copy(pass<Env>& pass, view x) {
    auto const y = pass.take(x.extents());
    ops::on<typename Env::space>::copy(y, x);
    return y;
  }
  detail::chain_node<Env> layers_;
  std::vector<std::uint32_t> dropping_;
  bool begins_ = false, ends_ = false;  // this is a model's first unit, or its last
};

/// A unit made of any expression: name, width, first dropout site, layers (see unit_of_layers).
template <class Layers>
struct block {
  std::string prefix;
  std::int64_t channels = 0;
  std::uint32_t first_site = 0;
  Layers of;
  friend bool operator==(block const&, block const&) = default;

  [[nodiscard]] std::string const& name() const noexcept { return prefix; }
  [[nodiscard]] std::int64_t width() const noexcept { return channels; }
  [[nodiscard]] std::uint32_t site() const noexcept { return first_site; }
  [[nodiscard]] Layers const& layers() const noexcept { return of; }
  template <class Env>
  using instance = expression<Env>;
};
template <class Layers>
block(std::string, std::int64_t, std::uint32_t, Layers) -> block<Layers>;

}  // namespace trireme::nn

namespace trireme {

template <nn::unit_of_layers Unit>
inline constexpr bool reads_tokens<Unit> = nn::detail::begins_with_tokens<
    typename nn::detail::layers_in<std::remove_cvref_t<decltype(std::declval<Unit const&>().layers())>>::type>;

}  // namespace trireme
