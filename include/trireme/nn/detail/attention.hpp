#pragma once

#include <cstdint>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/nn/detail/attention_pages.hpp"
#include "trireme/nn/node.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// The rotations of those positions of a sample that lie here, of `width` numbers each, in scratch memory.
template <class Env>
auto rotations_here(pass<Env>& pass, std::int64_t width, double base, ops::rotary_scaling const& scaling) {
  auto const context = positions_of(pass);
  auto const table = pass.scratch.template take<typename Env::accumulate>({context, width});
  if (pass.paged != nullptr) {
    pass.paged->for_each_run([&](std::int64_t row, std::int64_t count, std::int64_t position) {
      ops::on<typename Env::space>::rotations(table.rows(row, count), position, base, scaling);
    });
    return table;
  }
  auto const& part = context_group<Env>::of(pass).part();
  for (int which = 0; which < part.stretches(); ++which) {
    auto const at = part.own.size == 1 ? context_shard::stretch{0, 0, context} : part.at(which, context);
    ops::on<typename Env::space>::rotations(table.rows(at.row, at.count), at.position, base, scaling);
    if (part.own.size == 1) break;
  }
  return table;
}

/// Attention of kept.qkv, alone or over the ranks that share positions; y is written.
/// @param seen   makes what tokens let each position see, in scratch memory; called only where samples are whole.
/// @param pages  of this layer, for passes over rows of sequences (pass::paged).
/// @param key_heads  of different keys: 0: each query has its own.
template <class Env, class Seen>
void attend_all(pass<Env>& pass, view_of<Env> y, attention_state<Env>& kept, attention_shape const& shape,
                ops::dropout_site_in<typename Env::space> const& site, Seen const& seen, attention_pages<Env>& pages,
                std::int64_t key_heads = 0) {
  if (auto& group = context_group<Env>::of(pass); group.size() > 1) {
    return group.attend(y, kept, shape, pass.activations, pass.scratch, site);
  }
  if (pass.paged != nullptr) return pages.attend(pass, y, kept.qkv, shape, key_heads);
  kept.lse = pass.activations.template take<typename Env::accumulate>({shape.batch, shape.heads, shape.context});
  auto const mark = pass.scratch.mark();
  ops::on<typename Env::space>::attention(y, kept.lse, kept.qkv, shape, pass.scratch, site, seen());
  pass.scratch.rewind(mark);
}

/// Its gradient: dqkv is written. y is what it gave.
template <class Env, class Seen>
void attend_all_backward(pass<Env>& pass, view_of<Env> dqkv, view_of<Env> dy, view_of<Env> y,
                         attention_state<Env> const& kept, attention_shape const& shape,
                         ops::dropout_site_in<typename Env::space> const& site, Seen const& seen) {
  if (auto& group = context_group<Env>::of(pass); group.size() > 1) {
    return group.attend_backward(dqkv, dy, y, kept, shape, pass.scratch, site);
  }
  ops::on<typename Env::space>::attention_backward(dqkv, dy, y, kept.lse, kept.qkv, shape, pass.scratch, site, seen());
}

}  // namespace trireme::nn::detail
