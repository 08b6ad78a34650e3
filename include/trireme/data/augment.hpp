#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/formats/model_files.hpp"

namespace trireme::data {

/// The random numbers of one sample in one epoch, for one step of data::augment: a function of the seed, the epoch, the
/// number of the sample and the step, so they are the same on any number of ranks and after a resume.
class draws {
 public:
  /// @param step  steps of different numbers get different random numbers.
  constexpr draws(std::uint64_t seed, std::uint64_t epoch, std::int64_t sample, std::uint32_t step) noexcept
      : key_{seed, epoch}, sample_(static_cast<std::uint64_t>(sample)), site_(0x61750000U + step) {}  // "au"

  /// 32 random bits.
  [[nodiscard]] constexpr std::uint32_t word() noexcept {
    if (used_ % 4 == 0) words_ = random_block(key_, site_, sample_, used_ / 4);
    return words_[used_++ % 4];
  }
  /// A number in [0, 1).
  [[nodiscard]] constexpr double uniform() noexcept { return static_cast<double>(word()) * 0x1p-32; }
  /// A number in [from, to).
  [[nodiscard]] constexpr double uniform(double from, double to) noexcept { return from + (to - from) * uniform(); }
  /// A whole number from 0 to count - 1; count is at most 2^32.
  [[nodiscard]] constexpr std::int64_t below(std::int64_t count) noexcept {
    return static_cast<std::int64_t>((std::uint64_t{word()} * static_cast<std::uint64_t>(count)) >> 32);
  }
  /// Whether something happens that has this probability.
  [[nodiscard]] constexpr bool chance(double probability) noexcept { return uniform() < probability; }
  /// A number of the normal distribution with mean 0 and deviation 1 [Box and Muller, 1958].
  [[nodiscard]] double normal() noexcept {
    auto const radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  /// A number of the beta distribution of two equal parameters above 0.
  [[nodiscard]] double beta(double alpha) noexcept {
    auto const a = gamma(alpha), b = gamma(alpha);
    return a + b > 0 ? a / (a + b) : 0.5;
  }

 private:
  // [Marsaglia and Tsang, "A simple method for generating gamma variables", 2000]
  [[nodiscard]] double gamma(double shape_of) noexcept {
    if (shape_of < 1) {
      auto const larger = gamma(shape_of + 1);
      return larger * std::pow(1 - uniform(), 1 / shape_of);
    }
    auto const d = shape_of - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
      auto const x = normal(), v = (1 + c * x) * (1 + c * x) * (1 + c * x);
      if (v > 0 && std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

  random_key key_;
  std::uint64_t sample_;
  std::uint32_t site_;
  std::uint32_t used_ = 0;
  std::array<std::uint32_t, 4> words_{};
};

/// A picture in memory: row, column, colour.
template <class T>
struct pixels {
  T* first = nullptr;
  std::int64_t height = 0, width = 0, colours = 0;
  [[nodiscard]] T& operator()(std::int64_t row, std::int64_t column, std::int64_t colour) const noexcept {
    return first[(row * width + column) * colours + colour];
  }
  [[nodiscard]] std::int64_t size() const noexcept { return height * width * colours; }
};

namespace detail {

/// A part of a picture.
struct rectangle {
  std::int64_t top, left, height, width;
};

/// The largest part, from the middle, of the shape height : width.
[[nodiscard]] inline rectangle middle_of(std::int64_t rows, std::int64_t columns, std::int64_t height,
                                         std::int64_t width) noexcept {
  auto to_rows = rows, to_columns = columns;
  if (columns * height > rows * width) {
    to_columns = std::max<std::int64_t>(1, rows * width / height);
  } else {
    to_rows = std::max<std::int64_t>(1, columns * height / width);
  }
  return {(rows - to_rows) / 2, (columns - to_columns) / 2, to_rows, to_columns};
}

/// Where in a picture of rows x columns a part lies whose area and ratio (width / height) are drawn; nothing if it did
/// not fit in ten attempts.
[[nodiscard]] inline std::optional<rectangle> drawn_part(draws& random, std::int64_t rows, std::int64_t columns,
                                                         std::array<double, 2> area, std::array<double, 2> ratio) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto const size = static_cast<double>(rows * columns) * random.uniform(area[0], area[1]);
    auto const shape_of = std::exp(random.uniform(std::log(ratio[0]), std::log(ratio[1])));
    auto const width = std::llround(std::sqrt(size * shape_of)), height = std::llround(std::sqrt(size / shape_of));
    auto const down = random.uniform(), right = random.uniform();
    if (width < 1 || height < 1 || width > columns || height > rows) continue;
    return rectangle{static_cast<std::int64_t>(down * static_cast<double>(rows - height + 1)),
                     static_cast<std::int64_t>(right * static_cast<double>(columns - width + 1)), height, width};
  }
  return std::nullopt;
}

/// For each place of a line of `to` the weights of those of a line of `from`: linear between two when it is stretched,
/// a triangle as wide as the places are apart when it shrinks.
struct line_weights {
  std::vector<std::int64_t> begins, counts;
  std::vector<float> weights;  // those of one place after the other
  line_weights(std::int64_t from, std::int64_t to) {
    auto const scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(1.0, scale);
    for (std::int64_t i = 0; i < to; ++i) {
      auto const centre = (static_cast<double>(i) + 0.5) * scale;
      auto const begin = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - reach + 0.5));
      auto const end = std::min(from, static_cast<std::int64_t>(centre + reach + 0.5));
      double sum = 0;
      std::vector<double> of;
      for (auto at = begin; at < end; ++at) {
        auto const weight = std::max(0.0, 1 - std::abs((static_cast<double>(at) + 0.5 - centre) / reach));
        of.push_back(weight);
        sum += weight;
      }
      begins.push_back(begin);
      counts.push_back(end - begin);
      for (auto const weight : of) weights.push_back(static_cast<float>(weight / sum));
    }
  }
};

/// A part of a picture in another size: bilinear, and antialiased where it shrinks.
inline void resize_part(pixels<float const> from, rectangle part, pixels<float> to) {
  line_weights const down(part.height, to.height), right(part.width, to.width);
  std::vector<float> narrow(static_cast<std::size_t>(part.height * to.width * to.colours), 0.0F);
  pixels<float> const between{narrow.data(), part.height, to.width, to.colours};
  for (std::int64_t row = 0; row < part.height; ++row) {
    std::size_t at = 0;
    for (std::int64_t column = 0; column < to.width; ++column) {
      auto const place = static_cast<std::size_t>(column);
      for (std::int64_t i = 0; i < right.counts[place]; ++i, ++at) {
        for (std::int64_t c = 0; c < to.colours; ++c) {
          between(row, column, c) += right.weights[at] * from(part.top + row, part.left + right.begins[place] + i, c);
        }
      }
    }
  }
  std::fill_n(to.first, to.size(), 0.0F);
  std::size_t at = 0;
  for (std::int64_t row = 0; row < to.height; ++row) {
    auto const place = static_cast<std::size_t>(row);
    for (std::int64_t i = 0; i < down.counts[place]; ++i, ++at) {
      auto const* line = &between(down.begins[place] + i, 0, 0);
      auto* out = &to(row, 0, 0);
      for (std::int64_t k = 0; k < to.width * to.colours; ++k) out[k] += down.weights[at] * line[k];
    }
  }
}

inline void expect_between(char const* step, char const* field, std::array<double, 2> range, double most) {
  if (range[0] > 0 && range[0] <= range[1] && range[1] <= most) return;
  throw config_error(text("trireme::data::", step, ": .", field, " = {", range[0], ", ", range[1],
                          "}, but it must be two ascending numbers above 0", most < 2 ? " and at most 1" : ""));
}
inline void expect_chance(char const* step, double chance) {
  if (chance >= 0 && chance <= 1) return;
  throw config_error(text("trireme::data::", step, ": .chance = ", chance, ", but it must be from 0 to 1"));
}

}  // namespace detail

