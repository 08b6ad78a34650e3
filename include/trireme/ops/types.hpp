#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/activation.hpp"

namespace trireme::ops {

/// The numeric kernels of one memory space: a struct of static function templates (docs/design.md lists them).
template <class Space>
struct on;

/// The rows of logits that a product with a vocabulary computes at once, before the loss overwrites them with their
/// gradient. A device says more in `ops::on<Space>::rows_of_logits(words)`, so that the gradient of the vocabulary is
/// read and written less often; by default they are 4 MiB of float numbers, but 256 to 4096 rows.
template <class Space>
[[nodiscard]] constexpr std::int64_t rows_of_logits(std::int64_t words) noexcept {
  if constexpr (requires { on<Space>::rows_of_logits(words); })
    return on<Space>::rows_of_logits(words);
  else
    return std::clamp<std::int64_t>((std::int64_t{1} << 20) / words / 64 * 64, 256, 4096);
}

/// Whether products and losses of a space take rows of logits that are longer than the number of words: its products
/// then begin each row at an aligned address, which `ops::on<Space>::row_of_logits(words)` asks for.
template <class Space>
concept has_longer_rows_of_logits = requires(std::int64_t words) {
  on<Space>::row_of_logits(words);
};
/// The numbers from one row of such logits to the next one.
template <class Space>
[[nodiscard]] constexpr std::int64_t row_of_logits(std::int64_t words) noexcept {
  if constexpr (has_longer_rows_of_logits<Space>)
    return on<Space>::row_of_logits(words);
  else
    return words;
}

/// A weight matrix for products: the view, its orientation, and copies packed for the kernels.
template <class T, class Space>
class weights;

/// A bit in the version of values: they are temporary (parameters that are gathered for their unit and dropped after
/// it), so packed copies of them are not kept.
inline constexpr std::uint64_t passing_values = std::uint64_t{1} << 63;

namespace detail {
/// Whether float lanes support these types.
template <class... T>
inline constexpr bool fits_float = ((std::is_same_v<T, float> || storage_float<T>)&&...);

/// Whether any kind of lanes supports T: integers use plain loops.
template <class T>
inline constexpr bool arithmetic_lanes = std::is_floating_point_v<T> || storage_float<T>;
}  // namespace detail

/// The type of sums of T.
template <class T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// How a weight is stored: (inputs, outputs) as GPT-2 does, or (outputs, inputs) as an embedding table does.
enum class orientation { in_out, out_in };

/// Whether a product uses a matrix or its transpose.
enum class transposed { no, yes };

/// Queries and keys of each sample that are processed together: the same number of both. Rows are indices among a
/// sample's rows on this rank, positions indices in the whole sample.
struct attention_block {
  std::int64_t rows = 0;
  std::int64_t query_row = 0;
  std::int64_t key_row = 0;
  std::int64_t first_query = 0;  ///< position of the first query
  std::int64_t first_key = 0;
  std::int64_t whole = 0;  ///< positions of a sample
};

/// The rows of a table, or the classes of a row, that this rank has: those from `first` on, of `whole`; 0 = all of
/// them.
struct table_range {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};

/// The order of the heads in a row of queries, keys and values. With as many keys as queries: all queries, then all
/// keys, then all values. With fewer keys, each shared by the same number of queries: these queries, their key and
/// their value side by side, for one key after the other, so that a split between keys is a split of columns.
struct head_layout {
  std::int64_t context = 0;    ///< rows of a sample
  std::int64_t heads = 0;      ///< of queries
  std::int64_t key_heads = 0;  ///< of keys, and of values
  std::int64_t width = 0;      ///< columns of a head

  [[nodiscard]] constexpr std::int64_t columns() const noexcept { return (heads + 2 * key_heads) * width; }
  [[nodiscard]] constexpr bool grouped() const noexcept { return key_heads != heads; }
  [[nodiscard]] constexpr std::int64_t query(std::int64_t head) const noexcept {
    auto const each = heads / key_heads;
    return (grouped() ? head / each * (each + 2) + head % each : head) * width;
  }
  [[nodiscard]] constexpr std::int64_t key(std::int64_t which) const noexcept {
    return (grouped() ? which * (heads / key_heads + 2) + heads / key_heads : heads + which) * width;
  }
  [[nodiscard]] constexpr std::int64_t value(std::int64_t which) const noexcept {
    return key(which) + (grouped() ? 1 : heads) * width;
  }
};

/// The part of whole samples that lies here, so that dropout drops the same numbers however samples are cut. The rows
/// of a sample before `split` have the positions from first[0] on, the others those from first[1] on.
struct dropout_cut {
  std::int64_t row = 0;      ///< of y's first row among the rows of all samples that lie here
  std::int64_t context = 0;  ///< rows of a sample here
  std::int64_t split = 0;
  std::int64_t first[2] = {0, 0};
  std::int64_t width = 0;    ///< numbers of a whole row
  std::int64_t fused = 1;    ///< matrices side by side in a whole row
  std::int64_t column = 0;   ///< first column of each matrix here
  std::int64_t columns = 0;  ///< columns of each matrix here

