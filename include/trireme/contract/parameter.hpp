#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/interval.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// How a parameter is initialised. Element i of a parameter depends only on (seed, name, i), so every rank and every
/// sharding starts from the same values.
struct initial {
  enum class distribution { zeros, ones, normal, uniform };
  distribution kind = distribution::zeros;
  double scale = 0;  ///< standard deviation, or the half width of the uniform distribution
  friend bool operator==(initial const&, initial const&) = default;
};

/// One of `size` consecutive parts: that of one rank of a group. Parts may be uneven: the first n % size of them get
/// one more.
struct group_rank {
  int rank = 0;
  int size = 1;
  [[nodiscard]] constexpr interval of(std::int64_t n) const noexcept {
    auto const each = n / size;
    auto const more = n % size;
    return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
  }
  friend bool operator==(group_rank const&, group_rank const&) = default;
};

/// The properties of a parameter without its values. Two parameters of one name are two uses of one tied tensor.
///
/// This rank may hold a part of the tensor, a box of it: `extents` elements from `first` on, of `whole`.
struct parameter_info {
  std::string name;
  shape extents;  ///< of this rank's part
  initial start{};
  bool decays = true;    ///< whether weight decay applies
  shape whole{};         ///< extents of the whole tensor; none if this rank holds all of it
  shape first{};         ///< where the part begins in the tensor, one number a dimension
  bool is_owner = true;  ///< false: another rank of this model replica owns it in norm, hash and checkpoint
  bool tied = false;     ///< true: other ranks of this model replica use it too, and gradients are summed with theirs
  /// The kind of axis along which ranks hold different parts of it (axis_parameters::distributed); all ranks of a
  /// tensor group then have the same part. Empty: no such axis.
  std::string_view distributed{};
  /// Above 0, the parameter is an exponential moving average that its layer measures, and is not trained. In a step
  /// value += running * (mean - value), whatever the optimizer. The layer adds to its gradient, in each micro-batch,
  /// pass.weight times the number of samples times the measured value; neither norm nor clipping includes it.
  double running = 0;
  /// With `running`: only the signs of the measured values count, and the sum is not divided by the number of samples.
  /// In a step value moves by running against the sign of the sum of what layers have added to the gradient. If these
  /// are whole numbers, their sums are exact, so the order of ranks does not matter.
  bool by_sign = false;
  bool frozen = false;  ///< not trained: it has values only, see optim::groups
  /// Several tensors side by side in one, for a single product: their widths along the last axis, repeated until it is
  /// full. {c, c, c} are queries, keys and values; {2 * w, w, w} are two heads of queries with their key and value,
  /// then the next two. Empty: it is one tensor. Optimizers of whole tensors update them one by one.
  shape fused{};
  bool stacked = false;  ///< for these optimizers each index of the first axis is a separate tensor (experts)

  [[nodiscard]] bool is_shard() const noexcept { return whole.rank() > 0; }
  [[nodiscard]] shape const& whole_extents() const noexcept { return is_shard() ? whole : extents; }
  friend bool operator==(parameter_info const&, parameter_info const&) = default;
};

/// The part of a whole tensor with the range [first, first + count) of one axis.
[[nodiscard]] inline parameter_info shard_of(parameter_info info, int axis, interval range) {
  shape extents;
  shape first;
  for (int each = 0; each < info.extents.rank(); ++each) {
    extents.push_back(each == axis ? range.count : info.extents[each]);
    first.push_back(each == axis ? range.first : 0);
  }
  info.whole = info.extents;
  info.extents = extents;
  info.first = first;
  return info;
}

