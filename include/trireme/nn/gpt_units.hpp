#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/core/text.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"

namespace trireme::nn {

/// The sizes that all units of a GPT share, and the layers that its blocks have in common.
struct gpt_shape {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  double dropout = 0;
  friend bool operator==(gpt_shape const&, gpt_shape const&) = default;

  [[nodiscard]] std::string name() const { return "transformer"; }
  [[nodiscard]] std::string block_name(std::int64_t index) const { return text("transformer.h.", index); }
  /// Standard deviation of the weights that end a branch: GPT-2 makes it smaller the more layers there are.
  [[nodiscard]] double deep() const { return 0.02 / std::sqrt(2.0 * static_cast<double>(layers)); }
  [[nodiscard]] linear end() const { return {.outputs = channels, .start = {initial::distribution::normal, deep()}}; }
  /// The first half of a block: x + attention(norm(x)).
  template <class = void>
  [[nodiscard]] auto attention() const {
    return residual(named("ln_1", layer_norm{}),
                    named("attn", chain(named("c_attn", linear{.outputs = 3 * channels}), attend{heads, dropout},
                                        named("c_proj", end()))),
                    nn::dropout{dropout});
  }
};

/// Tokens to vectors: y[b,t] = wte[token[b,t]] + wpe[t], then dropout.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, C), of which each rank has the rows that lie there.
struct gpt_embedding {
  gpt_shape shape;
  friend bool operator==(gpt_embedding const&, gpt_embedding const&) = default;

  [[nodiscard]] std::string name() const { return shape.name(); }
  [[nodiscard]] std::int64_t width() const noexcept { return shape.channels; }
  template <class = void>  // compiled only in programs that use a GPT
  [[nodiscard]] auto layers() const {
    return chain(embedding{.words = shape.vocabulary,
                           .outputs = shape.channels,
                           .positions = shape.context,
                           .table = "wte.weight",
                           .position_table = "wpe.weight"},
                 dropout{shape.dropout});
  }
  template <class Env>
  using instance = expression<Env>;
};

/// One transformer block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)).
///
/// Shapes   x, y (B*T, C), of which each rank has the rows that lie there.
/// Ranks    each rank of a tensor group has some heads, and some hidden units of the mlp. Each branch ends with a sum
///          over the group in forward, and with another one in backward.
/// Bytes    saves the results of both norms, queries, keys and values, the heads' output, and the GELU's input and
///          result. Between the halves of a backward pass two gradients (rows, C) more; where rows are cut, of the rows
///          that lie here: the second half gathers the others again.
struct gpt_block {
  gpt_shape shape;
  std::int64_t index = 0;
  friend bool operator==(gpt_block const&, gpt_block const&) = default;

  [[nodiscard]] std::string name() const { return shape.block_name(index); }
  [[nodiscard]] std::int64_t width() const noexcept { return shape.channels; }
  template <class = void>
  [[nodiscard]] auto layers() const {
    return chain(shape.attention(), residual(named("ln_2", layer_norm{}),
                                             named("mlp", chain(named("c_fc", linear{.outputs = 4 * shape.channels}),
                                                                gelu(), named("c_proj", shape.end()))),
                                             dropout{shape.dropout}));
  }
  template <class Env>
  using instance = expression<Env>;
};

/// A block with a mixture of experts in place of the mlp.
///
/// Ranks    the ranks of an expert group share the experts. Those of a tensor group share the heads; each of them runs
///          the router and the experts on all rows, with the same bits.
struct gpt_expert_block {
  gpt_shape shape;
  std::int64_t index = 0;
  std::int64_t experts = 1;
  std::int64_t top_k = 1;
  double balance = 0;
  friend bool operator==(gpt_expert_block const&, gpt_expert_block const&) = default;

  [[nodiscard]] std::string name() const { return shape.block_name(index); }
  [[nodiscard]] std::int64_t width() const noexcept { return shape.channels; }
  template <class = void>
  [[nodiscard]] auto layers() const {
    return chain(shape.attention(), residual(named("ln_2", layer_norm{}),
                                             named("mlp", nn::experts{.hidden = 4 * shape.channels,
                                                                      .count = experts,
                                                                      .chosen = top_k,
                                                                      .balance = balance,
                                                                      .projection_scale = shape.deep()}),
                                             dropout{shape.dropout}));
  }
  template <class Env>
  using instance = expression<Env>;
};

/// The last norm, the product with the embedding's table, and the cross-entropy loss.
///
/// Shapes   x (B*T, C), targets (B, T) int32 from the batch; targets < 0 are left out of the loss.
struct gpt_head {
  gpt_shape shape;
  friend bool operator==(gpt_head const&, gpt_head const&) = default;

  [[nodiscard]] std::string name() const { return shape.name(); }
  [[nodiscard]] std::int64_t width() const noexcept { return shape.channels; }
  template <class = void>
  [[nodiscard]] auto layers() const {
    return chain(named("ln_f", layer_norm{}), unembedding{.words = shape.vocabulary, .tied = "transformer.wte.weight"},
                 loss::cross_entropy{});
  }
  template <class Env>
  using instance = expression<Env>;
};

}  // namespace trireme::nn