  [[nodiscard]] constexpr std::int64_t position(std::int64_t in_sample) const noexcept {
    return in_sample < split ? first[0] + in_sample : first[1] + in_sample - split;
  }
};

/// Where blocks of rows lie in a tensor: number c of row r of block b is its element first + b * block + r * row + c.
struct block_places {
  std::int64_t first = 0;
  std::int64_t block = 0;  ///< elements from a block to the next one
  std::int64_t row = 0;    ///< elements from a row to the next one
};
/// The blocks, rows of each, and numbers of each row that are copied.
struct block_extents {
  std::int64_t blocks = 1;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};

namespace detail {
/// Throws assertion_error at level light unless the blocks lie in a tensor of so many elements.
inline void blocks_within(char const* who, std::int64_t size, block_places const& at, block_extents const& extents) {
  if (extents.blocks == 0 || extents.rows == 0) return;
  auto const last = at.first + (extents.blocks - 1) * at.block + (extents.rows - 1) * at.row + extents.columns;
  expects(assertion_level::light, at.first >= 0 && last <= size, [&] {
    return text("trireme::ops::", who, ": blocks of elements ", at.first, " to ", last, " of a tensor of ", size);
  });
}
}  // namespace detail

/// Elements that lie together in two orders of the same rows.
struct element_run {
  std::int64_t to = 0;
  std::int64_t from = 0;
  std::int64_t count = 0;
};

using trireme::attention_mask;
using trireme::attention_shape;
using trireme::dropout_site;
using trireme::dropout_site_in;
using trireme::gradient_terms;
using trireme::loss_sum;
using trireme::losses_in;

/// Tokens that determine which positions may attend to each other; a number below 0 means no such token.
struct token_mask {
  std::int32_t padding = -1;    ///< before a sample's first word or after its last one; no position attends to it
  std::int32_t separator = -1;  ///< the last token of a document; there is no attention across it
  [[nodiscard]] constexpr bool any() const noexcept { return padding >= 0 || separator >= 0; }
  [[nodiscard]] constexpr bool is_padding(std::int32_t token) const noexcept {
    return padding >= 0 && token == padding;
  }
  [[nodiscard]] constexpr bool is_separator(std::int32_t token) const noexcept {
    return separator >= 0 && token == separator;
  }
  friend bool operator==(token_mask const&, token_mask const&) = default;
};

/// How rows choose experts by scores between 0 and 1, each computed independently.
struct scored_choice {
  std::int64_t groups = 1;  ///< of experts, of equal sizes
  std::int64_t chosen_groups =
      1;             ///< groups from which a row chooses: those whose best two experts have the largest sum
  double scale = 1;  ///< the sum of the weights of a row's choices
  friend bool operator==(scored_choice const&, scored_choice const&) = default;
};

/// How the angles of rotary positions are reduced, for samples longer than those of an earlier training.
struct rotary_scaling {
  double factor = 1;          ///< angles are divided by it
  std::int64_t original = 0;  ///< 0: all of them. Else Llama 3's rule: those that turn less than `low` times in so many
                              ///< positions; none that turn more than `high` times; and in between partly
  double low = 1;
  double high = 4;
  TRIREME_EXACT_BEGIN
  friend bool operator==(rotary_scaling const&, rotary_scaling const&) = default;
  TRIREME_EXACT_END
};

/// The additional terms of a cross entropy.
struct cross_entropy_terms {
  std::int32_t ignored = -1;  ///< rows with this target do not count, like those with one below 0
  double smoothing = 0;       ///< this share of a target is distributed evenly over all classes
  double z = 0;               ///< the weight of log(sum(exp(x)))^2
  [[nodiscard]] constexpr bool leaves_out(std::int64_t target) const noexcept {
    return target < 0 || target == ignored;
  }
  friend bool operator==(cross_entropy_terms const&, cross_entropy_terms const&) = default;
};

/// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), and its derivative by x.
/// Errors   config_error for a target outside of [0, 1], NaN among them.
[[nodiscard]] inline double logistic_loss(double x, double target) {
  if (!(target >= 0 && target <= 1)) {
    throw config_error(text("trireme::nn::loss::binary_cross_entropy: target ", target,
                            " is not a probability; targets lie in [0, 1]"));
  }
  return std::max<double>(x, 0) - x * target + std::log1p(std::exp(-std::abs(x)));
}
[[nodiscard]] inline double logistic_slope(double x, double target) noexcept {
  double const small = std::exp(-std::abs(x));
  double const less = small / (1 + small);  // the less likely answer's probability
  return x < 0 ? less - target : (1 - target) - less;
}

/// What a product does to its result before storing it: y = residual + act(x w + bias).
template <class T, class Space>
struct linear_epilogue {
  tensor_view<T const, Space> bias{};  ///< (N), or empty
  activation act = activation::none;
  tensor_view<T, Space> before_activation{};  ///< (M, N) receives x w + bias for the backward pass, or empty
  tensor_view<T const, Space> residual{};     ///< (M, N), or empty
};

/// What an input gradient does to its result before storing it: dx (+)= (dy w^T) * act'(before_activation).
template <class T, class Space>
struct input_epilogue {
  activation act = activation::none;
  tensor_view<T const, Space> before_activation{};  ///< (M, K), or empty; may be dx
  bool accumulate = false;
};

/// One step of AdamW [Loshchilov, Hutter, 2019], with the bias corrections already computed.
struct adamw_numbers {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< value -= rate * decay * value
  double correction1 = 1;   ///< 1 - beta1^t
  double correction2 = 1;   ///< 1 - beta2^t
};

/// One step of SGD with momentum: velocity = momentum * velocity + g; value -= rate * (velocity or, Nesterov's,
/// g + momentum * velocity).
struct sgd_numbers {
  double learning_rate = 0;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;  ///< g += decay * value
};

/// value - by * (-1, 0 or 1: the sign of `measured`), of double and of float.
template <class M, class G>
[[nodiscard]] constexpr M stepped_against_sign(M value, G measured, double by) noexcept {
  using real = accumulate_t<M>;
  return static_cast<M>(static_cast<real>(value) -
                        static_cast<real>(by) * static_cast<real>((measured > 0) - (measured < 0)));
}

}  // namespace trireme::ops
