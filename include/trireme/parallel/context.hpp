#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/context_group.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/contract/rule.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/blocks.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/context_cut.hpp"
#include "trireme/parallel/grid.hpp"

namespace trireme::parallel {

/// How queries get the keys of other ranks. `ring`: keys and values travel round all ranks, which merge partial
/// results; `all_to_all`: during attention each rank has whole samples, but only some heads.
enum class context_method : std::uint8_t { ring, all_to_all };

[[nodiscard]] constexpr std::string_view name_of(context_method it) noexcept {
  return it == context_method::ring ? "ring" : "all_to_all";
}

/// Context parallelism, for long samples: each rank of a group holds some positions of each sample, and so 1 / ways of
/// all activations. Everything except attention is computed row by row.
///
/// Bytes    of a GPT, per micro-batch, layer and rank, with n = rows here * channels: ring 2 n (ways - 1) of the
///          compute type forward, while blocks are computed; backward these once more, and 2 n ways of the accumulate
///          type. all_to_all 8 n (ways - 1) / ways of the compute type, half of them backward. Gradients are summed
///          over the group, as over the axis of samples.
/// Needs    has_exchange and has_ragged_all_to_all of the compute type.
/// Method   ring: [Liu et al., "Ring attention with blockwise transformers", 2023], balanced as in [Brandon et al.,
///          "Striped attention", 2023], but by two slices a rank; all_to_all: [Jacobs et al., "DeepSpeed Ulysses",
///          2023].
/// Errors   config_error if the number of positions of a sample is not a multiple of ways (balanced ring: of 2 ways);
///          for all_to_all, if there are more ways than heads.
struct context {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< ranks that share a sample; 0: the ranks that other axes leave
  context_method method = context_method::ring;
  bool balanced = true;  ///< ring: rank r has slices r and 2 ways - 1 - r, so that causal work is even
  friend bool operator==(context const&, context const&) = default;

  void validate() const { expect_number("parallel::context", ".ways", ways, not_negative); }

  static constexpr std::string_view name = "context";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{.samples = axis_samples::shared};

  TRIREME_RULE(needs_positions, "context-needs-positions",
               "parallel::context divides the positions of samples, which the model's units must support",
               "use parallel::data, or give the model a static cuts_context = true if they do",
               cuts_context<typename C::model>);
  TRIREME_RULE(needs_exchange, "context-needs-exchange",
               "parallel::context needs exchange and the ragged all_to_all, which this communicator lacks",
               "use another communicator",
               has_exchange<typename C::comm, typename C::space>&&
                   has_ragged_all_to_all<typename C::comm, typename C::env::compute, typename C::space>);
  TRIREME_RULE(needs_blocks, "context-needs-blocks-kernels",
               "parallel::context merges attention block by block, and the communicator's memory space lacks kernels "
               "for it",
               "add the kernels of ops::blocks_kernels to its ops::on, or leave the axis out",
               (ops::blocks_kernels<typename C::space, typename C::env>));
  using rules = rule_list<needs_positions, needs_exchange, needs_blocks>;

  template <class Env, class Comm>
  class instance;

  /// The part of each sample that a rank holds. With all_to_all work is even without balancing.
  [[nodiscard]] constexpr context_shard shard_of(group_rank own) const noexcept {
    return {own, balanced && method == context_method::ring};
  }
};

[[nodiscard]] inline std::string to_string(context const& c) {
  return text("parallel::context{.ways = ", c.ways, ", .method = context_method::", name_of(c.method),
              ", .balanced = ", c.balanced ? "true}" : "false}");
}

/// A context group on a communicator whose members pass keys and values round the ring.
///
/// Ranks    collective, as the calls of context_group are.
/// Numerics each rank merges in the order in which keys arrive, its own first: the same bits from run to run.
/// Threads  one owner; the communicator must outlive it, and must not be used otherwise.
template <class Env, class Comm>
class ring_context final : public context_group<Env> {
  using accumulate = typename Env::accumulate;
  using value = typename Env::compute;
  using base = context_group<Env>;

 public:
  using typename base::space;
  using typename base::state;
  using typename base::view;

  ring_context(Comm& world, context_shard const& part) : base(part), world_(world) {}

