#pragma once

#include <cstdint>

#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// The positions of each sample that a rank of a context group holds, the same for all samples. Rank r has slice r of
/// as many equal slices as ranks; or, if balanced, of twice as many slices, slice r from either end. The cost of causal
/// attention grows with the position, so balanced parts have equal costs.
struct context_shard {
  group_rank own{};
  bool balanced = false;
  friend bool operator==(context_shard const&, context_shard const&) = default;

  struct stretch {
    std::int64_t row = 0;       ///< its first row among this rank's rows of a sample
    std::int64_t position = 0;  ///< its first position in the whole sample
    std::int64_t count = 0;
    friend bool operator==(stretch const&, stretch const&) = default;
  };
  [[nodiscard]] constexpr int stretches() const noexcept { return balanced ? 2 : 1; }
  /// The number of positions of a whole sample must be a multiple of this.
  [[nodiscard]] constexpr std::int64_t stretch_count() const noexcept { return std::int64_t{own.size} * stretches(); }
  /// @param here  number of rows of a sample on this rank.
  [[nodiscard]] constexpr stretch at(int which, std::int64_t here) const noexcept {
    auto const count = here / stretches();
    auto const index = which == 0 ? own.rank : 2 * own.size - 1 - own.rank;
    return {which * count, index * count, count};
  }
  [[nodiscard]] constexpr std::int64_t whole(std::int64_t here) const noexcept { return here * own.size; }
};

/// The tensors that attention keeps for its backward pass.
template <class Env>
struct attention_state {
  using view = tensor_view<typename Env::compute, typename Env::space>;
  view qkv;                                                        ///< queries, keys and values, side by side
  view heads;                                                      ///< outputs of attention
  tensor_view<typename Env::accumulate, typename Env::space> lse;  ///< logs of the softmax's denominators
};

/// The ranks that share each sample's positions, as layers see them: which positions this rank holds, and attention
/// over all of them, the only operation that is not row by row. A group of one has all positions; attend() is not
/// called on it.
///
/// Ranks    collective: all members call the same in the same order.
/// Numerics dropout depends on positions in the whole sample.
template <class Env>
class context_group : public rank_group<context_group<Env>> {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;
  using state = attention_state<Env>;

  /// The group of a rank that holds whole samples.
  [[nodiscard]] static context_group& one();

  [[nodiscard]] context_shard const& part() const noexcept { return part_; }

  /// Self-attention over whole samples; writes heads. kept.qkv holds this rank's rows of queries, keys and values; all
  /// of kept stays in `activations`.
  /// @param shape  of this rank's part.
  virtual void attend(view heads, state& kept, attention_shape const& shape, arena<space>& activations,
                      arena<space>& scratch, dropout_site_in<space> const& dropout) = 0;
  /// The gradient of attend: writes dqkv. heads is the output of attend.
  virtual void attend_backward(view dqkv, view dheads, view heads, state const& kept, attention_shape const& shape,
                               arena<space>& scratch, dropout_site_in<space> const& dropout) = 0;

 protected:
  explicit context_group(context_shard const& part) noexcept : rank_group<context_group<Env>>(part.own), part_(part) {}

 private:
  context_shard part_;
};

namespace detail {

/// The group with whole samples: layers compute attention themselves.
template <class Env>
class whole_context final : public context_group<Env> {
  using typename context_group<Env>::space;
  using typename context_group<Env>::view;
  using typename context_group<Env>::state;

 public:
  whole_context() noexcept : context_group<Env>({}) {}

 private:
  void attend(view, state&, attention_shape const&, arena<space>&, arena<space>&,
              dropout_site_in<space> const&) override {}
  void attend_backward(view, view, view, state const&, attention_shape const&, arena<space>&,
                       dropout_site_in<space> const&) override {}
};

}  // namespace detail

template <class Env>
context_group<Env>& context_group<Env>::one() {
  static detail::whole_context<Env> group;
  return group;
}

/// A model whose units work on any positions of a sample: they get positions from `context_group<Env>::of(pass)`,
/// compute attention through it, and work row by row otherwise.
template <class M>
concept cuts_context = requires {
  requires M::cuts_context;
};

}  // namespace trireme
