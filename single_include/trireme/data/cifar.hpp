// Trireme 0.1.0: trireme/data/cifar.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 62683d5c04671c43e285dc562ecc0e959bf78b831ef35898f672b83e04e511c2
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"

// ---- trireme/data/cifar.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifndef TRIREME_DATA_DETAIL_COLOURS_INCLUDED
#define TRIREME_DATA_DETAIL_COLOURS_INCLUDED

// ---- trireme/data/detail/colours.hpp
#include <cmath>
#include <limits>

namespace trireme::data::detail {

/// A number for each colour: red, green and blue.
using of_colours = std::array<double, 3>;

/// What a byte of each colour becomes: (byte / 255 - mean) / deviation, computed in double and rounded once.
///
/// Errors   config_error for a deviation that is not above 0, and for numbers that float32 cannot hold.
/// @param who  begins the sentences of errors.
[[nodiscard]] inline std::array<std::array<float, 256>, 3> numbers_of_bytes(char const* who, of_colours const& means,
                                                                            of_colours const& deviations) {
  std::array<std::array<float, 256>, 3> out{};
  for (std::size_t colour = 0; colour < 3; ++colour) {
    auto const mean = means[colour], deviation = deviations[colour];
    auto const refuse = [&](char const* why) {
      return config_error(text(who, ": the mean ", mean, " and deviation ", deviation, " of colour ", colour, why));
    };
    if (!(deviation > 0) || !std::isfinite(deviation) || !std::isfinite(mean)) {
      throw refuse(" must be finite, and the deviation above 0");
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      auto const number = (static_cast<double>(byte) / 255 - mean) / deviation;
      if (!(std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max()))) {
        throw refuse(" give numbers that float32 cannot hold");
      }
      out[colour][byte] = static_cast<float>(number);
    }
  }
  return out;
}

/// ", .mean = {0.5, 0.5, 0.5}, .deviation = {0.2, 0.2, 0.2}", without those that change nothing.
[[nodiscard]] inline std::string text_of_colours(of_colours const& means, of_colours const& deviations) {
  std::string out;
  auto const add = [&](char const* field, of_colours const& of, double usual) {
    if (of != of_colours{usual, usual, usual}) out += text(", .", field, " = {", of[0], ", ", of[1], ", ", of[2], "}");
  };
  add("mean", means, 0);
  add("deviation", deviations, 1);
  return out;
}

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_COLOURS_INCLUDED