  void attend(view heads, state& kept, attention_shape const& shape, arena<space>& activations, arena<space>& scratch,
              dropout_site_in<space> const& dropout) override {
    kept.lse = activations.template take<accumulate>({shape.batch, shape.heads, shape.context});
    auto const mark = scratch.mark();
    auto const sum = zeros(heads.extents(), scratch);
    kernels::fill(kept.lse, -std::numeric_limits<double>::infinity());
    auto const pairs = own_pairs(kept.qkv, shape, scratch);
    for (int turn = 0; turn < this->size(); ++turn) {
      auto coming = pass_on(pairs, turn);
      auto const now = static_cast<std::size_t>(turn % 2);
      for_each_block(turn, shape, [&](ops::attention_block const& at) {
        kernels::attend_block(sum, kept.lse, kept.qkv, pairs[now], shape, at, scratch, dropout);
      });
      if (coming) trireme::order(*coming);
    }
    kernels::copy(heads, sum);
    scratch.rewind(mark);
  }

  void attend_backward(view dqkv, view dheads, view heads, state const& kept, attention_shape const& shape,
                       arena<space>& scratch, dropout_site_in<space> const& dropout) override {
    auto const mark = scratch.mark();
    auto const dqueries = zeros(heads.extents(), scratch);
    auto const pairs = own_pairs(kept.qkv, shape, scratch);
    sums const dpairs[2] = {zeros(pairs[0].extents(), scratch), scratch.template take<accumulate>(pairs[0].extents())};
    for (int turn = 0; turn < this->size(); ++turn) {
      auto coming = pass_on(pairs, turn);
      auto const now = static_cast<std::size_t>(turn % 2);
      auto const& here = dpairs[now];
      for_each_block(turn, shape, [&](ops::attention_block const& at) {
        kernels::attend_block_backward(dqueries, here, dheads, heads, kept.lse, kept.qkv, pairs[now], shape, at,
                                       scratch, dropout);
      });
      if (coming) trireme::order(*coming);
      // Gradients travel with their keys, one rank further: in the end each is back at its owner.
      std::array<transfer<space>, 2> const both{send_to(next(), here), receive_from(before(), dpairs[(turn + 1) % 2])};
      world_.exchange(std::span<transfer<space> const>(both));
    }
    kernels::copy_columns(dqkv, 0, dqueries, 0, shape.channels);
    kernels::copy_columns(dqkv, shape.channels, dpairs[this->size() % 2], 0, 2 * shape.channels);
    scratch.rewind(mark);
  }

 private:
  using kernels = ops::on<space>;
  using sums = tensor_view<accumulate, space>;
  using request = decltype(std::declval<Comm&>().exchange_async(std::span<transfer<space> const>{}));

  [[nodiscard]] int next() const noexcept { return (world_.rank() + 1) % world_.size(); }
  [[nodiscard]] int before() const noexcept { return (world_.rank() + world_.size() - 1) % world_.size(); }

  static sums zeros(shape const& extents, arena<space>& scratch) {
    auto const all = scratch.template take<accumulate>(extents);
    kernels::fill(all, 0.0);
    return all;
  }
  // Keys and values side by side, and a buffer for the next ones while these are used.
  static std::array<view, 2> own_pairs(view qkv, attention_shape const& shape, arena<space>& scratch) {
    trireme::shape const extents{qkv.extent(0), 2 * shape.channels};
    auto const own = scratch.template take<value>(extents);
    kernels::copy_columns(own, 0, qkv, shape.channels, 2 * shape.channels);
    return {own, scratch.template take<value>(extents)};
  }
  // Starts to send this turn's pairs on, and to receive the next ones, except in the last turn.
  [[nodiscard]] std::optional<request> pass_on(std::array<view, 2> const& pairs, int turn) {
    if (turn + 1 == this->size()) return std::nullopt;
    auto const now = static_cast<std::size_t>(turn % 2);
    messages_ = {send_to(next(), pairs[now]), receive_from(before(), pairs[1 - now])};
    return world_.exchange_async(std::span<transfer<space> const>(messages_));
  }
  // Whether some of these queries attend to some of these keys.
  static bool meets(ops::attention_mask const& mask, context_shard::stretch const& queries,
                    context_shard::stretch const& keys) {
    auto const after =
        keys.position - (queries.position + queries.count - 1);  // distance of the nearest pair, if the keys are later
    auto const before = queries.position - (keys.position + keys.count - 1);  // or earlier
    if (mask.causal && after > 0) return false;
    return mask.window == 0 || (after < mask.window && before < mask.window);
  }
  // Runs attention of this rank's queries over the keys received in this turn that they attend to.
  template <class F>
  void for_each_block(int turn, attention_shape const& shape, F const& f) const {
    auto const here = shape.context;
    auto const& part = this->part();
    context_shard owner = part;
    owner.own.rank = (part.own.rank + part.own.size - turn) % part.own.size;
    for (int q = 0; q < part.stretches(); ++q) {
      auto const queries = part.at(q, here);
      for (int k = 0; k < part.stretches(); ++k) {
        auto const keys = owner.at(k, here);
        if (!meets(shape.mask, queries, keys)) continue;
        f(ops::attention_block{queries.count, queries.row, keys.row, queries.position, keys.position,
                               part.whole(here)});
      }
    }
  }

