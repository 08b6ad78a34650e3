// Trireme 0.1.0: trireme/data/picture_folders.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 40924a9b135c53e5b0bb66769b4387f9374cb717aed7e470a056cdac818e739e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/picture.hpp"

// ---- trireme/data/picture_folders.hpp
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

// ---- trireme/data/picture_folders.hpp (goes on)
namespace trireme::data {

class picture_folder_samples;

/// How a picture of another shape becomes one of .height x .width.
enum class picture_fit {
  cut,      ///< the largest part of the wanted shape, from the middle, is resized
  stretch,  ///< all of it is resized
};

[[nodiscard]] constexpr std::string_view name_of(picture_fit how) noexcept {
  return how == picture_fit::cut ? "cut" : "stretch";
}

/// Pictures in a folder for each class: train/cats/1.jpg, train/dogs/a/b.png.
///
///     data::picture_folders{.directory = "train", .height = 224, .width = 224}.open()
///
/// The classes are the names of the folders, sorted by their bytes: the first is 0. In them, and in folders in them,
/// files whose names end in .png, .jpg or .jpeg, in any case, are samples; others are ignored, as are names that begin
/// with a dot. A number of a picture is (byte / 255 - mean) / deviation, by the mean and deviation of its colour.
///
/// Errors   open() throws config_error without a directory, height or width, for deviations that are not above 0, and
///          for means and deviations that give numbers beyond float32; io_error for a directory that cannot be read,
///          has no folder, or a folder without a picture. Files are decoded when they are read: read() throws
///          format_error with file, sample and reason for one that is damaged, io_error for one that is gone.
struct picture_folders {
  std::string directory{};
  std::int64_t height = 0;
  std::int64_t width = 0;
  picture_fit fit = picture_fit::cut;
  std::array<double, 3> mean{0, 0, 0};  ///< of red, green and blue, from 0 to 1
  std::array<double, 3> deviation{1, 1, 1};
  [[nodiscard]] picture_folder_samples open() const;
  TRIREME_EXACT_BEGIN
  friend bool operator==(picture_folders const&, picture_folders const&) = default;
  TRIREME_EXACT_END
};

/// "trireme::data::picture_folders{.directory = "train", .height = 32, .width = 32}"
[[nodiscard]] inline std::string to_string(picture_folders const& from) {
  auto out = text("trireme::data::picture_folders{.directory = \"", from.directory, "\", .height = ", from.height,
                  ", .width = ", from.width);
  if (from.fit != picture_fit{}) out += text(", .fit = trireme::data::picture_fit::", name_of(from.fit));
  return out + detail::text_of_colours(from.mean, from.deviation) + "}";
}

/// The samples of picture_folders.
///
/// Shapes   inputs (height, width, 3) float: row, column, colour, as nn::convnet and nn::vit take them; targets ()
///          int32.
/// Numerics decoding as formats::read_picture, sizes as formats::resized; then computed in double and rounded once.
/// Bytes    the names of the files. A file is read and decoded when it is needed, and not kept; each thread that reads
///          keeps up to 16 MiB for the next one.
/// Threads  read() is const: any number of callers. Copies share the names.
/// @models trireme::dataset, trireme::has_reading_speed
class picture_folder_samples {
 public:
  explicit picture_folder_samples(picture_folders const& from)
      : height_(from.height),
        width_(from.width),
        fit_(from.fit),
        numbers_(detail::numbers_of_bytes(who, from.mean, from.deviation)) {
    if (from.directory.empty()) throw config_error(text(who, ": .directory is empty; name the folder of the classes"));
    auto const side = [](char const* field, std::int64_t pixels) {
      if (pixels < 1 || pixels > 16384)
        throw config_error(text(who, ": .", field, " is ", pixels, ", but must be from 1 to 16384"));
    };
    side("height", height_);
    side("width", width_);
    auto files = std::make_shared<names>();
    files->root = from.directory;
    formats::directory const root(from.directory);
    for (auto const& name : root.names()) {
      if (name.front() == '.' || !is_directory(root, name)) continue;
      auto const before = files->pictures.size();
      add(files->pictures, root.below(name), name, static_cast<std::int32_t>(files->classes.size()));
      if (files->pictures.size() == before) {
        throw io_error(root.path_of(name),
                       text(who, ": the folder has no .png, .jpg or .jpeg file; remove it, or it would be a class"));
      }
      files->classes.push_back(name);
    }
    if (files->classes.empty()) {
      throw io_error(from.directory, text(who, ": the directory has no folder; one for each class is needed"));
    }
    files_ = std::move(files);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(files_->pictures.size()); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::f32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {height_, width_, 3}; }
  [[nodiscard]] shape target_shape() const { return {}; }
  [[nodiscard]] bool slow_to_read() const noexcept { return true; }
  /// The names of the classes; a target is a position in them.
  [[nodiscard]] std::vector<std::string> const& classes() const noexcept { return files_->classes; }
  /// The file of a sample.
  [[nodiscard]] std::string path_of(std::int64_t id) const {
    return text(files_->root, "/", files_->pictures[static_cast<std::size_t>(id)].name);
  }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<float*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const picture = sized(id);
      auto const* from = picture.colours.data();
      for (std::int64_t i = 0; i < height_ * width_; ++i, from += 3, in += 3) {
        in[0] = numbers_[0][from[0]];
        in[1] = numbers_[1][from[1]];
        in[2] = numbers_[2][from[2]];
      }
      *out++ = files_->pictures[static_cast<std::size_t>(id)].label;
    }
  }

 private:
  static constexpr char const* who = "trireme::data::picture_folders";
  static constexpr std::size_t most_kept = std::size_t{16} << 20;  // bytes of a picture
  struct named {
    std::string name;  // below the root
    std::int32_t label;
  };
  struct names {
    std::string root;
    std::vector<std::string> classes;
    std::vector<named> pictures;
  };

  static bool is_directory(formats::directory const& in, std::string const& name) {
    struct ::stat about {};
    return ::stat(in.path_of(name).c_str(), &about) == 0 && S_ISDIR(about.st_mode);
  }
  static bool is_picture(std::string_view name) {
    auto const ends = [&](std::string_view with) {
      return name.size() > with.size() &&
             std::equal(with.begin(), with.end(), name.end() - static_cast<std::ptrdiff_t>(with.size()),
                        [](char wanted, char c) { return wanted == (c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c); });
    };
    return ends(".png") || ends(".jpg") || ends(".jpeg");
  }
  static void add(std::vector<named>& to, formats::directory const& in, std::string const& prefix, std::int32_t label) {
    for (auto const& name : in.names()) {
      if (name.front() == '.') continue;
      if (is_directory(in, name))
        add(to, in.below(name), text(prefix, "/", name), label);
      else if (is_picture(name))
        to.push_back({text(prefix, "/", name), label});
    }
  }

  [[nodiscard]] formats::picture sized(std::int64_t id) const {
    auto const path = path_of(id);
    thread_local formats::picture whole;  // its memory is used again
    if (auto const wrong = formats::decode_picture(formats::read_file(path), whole); !wrong.empty()) {
      whole = {};
      throw format_error(path, 0, text(who, ": sample ", id, ": ", wrong));
    }
    auto height = whole.height, width = whole.width;
    if (fit_ == picture_fit::cut) {
      // Rounded down, at least one pixel.
      if (width * height_ > height * width_)
        width = static_cast<int>(std::max<std::int64_t>(1, height * width_ / height_));
      else
        height = static_cast<int>(std::max<std::int64_t>(1, width * height_ / width_));
    }
    auto out = formats::resized(whole, (whole.height - height) / 2, (whole.width - width) / 2, height, width,
                                static_cast<int>(height_), static_cast<int>(width_));
    if (whole.colours.capacity() > most_kept) whole = {};
    return out;
  }

  std::int64_t height_, width_;
  picture_fit fit_;
  std::shared_ptr<names const> files_;
  std::array<std::array<float, 256>, 3> numbers_{};
};

inline picture_folder_samples picture_folders::open() const { return picture_folder_samples(*this); }

}  // namespace trireme::data