// ---- trireme/data/cifar.hpp (goes on)
namespace trireme::data {

class cifar_samples;

/// Which labels a sample has, and with them the layout of the files.
enum class cifar_labels {
  ten,             ///< CIFAR-10: records of a label and a picture
  hundred,         ///< CIFAR-100: the second of two labels, 100 classes
  hundred_coarse,  ///< CIFAR-100: the first of two labels, 20 classes
};

[[nodiscard]] constexpr std::string_view name_of(cifar_labels kind) noexcept {
  constexpr std::string_view names[] = {"ten", "hundred", "hundred_coarse"};
  return names[static_cast<std::size_t>(kind)];
}

/// Pictures in the binary version of CIFAR-10 (data_batch_1.bin, ...) and CIFAR-100 (train.bin).
///
///     data::cifar{.files = "cifar-10-batches-bin/data_batch_*.bin"}.open()
///
/// A number of a picture is (byte / 255 - mean) / deviation, by the mean and deviation of its colour. Give a pattern
/// and not the folder: it holds the test pictures too.
///
/// Errors   open() throws config_error if nothing matches, for deviations that are not above 0, and for means and
///          deviations that give numbers beyond float32. A file that does not consist of whole records is a
///          format_error with file and byte; a label that is not a class, with file, byte and sample.
struct cifar {
  file_list files{};
  cifar_labels labels = cifar_labels::ten;
  std::array<double, 3> mean{0, 0, 0};  ///< of red, green and blue, from 0 to 1
  std::array<double, 3> deviation{1, 1, 1};
  [[nodiscard]] cifar_samples open() const;
  TRIREME_EXACT_BEGIN
  friend bool operator==(cifar const&, cifar const&) = default;
  TRIREME_EXACT_END
};

/// "trireme::data::cifar{.files = "train.bin", .labels = trireme::data::cifar_labels::ten}"
[[nodiscard]] inline std::string to_string(cifar const& from) {
  auto out = text("trireme::data::cifar{.files = ", to_string(from.files),
                  ", .labels = trireme::data::cifar_labels::", name_of(from.labels));
  return out + detail::text_of_colours(from.mean, from.deviation) + "}";
}

/// The samples of cifar.
///
/// Shapes   inputs (32, 32, 3) float: row, column, colour, as nn::convnet takes them (the files hold one colour after
///          the other); targets () int32.
/// Numerics computed in double and rounded once.
/// Bytes    files are not loaded: a record of 3073 or 3074 bytes is read when it is needed.
/// Threads  read() is const: any number of callers. Copies share the open files.
/// @models trireme::dataset
class cifar_samples {
 public:
  explicit cifar_samples(cifar const& from)
      : labels_(from.labels == cifar_labels::ten ? 1 : 2),
        label_(from.labels == cifar_labels::hundred ? 1 : 0),
        classes_(from.labels == cifar_labels::ten       ? 10
                 : from.labels == cifar_labels::hundred ? 100
                                                        : 20),
        numbers_(detail::numbers_of_bytes(who, from.mean, from.deviation)) {
    for (auto const& name : from.files.names(who, {".bin"})) add(name);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::f32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {32, 32, 3}; }
  [[nodiscard]] shape target_shape() const { return {}; }
  [[nodiscard]] std::int32_t classes() const noexcept { return classes_; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<float*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    std::array<unsigned char, pixels * 3 + 2> record{};
    auto const used = std::span(record).first(static_cast<std::size_t>(record_bytes()));
    for (auto const id : ids) {
      auto const next = std::upper_bound(parts_.begin(), parts_.end(), id,
                                         [](std::int64_t row, part const& each) { return row < each.first; });
      auto const& from = *(next - 1);
      from.file->read((id - from.first) * record_bytes(), used);
      *out++ = checked(from, id, used[label_]);
      auto const picture = used.subspan(labels_);
      for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
        for (std::size_t colour = 0; colour < 3; ++colour) {
          *in++ = numbers_[colour][picture[colour * pixels + pixel]];
        }
      }
    }
  }

 private:
  static constexpr char const* who = "trireme::data::cifar";
  static constexpr std::size_t pixels = 32 * 32;
  struct part {
    std::string path;
    std::shared_ptr<detail::stable_file const> file;
    std::int64_t first;
  };

  [[nodiscard]] std::int64_t record_bytes() const noexcept { return static_cast<std::int64_t>(labels_ + pixels * 3); }
  [[nodiscard]] std::int32_t checked(part const& in, std::int64_t id, unsigned char label) const {
    if (label < classes_) return label;
    auto const at = (id - in.first) * record_bytes() + static_cast<std::int64_t>(label_);
    throw format_error(in.path, static_cast<std::uint64_t>(at),
                       text(who, ": sample ", id, " has the label ", label, ", but there are ", classes_, " classes"));
  }
  void add(std::string const& name) {
    part next{name, std::make_shared<detail::stable_file const>(name, who), size_};
    auto const bytes = next.file->size();
    if (bytes % record_bytes() != 0) {
      throw format_error(name, static_cast<std::uint64_t>(bytes - bytes % record_bytes()),
                         text(who, ": the file has ", how_many(bytes, "byte"), ", but records of ", record_bytes(),
                              " are needed; it is truncated, or .labels is not that of its kind"));
    }
    for (std::int64_t row = 0; row < bytes / record_bytes(); ++row) {
      unsigned char label = 0;
      next.file->read(row * record_bytes() + static_cast<std::int64_t>(label_), {&label, 1});
      static_cast<void>(checked(next, size_ + row, label));
    }
    size_ += bytes / record_bytes();
    parts_.push_back(std::move(next));
  }

  std::size_t labels_, label_;
  std::int32_t classes_;
  std::int64_t size_ = 0;
  std::vector<part> parts_;
  std::array<std::array<float, 256>, 3> numbers_{};
};

inline cifar_samples cifar::open() const { return cifar_samples(*this); }

}  // namespace trireme::data