  Comm& world_;
  std::array<transfer<space>, 2> messages_;
};

/// A context group on a communicator whose members exchange positions for heads: before attention each gets all
/// positions of its heads, after it all heads of its positions.
///
/// Ranks    collective, as the calls of context_group are.
/// Numerics attention has the same bits as on a rank with whole samples.
/// Threads  one owner; the communicator must outlive it, and must not be used otherwise.
template <class Env, class Comm>
class head_context final : public context_group<Env> {
  using accumulate = typename Env::accumulate;
  using value = typename Env::compute;
  using base = context_group<Env>;

 public:
  using typename base::space;
  using typename base::state;
  using typename base::view;

  head_context(Comm& world, context_shard const& part) : base(part), world_(world) {}

  void attend(view heads, state& kept, attention_shape const& shape, arena<space>& activations, arena<space>& scratch,
              dropout_site_in<space> const& dropout) override {
    auto const own = shape_of_heads(shape);
    auto const rows = own.batch * own.context;
    auto const qkv = activations.template take<value>({rows, 3 * own.channels});
    exchange_to_heads(qkv, kept.qkv, shape, 3, scratch);
    kept.qkv = qkv;
    kept.heads = activations.template take<value>({rows, own.channels});
    kept.lse = activations.template take<accumulate>({own.batch, own.heads, own.context});
    kernels::attention(kept.heads, kept.lse, qkv, own, scratch, dropout);
    exchange_to_positions(heads, kept.heads, shape, 1, scratch);
  }

  void attend_backward(view dqkv, view dheads, view, state const& kept, attention_shape const& shape,
                       arena<space>& scratch, dropout_site_in<space> const& dropout) override {
    auto const mark = scratch.mark();
    auto const own = shape_of_heads(shape);
    auto const slopes = scratch.template take<value>(kept.heads.extents());
    auto const head_gradient = scratch.template take<value>(kept.qkv.extents());
    exchange_to_heads(slopes, dheads, shape, 1, scratch);
    kernels::attention_backward(head_gradient, slopes, kept.heads, kept.lse, kept.qkv, own, scratch, dropout);
    exchange_to_positions(dqkv, head_gradient, shape, 3, scratch);
    scratch.rewind(mark);
  }

 private:
  using kernels = ops::on<space>;

  // Whole samples, of this rank's heads.
  [[nodiscard]] attention_shape shape_of_heads(attention_shape const& shape) const {
    auto const& own = this->part().own;
    if (own.size > shape.heads) {
      throw config_error(text("trireme::parallel::context: all_to_all distributes heads, but ", shape.heads,
                              " heads are not enough for ", own.size,
                              " ways; use fewer ways, or .method = context_method::ring"));
    }
    auto const heads = own.of(shape.heads);
    return {shape.batch,
            this->part().whole(shape.context),
            heads.count,
            shape.head_channels() * heads.count,
            shape.first_head + heads.first,
            shape.mask};
  }

