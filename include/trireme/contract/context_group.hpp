#pragma once

#include <cstdint>

#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// Which positions of each sample a rank of a context group has, all samples alike: rank r has stretch r of as
/// many equal ones as there are ranks, or, balanced, stretch r from either end, of twice as many. Causal attention
/// costs a position the more the later it is; so balanced parts cost the same.
struct context_part {
  share own{};
  bool balanced = false;
  friend bool operator==(context_part const&, context_part const&) = default;

  struct stretch {
    std::int64_t row = 0;       ///< where it begins among the rows of a sample that lie here
    std::int64_t position = 0;  ///< and in the whole sample
    std::int64_t count = 0;
    friend bool operator==(stretch const&, stretch const&) = default;
  };
  [[nodiscard]] constexpr int stretches() const noexcept { return balanced ? 2 : 1; }
  /// The positions of a whole sample are a multiple of this.
  [[nodiscard]] constexpr std::int64_t pieces() const noexcept { return std::int64_t{own.size} * stretches(); }
  /// @param here  rows of a sample that lie here.
  [[nodiscard]] constexpr stretch at(int which, std::int64_t here) const noexcept {
    auto const count = here / stretches();
    auto const piece = which == 0 ? own.rank : 2 * own.size - 1 - own.rank;
    return {which * count, piece * count, count};
  }
  [[nodiscard]] constexpr std::int64_t whole(std::int64_t here) const noexcept { return here * own.size; }
};

/// What attention keeps for its backward pass.
template <class Env>
struct attention_state {
  using view = tensor_view<typename Env::compute, typename Env::space>;
  view qkv;                                                        ///< queries, keys and values, side by side
  view heads;                                                      ///< what came of them
  tensor_view<typename Env::accumulate, typename Env::space> lse;  ///< logs of the softmax's denominators
};

/// The ranks that share each sample's positions, as layers see them: which ones lie here, and attention over all of
/// them, the one thing that is not done row by row. A group of one has all positions, and is not asked to attend.
///
/// Ranks    collective: all members call the same in the same order.
/// Numerics what is dropped out depends on positions in the whole sample.
template <class Env>
class context_group : public rank_group<context_group<Env>> {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;
  using state = attention_state<Env>;

  /// The group of a rank that has whole samples.
  [[nodiscard]] static context_group& one();

  [[nodiscard]] context_part const& part() const noexcept { return part_; }

  /// Self-attention of the whole samples; heads is written. kept.qkv is this rank's rows of queries, keys and
  /// values; all of kept lives on in `activations`.
  /// @param shape  of what lies here.
  virtual void attend(view heads, state& kept, attention_shape const& shape, arena<space>& activations,
                      arena<space>& scratch, dropout_site const& dropout) = 0;
  /// The gradient of attend: dqkv is written. heads is what it gave.
  virtual void attend_backward(view dqkv, view dheads, view heads, state const& kept, attention_shape const& shape,
                               arena<space>& scratch, dropout_site const& dropout) = 0;

 protected:
  explicit context_group(context_part const& part) noexcept : rank_group<context_group<Env>>(part.own), part_(part) {}

 private:
  context_part part_;
};

namespace detail {

/// Has whole samples: layers attend to them on their own.
template <class Env>
class whole_context final : public context_group<Env> {
  using typename context_group<Env>::space;
  using typename context_group<Env>::view;
  using typename context_group<Env>::state;

 public:
  whole_context() noexcept : context_group<Env>({}) {}

 private:
  void attend(view, state&, attention_shape const&, arena<space>&, arena<space>&, dropout_site const&) override {}
  void attend_backward(view, view, view, state const&, attention_shape const&, arena<space>&,
                       dropout_site const&) override {}
};

}  // namespace detail

template <class Env>
context_group<Env>& context_group<Env>::one() {
  static detail::whole_context<Env> group;
  return group;
}

/// A model whose units work on any positions of a sample: they take positions from `context_group<Env>::of(pass)`,
/// attend through it, and treat each row alike otherwise.
template <class M>
concept cuts_context = requires {
  requires M::cuts_context;
};

}  // namespace trireme