TRIREME_EXACT_BEGIN

/// A part of the picture at a random place, after .padding pixels of .fill were put on each side. In evaluation: the
/// middle, without padding.
///
/// Errors   config_error if the part is larger than the padded picture, or in evaluation than the picture.
struct crop {
  std::int64_t height = 0;  ///< 0: that of the picture
  std::int64_t width = 0;
  std::int64_t padding = 0;
  float fill = 0;

  [[nodiscard]] shape shape_of(shape const& from) const {
    auto const rows = height == 0 ? from[0] : height, columns = width == 0 ? from[1] : width;
    if (padding < 0 || rows < 1 || columns < 1 || rows > from[0] || columns > from[1]) {
      throw config_error(text("trireme::data::crop: cannot cut ", rows, " x ", columns, " out of pictures of ", from[0],
                              " x ", from[1], " with .padding = ", padding));
    }
    return {rows, columns, from[2]};
  }
  void make(draws* random, pixels<float const> from, pixels<float> to) const {
    auto const edge = random == nullptr ? 0 : padding;
    auto const place = [&](std::int64_t whole, std::int64_t part) {
      auto const room = whole + 2 * edge - part;
      return (random == nullptr ? room / 2 : random->below(room + 1)) - edge;
    };
    auto const top = place(from.height, to.height), left = place(from.width, to.width);
    auto const inside = [](std::int64_t at, std::int64_t end) { return std::clamp<std::int64_t>(at, 0, end); };
    auto const first = inside(-left, to.width), last = inside(from.width - left, to.width);  // columns of the picture
    for (std::int64_t row = 0; row < to.height; ++row) {
      auto* const line = to.first + row * to.width * to.colours;
      auto const down = top + row;
      if (down < 0 || down >= from.height || first >= last) {
        std::fill_n(line, to.width * to.colours, fill);
        continue;
      }
      std::fill_n(line, first * to.colours, fill);
      std::copy_n(&from(down, left + first, 0), (last - first) * to.colours, line + first * to.colours);
      std::fill_n(line + last * to.colours, (to.width - last) * to.colours, fill);
    }
  }
  friend bool operator==(crop const&, crop const&) = default;
};