/// How a parameter divides into separate tensors (`stacked`, `fused`).
///
/// Errors   the constructor throws config_error if they do not fit the extents.
class tensors_within {
 public:
  explicit tensors_within(parameter_info const& of)
      : stacked_(of.stacked && of.extents.rank() > 0), count_(stacked_ ? of.extents[0] : 1), one_(of) {
    one_.extents = one_.whole = one_.first = one_.fused = {};
    one_.stacked = false;
    for (int axis = stacked_ ? 1 : 0; axis < of.extents.rank(); ++axis) one_.extents.push_back(of.extents[axis]);
    for (auto const width : of.fused.extents()) {
      bands_.push_back({period_, width});
      period_ += width;
    }
    auto const rank = one_.extents.rank();
    auto const last = rank > 0 ? one_.extents[rank - 1] : 1;
    if (bands_.empty()) {
      bands_.push_back({0, last});
      period_ = last;
    }
    if (of.stacked != stacked_ || last != (period_ == 0 ? 0 : last / period_ * period_)) {
      throw config_error(text("trireme::parameter \"", of.name, "\": ", to_string(of.extents),
                              " does not divide into tensors of widths ", to_string(of.fused), " along its last axis",
                              of.stacked ? ", for each index of its first axis" : "",
                              "; the widths must fill the last axis once or several times"));
    }
  }
  [[nodiscard]] bool stacked() const noexcept { return stacked_; }
  /// Tensors along the first axis: 1 unless it is stacked.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// Tensors side by side in each of these.
  [[nodiscard]] std::size_t bands() const noexcept { return bands_.size(); }
  /// Whether it is one tensor.
  [[nodiscard]] bool whole() const noexcept { return bands_.size() == 1; }
  /// The properties of one of the tensors: the parameter's name, and its own extents.
  [[nodiscard]] parameter_info info(std::size_t band) const {
    auto out = one_;
    auto const rank = one_.extents.rank();
    if (whole()) return out;
    out.extents = {};
    for (int axis = 0; axis + 1 < rank; ++axis) out.extents.push_back(one_.extents[axis]);
    out.extents.push_back(one_.extents[rank - 1] / period_ * bands_[band].count);
    return out;
  }
  /// Where tensor (place, band) lies in the parameter: rows of `width` elements, from one to the next `row`.
  struct rows_of_tensor {
    std::int64_t first, row, width, count;
  };
  [[nodiscard]] rows_of_tensor rows(std::int64_t place, std::size_t band) const noexcept {
    auto const size = one_.extents.size();
    auto const [first, width] = bands_[band];
    return {place * size + first, period_, width, period_ == 0 ? 0 : size / period_};
  }

 private:
  bool stacked_;
  std::int64_t count_;
  parameter_info one_;  // of the tensors side by side, as one
  std::int64_t period_ = 0;
  std::vector<interval> bands_;  // within a period of the last axis
};

/// Calls f(in_whole, in_part, n) for the contiguous ranges of the whole tensor (row-major) that form elements [first,
/// first + count) of a part: one range, in constant time, unless other elements lie in between.
template <class F>
void for_each_run(parameter_info const& part, std::int64_t first, std::int64_t count, F&& f) {
  if (count == 0) return;
  if (!part.is_shard()) return f(first, first, count);
  int axis = part.extents.rank() - 1;  // the innermost one that is cut: axes inside it are contiguous
  while (axis > 0 && part.extents[axis] == part.whole[axis]) --axis;
  std::int64_t inner = 1;
  for (int each = axis + 1; each < part.whole.rank(); ++each) inner *= part.whole[each];
  auto const run = part.extents[axis] * inner;
  while (count > 0) {
    auto const row = first / run;
    auto const n = std::min(count, (row + 1) * run - first);
    std::int64_t at = part.first[axis] * inner + first % run;
    std::int64_t stride = part.whole[axis] * inner;
    auto rest = row;
    for (int each = axis - 1; each >= 0; --each) {
      at += (part.first[each] + rest % part.extents[each]) * stride;
      stride *= part.whole[each];
      rest /= part.extents[each];
    }
    f(at, first, n);
    first += n;
    count -= n;
  }
}

/// A parameter as a layer sees it: the layer does not own the memory; the exchange binds and rebinds it.
///
/// Each *use* of a tied parameter has a gradient of its own; the exchange adds the uses in order.
template <class Env>
struct parameter {
  parameter_info info;
  tensor_view<typename Env::param, typename Env::space> value;
  tensor_view<typename Env::gradient, typename Env::space> gradient;
};

/// A parameter whose value and gradient are in the caller's memory.
template <class T, class Space = host>
struct foreign_parameter {
  std::string name;
  tensor_view<T, Space> value;
  tensor_view<T, Space> gradient;
  std::function<void()> follow{};  ///< called whenever the values have been written, for a copy in another type
  shape fused{};                   ///< as in parameter_info
  bool stacked = false;            ///< as in parameter_info
};

}  // namespace trireme
