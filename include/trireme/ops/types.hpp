#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::ops {

/// The numeric kernels of one memory space: a struct of static function templates (docs/design.md lists them).
template <class Space>
struct on;

/// A weight matrix as products see it: the view, its orientation, and copies packed for the kernels.
template <class T, class Space>
class weights;

/// In the version of values: they do not stay where they are (parameters that are gathered for their unit and dropped
/// after it), so nothing packed of them is worth keeping.
inline constexpr std::uint64_t passing_values = std::uint64_t{1} << 63;

/// What sums of T are kept in.
template <class T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

enum class activation { none, gelu, tanh, relu };

/// How a weight is stored: (inputs, outputs) as GPT-2 does, or (outputs, inputs) as an embedding table does.
enum class orientation { in_out, out_in };

struct attention_shape {
  std::int64_t batch = 0;
  std::int64_t context = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  std::int64_t first_head = 0;  ///< the number of the first of these heads among all of its layer, for dropout
  [[nodiscard]] constexpr std::int64_t head_channels() const noexcept { return channels / heads; }
};

/// Which rows of a table lie here, or which classes of a row: those from `first` on, of `whole`; 0 = all of them.
struct table_part {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};

using trireme::gradient_terms;
using trireme::loss_sum;

/// Which numbers to drop: a function of (key, site, sample, position in the sample), the same on any rank.
/// Off if the probability is 0 or there are no samples.
struct dropout_site {
  double probability = 0;
  random_key key;
  std::uint32_t site = 0;
  std::span<std::int64_t const> samples;
  std::int64_t first = 0;  ///< what is dropped out begins with this element of all samples' elements,
  std::int64_t whole = 0;  ///< which are so many; 0 = as many as it has itself
  [[nodiscard]] bool active() const noexcept { return probability > 0 && !samples.empty(); }
};

/// What a product does to its result on the way out: y = residual + act(x w + bias).
template <class T, class Space>
struct linear_epilogue {
  tensor_view<T const, Space> bias{};  ///< (N), or empty
  activation act = activation::none;
  tensor_view<T, Space> before_activation{};  ///< (M, N) keeps x w + bias for the backward pass, or empty
  tensor_view<T const, Space> residual{};     ///< (M, N), or empty
};

/// What an input gradient does on the way out: dx (+)= (dy w^T) * act'(before_activation).
template <class T, class Space>
struct input_epilogue {
  activation act = activation::none;
  tensor_view<T const, Space> before_activation{};  ///< (M, K), or empty
  bool accumulate = false;
};

/// One step of AdamW [Loshchilov, Hutter, 2019], with the bias corrections already computed.
struct adamw_numbers {
  double rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;        ///< value -= rate * decay * value
  double correction1 = 1;  ///< 1 - beta1^t
  double correction2 = 1;  ///< 1 - beta2^t
};

/// One step of SGD with momentum: velocity = momentum * velocity + g; value -= rate * (velocity or, Nesterov's,
/// g + momentum * velocity).
struct sgd_numbers {
  double rate = 0;
  double momentum = 0;
  bool nesterov = false;
  double decay = 0;  ///< g += decay * value
};

}  // namespace trireme::ops