/// A part of random area and ratio of its sides, resized [Szegedy et al., "Going deeper with convolutions", 2014]. In
/// evaluation: the largest part of the wanted shape, from the middle.
///
/// Numerics bilinear, antialiased where the part shrinks.
struct resize_crop {
  std::int64_t height = 0;  ///< 0: that of the picture
  std::int64_t width = 0;
  std::array<double, 2> area{0.08, 1};            ///< as a part of the picture's
  std::array<double, 2> ratio{3.0 / 4, 4.0 / 3};  ///< width / height

  [[nodiscard]] shape shape_of(shape const& from) const {
    detail::expect_between("resize_crop", "area", area, 1);
    detail::expect_between("resize_crop", "ratio", ratio, 1000);
    if (height < 0 || width < 0)
      throw config_error(text("trireme::data::resize_crop: cannot make pictures of ", height, " x ", width));
    return {height == 0 ? from[0] : height, width == 0 ? from[1] : width, from[2]};
  }
  void make(draws* random, pixels<float const> from, pixels<float> to) const {
    auto const part =
        random == nullptr ? std::nullopt : detail::drawn_part(*random, from.height, from.width, area, ratio);
    detail::resize_part(from, part ? *part : detail::middle_of(from.height, from.width, to.height, to.width), to);
  }
  friend bool operator==(resize_crop const&, resize_crop const&) = default;
};

/// Exchanges left and right, by chance.
struct flip {
  double chance = 0.5;
  void validate() const { detail::expect_chance("flip", chance); }
  void change(draws& random, pixels<float> of) const {
    if (!random.chance(chance)) return;
    for (std::int64_t row = 0; row < of.height; ++row) {
      for (std::int64_t column = 0; column < of.width / 2; ++column) {
        std::swap_ranges(&of(row, column, 0), &of(row, column, 0) + of.colours, &of(row, of.width - 1 - column, 0));
      }
    }
  }
  friend bool operator==(flip const&, flip const&) = default;
};