  // from: (rows here, parts * all channels); to: (rows of whole samples, parts * channels of this rank's heads).
  void exchange_to_heads(view to, view from, attention_shape const& shape, int parts, arena<space>& scratch) {
    auto const mark = scratch.mark();
    auto const by_heads = scratch.template take<value>({from.size()});
    auto const by_positions = scratch.template take<value>({to.size()});
    for_each_part(by_heads, from, shape, parts,
                  [&](view block, std::int64_t at, view whole, std::int64_t column, std::int64_t n) {
                    kernels::copy_columns(block, at, whole, column, n);
                  });
    count(shape, parts);
    world_.all_to_all(tensor_view<value const, space>(by_heads), heads_, by_positions, positions_);
    for_each_stretch(to, shape, [&](auto const& block, auto const& whole, auto const& extents) {
      kernels::copy_blocks(to, whole, by_positions, block, extents);
    });
    scratch.rewind(mark);
  }
  // The inverse of deal().
  void exchange_to_positions(view to, view from, attention_shape const& shape, int parts, arena<space>& scratch) {
    auto const mark = scratch.mark();
    auto const by_positions = scratch.template take<value>({from.size()});
    auto const by_heads = scratch.template take<value>({to.size()});
    for_each_stretch(from, shape, [&](auto const& block, auto const& whole, auto const& extents) {
      kernels::copy_blocks(by_positions, block, from, whole, extents);
    });
    count(shape, parts);
    world_.all_to_all(tensor_view<value const, space>(by_positions), positions_, by_heads, heads_);
    for_each_part(by_heads, to, shape, parts,
                  [&](view block, std::int64_t at, view whole, std::int64_t column, std::int64_t n) {
                    kernels::copy_columns(whole, column, block, at, n);
                  });
    scratch.rewind(mark);
  }

  // Elements sent to and received from each rank: of its heads, at this rank's positions; of this rank's heads, at its.
  void count(attention_shape const& shape, int parts) {
    auto const own = this->part().own;
    auto const each = shape.batch * shape.context * parts * shape.head_channels();
    heads_.clear();
    for (int rank = 0; rank < own.size; ++rank)
      heads_.push_back(each * group_rank{rank, own.size}.of(shape.heads).count);
    positions_.assign(static_cast<std::size_t>(own.size), each * own.of(shape.heads).count);
  }
  // Calls f(block, column in it, whole, column in it, columns) for each rank's heads, for queries, keys and values
  // each.
  template <class F>
  void for_each_part(view blocks, view whole, attention_shape const& shape, int parts, F const& f) const {
    auto const rows = whole.extent(0);
    std::int64_t at = 0;
    for (int rank = 0; rank < this->size(); ++rank) {
      auto const heads = group_rank{rank, this->size()}.of(shape.heads);
      auto const width = heads.count * shape.head_channels();
      auto const block = blocks.flat(at, rows * parts * width).reshaped({rows, parts * width});
      at += block.extents().size();
      for (int part = 0; part < parts; ++part)
        f(block, part * width, whole, part * shape.channels + heads.first * shape.head_channels(), width);
    }
  }
  // Calls f(rows of all samples on one rank, the same rows of the whole samples, how many) for each stretch of rows.
  template <class F>
  void for_each_stretch(view whole, attention_shape const& shape, F const& f) const {
    auto const columns = whole.extent(1);
    auto const here = shape.context;
    auto part = this->part();
    // ("rank <" would begin a template, std::rank, after `using namespace std`.)
    for (part.own.rank = 0; part.own.size > part.own.rank; ++part.own.rank) {
      auto const row = part.own.rank * shape.batch * here;
      for (int which = 0; which < part.stretches(); ++which) {
        auto const at = part.at(which, here);
        f(ops::block_places{(row + at.row) * columns, here * columns, columns},
          ops::block_places{at.position * columns, part.whole(here) * columns, columns},
          ops::block_extents{shape.batch, at.count, columns});
      }
    }
  }

  Comm& world_;
  std::vector<std::int64_t> heads_, positions_;
};

/// Offers the ranks along the axis to the units, and cuts samples to this rank's positions.
template <class Env, class Comm>
class context::instance {
 public:
  instance(context const& what, grid<Comm>& grid)
      : degree_(grid.coordinate(kind).size), cut_(what.shard_of(grid.coordinate(kind))) {
    auto& ranks = *grid.along(kind);
    auto const part = what.shard_of(grid.coordinate(kind));
    if (what.method == context_method::ring) {
      group_ = std::make_unique<ring_context<Env, Comm>>(ranks, part);
    } else {
      group_ = std::make_unique<head_context<Env, Comm>>(ranks, part);
    }
  }
  void offer(rank_groups<Env>& groups) { groups.offer(*group_, true); }
  [[nodiscard]] std::span<samples const> cut(std::span<samples const> batches) { return cut_(batches); }
  [[nodiscard]] std::string refuses_tree() const {
    return text("adds whole micro-batches, but parallel::context divides their positions among ", degree_,
                " ranks; leave one of them out");
  }

 private:
  int degree_;
  std::unique_ptr<context_group<Env>> group_;
  detail::context_cut<typename Env::space> cut_;
};

}  // namespace trireme::parallel