/// Changes brightness, contrast and saturation, in this order, each by a factor from 1 - x to 1 + x.
///
/// The numbers of pictures are colours from 0 to 1 of which .mean was taken and that were divided by .deviation: give
/// those of the source. Saturation, and the grey of contrast, need three colours; of others the mean is taken.
///
/// Numerics as torchvision's ColorJitter in a fixed order; colours are kept between 0 and 1.
struct colour {
  double brightness = 0, contrast = 0, saturation = 0;
  std::array<double, 3> mean{0, 0, 0};
  std::array<double, 3> deviation{1, 1, 1};

  void validate() const {
    for (auto const by : {brightness, contrast, saturation}) {
      if (!(by >= 0 && by <= 1))
        throw config_error(text("trireme::data::colour: a change by ", by, ", but changes are from 0 to 1"));
    }
    for (auto const each : deviation) {
      if (!(each > 0)) throw config_error(text("trireme::data::colour: the deviation ", each, " must be above 0"));
    }
  }
  void change(draws& random, pixels<float> of) const {
    auto const factor = [&](double by) { return static_cast<float>(random.uniform(1 - by, 1 + by)); };
    auto const bright = factor(brightness), contrasting = factor(contrast), saturated = factor(saturation);
    auto const each = [&](auto const& call) {
      for (std::int64_t i = 0; i < of.height * of.width; ++i) call(of.first + i * of.colours);
    };
    auto const offset = [&](std::int64_t c) { return static_cast<float>(mean[static_cast<std::size_t>(c % 3)]); };
    auto const scale = [&](std::int64_t c) { return static_cast<float>(deviation[static_cast<std::size_t>(c % 3)]); };
    auto const grey = [&](float const* at) {
      if (of.colours == 3) return 0.299F * at[0] + 0.587F * at[1] + 0.114F * at[2];
      float sum = 0;
      for (std::int64_t c = 0; c < of.colours; ++c) sum += at[c];
      return sum / static_cast<float>(of.colours);
    };
    auto const kept = [](float x) { return std::min(1.0F, std::max(0.0F, x)); };
    double sum = 0;
    each([&](float* at) {
      for (std::int64_t c = 0; c < of.colours; ++c) at[c] = kept((at[c] * scale(c) + offset(c)) * bright);
      sum += static_cast<double>(grey(at));
    });
    auto const middle = static_cast<float>(sum / static_cast<double>(of.height * of.width));
    each([&](float* at) {
      for (std::int64_t c = 0; c < of.colours; ++c) at[c] = kept(middle + (at[c] - middle) * contrasting);
      auto const light = grey(at);
      for (std::int64_t c = 0; c < of.colours; ++c)
        at[c] = (kept(light + (at[c] - light) * saturated) - offset(c)) / scale(c);
    });
  }
  friend bool operator==(colour const&, colour const&) = default;
};

/// Writes .value over a part of random area and ratio of its sides, by chance [Zhong et al., "Random erasing data
/// augmentation", 2017].
struct erase {
  double chance = 0.5;
  std::array<double, 2> area{0.02, 0.33};
  std::array<double, 2> ratio{0.3, 3.3};
  float value = 0;

  void validate() const {
    detail::expect_chance("erase", chance);
    detail::expect_between("erase", "area", area, 1);
    detail::expect_between("erase", "ratio", ratio, 1000);
  }
  void change(draws& random, pixels<float> of) const {
    if (!random.chance(chance)) return;
    auto const part = detail::drawn_part(random, of.height, of.width, area, ratio);
    if (!part) return;
    for (std::int64_t row = 0; row < part->height; ++row) {
      std::fill_n(&of(part->top + row, part->left, 0), part->width * of.colours, value);
    }
  }
  friend bool operator==(erase const&, erase const&) = default;
};

/// Mixes each sample with another one of the dataset: x a + (1 - x) b, x of the beta distribution [Zhang et al.,
/// "mixup: beyond empirical risk minimization", 2017].
///
/// Targets that are float are mixed in the same way. A label is that of one of the two, by chance in their proportion:
/// on average that is the loss of mixed labels.
struct mixup {
  double alpha = 0.2;
  void validate() const {
    if (!(alpha > 0)) throw config_error(text("trireme::data::mixup: .alpha = ", alpha, ", but it must be above 0"));
  }
  /// @returns the part of a.
  [[nodiscard]] double mix(draws& random, pixels<float> a, pixels<float const> b) const {
    auto const part = random.beta(alpha);
    auto const own = static_cast<float>(part), other = static_cast<float>(1 - part);
    for (std::int64_t i = 0; i < a.size(); ++i) a.first[i] = own * a.first[i] + other * b.first[i];
    return part;
  }
  friend bool operator==(mixup const&, mixup const&) = default;
};

/// Copies a part of another sample into each, of an area of the beta distribution [Yun et al., "CutMix", 2019]. Targets
/// as those of mixup.
struct cutmix {
  double alpha = 1;
  void validate() const {
    if (!(alpha > 0)) throw config_error(text("trireme::data::cutmix: .alpha = ", alpha, ", but it must be above 0"));
  }
  /// @returns the part of a.
  [[nodiscard]] double mix(draws& random, pixels<float> a, pixels<float const> b) const {
    auto const side = std::sqrt(1 - random.beta(alpha));
    auto const range = [&](std::int64_t whole) {
      auto const length = static_cast<std::int64_t>(static_cast<double>(whole) * side);
      auto const begin = random.below(whole) - length / 2;
      return std::pair(std::max<std::int64_t>(0, begin), std::min(whole, begin + length));
    };
    auto const [top, bottom] = range(a.height);
    auto const [left, right] = range(a.width);
    if (bottom <= top || right <= left) return 1;
    for (auto row = top; row < bottom; ++row)
      std::copy_n(&b(row, left, 0), (right - left) * a.colours, &a(row, left, 0));
    return 1 - static_cast<double>((bottom - top) * (right - left)) / static_cast<double>(a.height * a.width);
  }
  friend bool operator==(cutmix const&, cutmix const&) = default;
};

TRIREME_EXACT_END

/// Masks tokens anew in each epoch, for models of masked words [Devlin et al., "BERT", 2018; Liu et al., "RoBERTa",
/// 2019].
///
/// Of the tokens that are not in .kept a part of .rate is chosen: 80 % of these become .mask, 10 % another token, 10 %
/// stay. Targets are the chosen tokens at their places, and .ignored elsewhere. In evaluation the choice depends on the
/// sample alone, so that results can be compared.
///
/// Shapes   inputs and targets of the source have the same number of int32; what the targets hold is not used.
struct mask_tokens {
  std::int32_t mask = 0;        ///< the token [MASK]
  std::int32_t vocabulary = 0;  ///< tokens are below this
  double rate = 0.15;
  std::int32_t ignored = -1;         ///< as in the loss
  std::vector<std::int32_t> kept{};  ///< never masked, nor put in the place of others: [CLS], [SEP], [PAD]

  static constexpr bool in_evaluation = true;
  void validate(shape const& inputs, shape const& targets) const {
    if (!(rate > 0 && rate <= 1)) {
      throw config_error(text("trireme::data::mask_tokens: .rate = ", rate, ", but it must be above 0 and at most 1"));
    }
    if (mask < 0 || mask >= vocabulary) {
      throw config_error(
          text("trireme::data::mask_tokens: .mask = ", mask, " is no token below .vocabulary = ", vocabulary));
    }
    std::int64_t free = vocabulary;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      bool const again = std::find(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(i), kept[i]) !=
                         kept.begin() + static_cast<std::ptrdiff_t>(i);
      if (!again && kept[i] >= 0 && kept[i] < vocabulary) --free;
    }
    if (free < 1) throw config_error("trireme::data::mask_tokens: all tokens are in .kept, so none can be masked");
    if (inputs.size() != targets.size()) {
      throw config_error(text("trireme::data::mask_tokens: inputs of shape ", to_string(inputs),
                              " and targets of shape ", to_string(targets), "; a target is needed for each token"));
    }
  }
  void operator()(draws& random, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    auto const is_kept = [&](std::int32_t token) { return std::find(kept.begin(), kept.end(), token) != kept.end(); };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      targets[i] = ignored;
      if (is_kept(inputs[i]) || !random.chance(rate)) continue;
      targets[i] = inputs[i];
      auto const what = random.uniform();
      if (what < 0.8) {
        inputs[i] = mask;
      } else if (what < 0.9) {
        do inputs[i] = static_cast<std::int32_t>(random.below(vocabulary));
        while (is_kept(inputs[i]));
      }
    }
  }
  friend bool operator==(mask_tokens const&, mask_tokens const&) = default;
};

namespace detail {

/// A step that makes another picture, possibly of another size; also in evaluation.
template <class S>
concept making_step = requires(S const& step, shape const& from, draws* random, pixels<float const> a,
                               pixels<float> b) {
  { step.shape_of(from) } -> std::same_as<shape>;
  step.make(random, a, b);
};
/// A step that changes a picture in place.
template <class S>
concept changing_step = requires(S const& step, draws& random, pixels<float> of) {
  step.validate();
  step.change(random, of);
};
/// A step that mixes a picture with another one.
template <class S>
concept mixing_step = requires(S const& step, draws& random, pixels<float> a, pixels<float const> b) {
  step.validate();
  { step.mix(random, a, b) } -> std::same_as<double>;
};

template <class Call>
struct step_signature {};
template <class F, class Input, class Target>
struct step_signature<void (F::*)(draws&, std::span<Input>, std::span<Target>) const> {
  using input = Input;
  using target = Target;
};
/// A function of one's own.
template <class S>
concept own_step = requires {
  typename step_signature<decltype(&S::operator())>::input;
};
template <class S>
concept picture_step = making_step<S> || changing_step<S> || mixing_step<S>;

}  // namespace detail

/// What data::augment does with a sample: crop, resize_crop, flip, colour, erase, mixup, cutmix, mask_tokens, or a
/// function of one's own, void(data::draws&, std::span<Input> inputs, std::span<Target> targets) const, which changes a
/// sample in place.
template <class S>
concept augmentation_step = detail::picture_step<S> || detail::own_step<S>;

/// Samples of another dataset, changed at random whenever the loader reads them. Made by data::augment.
/// @models trireme::dataset, trireme::has_placed_read; trireme::has_sample_order if the source does
template <dataset Source, augmentation_step... Steps>
class augmented {
 public:
  augmented(Source source, Steps... steps) : source_(std::move(source)), steps_(std::move(steps)...) {
    shapes_.push_back(source_.input_shape());
    if constexpr ((detail::picture_step<Steps> || ...)) {
      expect(source_.input_type(), dtype::f32, "pictures", "inputs");
      auto const rank = shape(source_.input_shape()).rank();
      if (rank != 2 && rank != 3) {
        throw config_error(text(who, ": samples of shape ", to_string(shape(source_.input_shape())),
                                " are not pictures, which have the shape (height, width, colours)"));
      }
    }
    begin(std::index_sequence_for<Steps...>());
  }

  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  [[nodiscard]] dtype input_type() const { return source_.input_type(); }
  [[nodiscard]] dtype target_type() const { return source_.target_type(); }
  [[nodiscard]] shape input_shape() const { return shapes_.back(); }
  [[nodiscard]] shape target_shape() const { return source_.target_shape(); }
  [[nodiscard]] bool slow_to_read() const {
    return (std::is_same_v<Steps, resize_crop> || ...) || trireme::slow_to_read(source_);
  }
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return model_files_of(source_); }
  [[nodiscard]] bool sets_order() const { return detail::sets_order(source_); }
  [[nodiscard]] std::int64_t epoch_size() const requires has_sample_order<Source> { return source_.epoch_size(); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t seed, std::uint64_t epoch,
                                   std::int64_t position) const requires has_sample_order<Source> {
    return source_.id_at(seed, epoch, position);
  }
  [[nodiscard]] Source const& source() const noexcept { return source_; }

  /// For evaluation and prediction: nothing is left to chance.
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read_rows(nullptr, ids, inputs, targets);
  }
  /// For training.
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read_rows(&place, ids, inputs, targets);
  }

 private:
  static constexpr char const* who = "trireme::data::augment";
  static constexpr std::size_t count = sizeof...(Steps);
  using bytes = std::unique_ptr<std::byte[]>;
  static constexpr std::size_t most_kept = std::size_t{16} << 20;
  static constexpr bool makes_pictures = (detail::making_step<Steps> || ...);

  [[nodiscard]] static bytes room(std::size_t size) { return std::make_unique_for_overwrite<std::byte[]>(size); }

  static void expect(dtype found, dtype taken, char const* what, char const* of) {
    if (found == taken) return;
    throw config_error(text(who, ": a step takes ", what, " of ", name_of(taken), ", but the ", of,
                            " of the source are ", name_of(found)));
  }
  template <std::size_t... I>
  void begin(std::index_sequence<I...>) {
    (begin_step(std::get<I>(steps_)), ...);
  }
  template <class Step>
  void begin_step(Step const& step) {
    auto const& from = shapes_.back();
    if constexpr (detail::making_step<Step>) {
      auto const to = step.shape_of(shape{from[0], from[1], from.rank() == 3 ? from[2] : 1});
      shapes_.push_back(from.rank() == 3 ? to : shape{to[0], to[1]});
    } else {
      if constexpr (detail::picture_step<Step>) {
        step.validate();
      } else {
        using signature = detail::step_signature<decltype(&Step::operator())>;
        expect(source_.input_type(), dtype_of<typename signature::input>, "inputs", "inputs");
        expect(source_.target_type(), dtype_of<typename signature::target>, "targets", "targets");
        if constexpr (requires { step.validate(from, from); }) step.validate(from, source_.target_shape());
      }
      if constexpr (detail::mixing_step<Step>) {
        auto const type = source_.target_type();
        if (type != dtype::f32 && !(type == dtype::i32 && shape(source_.target_shape()).size() == 1)) {
          throw config_error(text(who, ": targets of ", name_of(type), " ", to_string(shape(source_.target_shape())),
                                  " cannot be mixed; they must be F32, or one label of I32"));
        }
      }
      shapes_.push_back(shape(from));
    }
  }
  [[nodiscard]] std::size_t input_bytes(std::size_t step) const {
    return static_cast<std::size_t>(shapes_[step].size()) * size_of(source_.input_type());
  }
  [[nodiscard]] std::size_t target_bytes() const {
    return static_cast<std::size_t>(shape(source_.target_shape()).size()) * size_of(source_.target_type());
  }
  template <class T>
  [[nodiscard]] pixels<T> picture(std::size_t step, T* first) const {
    auto const& of = shapes_[step];
    return {first, of[0], of[1], of.rank() == 3 ? of[2] : 1};
  }

  void read_rows(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    // If no step makes another picture, the source's samples are changed where they are needed.
    thread_local std::vector<std::byte> kept;  // of the last call: less work for the system, which clears new memory
    auto all = std::exchange(kept, {});
    if (makes_pictures) all.resize(ids.size() * input_bytes(0));
    auto* const first = makes_pictures ? all.data() : static_cast<std::byte*>(inputs);
    read_source(at, ids, first, targets);
    places of;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      of.now = first + row * input_bytes(0);
      of.last = static_cast<std::byte*>(inputs) + row * input_bytes(count);
      apply<0, count>(at, row, ids[row], of, static_cast<std::byte*>(targets) + row * target_bytes());
    }
    if (all.size() <= most_kept) kept = std::move(all);
  }
  void read_source(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    if (at != nullptr) {
      read_at(source_, *at, ids, inputs, targets);
    } else {
      source_.read(ids, inputs, targets);
    }
  }

  template <class Step>
  static constexpr bool chosen_in_evaluation = requires {
    requires Step::in_evaluation;
  };

  /// Where a sample is between the steps.
  struct places {
    std::byte* now = nullptr;
    std::byte* last = nullptr;       // where the last picture that is made has to be; null: anywhere
    std::array<bytes, 2> scratch{};  // of pictures made before it, in turns
    std::size_t turn = 0;
  };
  /// The step that makes the last picture of steps [0, End); End: none does.
  template <std::size_t... I>
  static constexpr std::size_t last_making(std::size_t end, std::index_sequence<I...>) {
    std::size_t found = end;
    ((found = I < end && detail::making_step<Steps> ? I : found), ...);
    return found;
  }

  /// Steps [Step, End) of one sample, which is in of.now before and after.
  template <std::size_t Step, std::size_t End>
  void apply(read_place const* at, std::size_t row, std::int64_t id, places& of, std::byte* targets) const {
    if constexpr (Step < End) {
      using step_type = std::tuple_element_t<Step, std::tuple<Steps...>>;
      auto const& step = std::get<Step>(steps_);
      auto random = at == nullptr ? draws(0, 0, id, Step) : draws(at->seed, at->epoch, id, Step);
      auto* const values = reinterpret_cast<float*>(of.now);
      if constexpr (detail::making_step<step_type>) {
        auto* to = of.last;
        if (to == nullptr || Step != last_making(End, std::index_sequence_for<Steps...>())) {
          auto& scratch = of.scratch[of.turn++ % 2];
          scratch = room(input_bytes(Step + 1));
          to = scratch.get();
        }
        step.make(at == nullptr ? nullptr : &random, picture<float const>(Step, values),
                  picture(Step + 1, reinterpret_cast<float*>(to)));
        of.now = to;
      } else if (at != nullptr || chosen_in_evaluation<step_type>) {
        if constexpr (detail::changing_step<step_type>) {
          step.change(random, picture(Step, values));
        } else if constexpr (detail::mixing_step<step_type>) {
          mix<Step>(*at, row, random, picture(Step, values), targets);
        } else {
          using signature = detail::step_signature<decltype(&step_type::operator())>;
          using input = typename signature::input;
          using target = typename signature::target;
          step(random, std::span(reinterpret_cast<input*>(of.now), input_bytes(Step) / sizeof(input)),
               std::span(reinterpret_cast<target*>(targets), target_bytes() / sizeof(target)));
        }
      }
      apply<Step + 1, End>(at, row, id, of, targets);
    }
  }

  /// The other sample goes through the steps before this one, with its own random numbers.
  template <std::size_t Step>
  void mix(read_place at, std::size_t row, draws& random, pixels<float> own, std::byte* targets) const {
    auto const chosen = static_cast<std::int64_t>(random.uniform() * static_cast<double>(size()));
    at.position += static_cast<std::int64_t>(row);
    auto const read = room(input_bytes(0)), other = room(target_bytes());
    places of;
    of.now = read.get();
    read_source(&at, std::span(&chosen, 1), of.now, other.get());
    apply<0, Step>(&at, 0, chosen, of, other.get());
    auto const part =
        std::get<Step>(steps_).mix(random, own, picture<float const>(Step, reinterpret_cast<float const*>(of.now)));
    if (source_.target_type() == dtype::f32) {
      auto* const to = reinterpret_cast<float*>(targets);
      auto const* const from = reinterpret_cast<float const*>(other.get());
      for (std::size_t i = 0; i < target_bytes() / sizeof(float); ++i)
        to[i] = static_cast<float>(part) * to[i] + static_cast<float>(1 - part) * from[i];
    } else if (!random.chance(part)) {
      std::memcpy(targets, other.get(), target_bytes());
    }
  }

  Source source_;
  std::tuple<Steps...> steps_;
  std::vector<shape> shapes_;  // of a sample before each step, and after the last
};

/// A dataset whose samples are changed at random when they are read for training, by one step after the other.
///
///     data::augment(pictures, data::crop{.padding = 4}, data::flip{})
///
/// A run sees each sample once in an epoch, changed in another way each time. The random numbers are a function of
/// (seed, epoch, number of the sample), so a run is the same on any number of ranks and after a resume. evaluate() and
/// predict() see samples without chance: the middle is cut, and other steps do nothing. Pictures are (height, width,
/// colours) or (height, width), float.
///
/// A step of one's own gets its numbers in the same way:
///
///     data::augment(source, [](data::draws& random, std::span<float> inputs, std::span<std::int32_t> targets) {
///       for (auto& each : inputs) each += 0.1F * static_cast<float>(random.normal());
///     })
///
/// Threads  steps are called by several threads at once.
/// Errors   config_error if types or shapes of the source are not those of a step, or if a step's numbers are
/// impossible.
template <dataset Source, augmentation_step... Steps>
[[nodiscard]] augmented<Source, Steps...> augment(Source source, Steps... steps) {
  return {std::move(source), std::move(steps)...};
}

}  // namespace trireme::data
