#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/data/detail/number_cast.hpp"
#include "trireme/data/detail/stable_file.hpp"
#include "trireme/formats/npy.hpp"

namespace trireme::data::detail {

/// Where an array in numpy's format is stored: a part of a file, or memory.
class array_bytes {
 public:
  array_bytes(std::shared_ptr<stable_file const> file, std::int64_t begin, std::int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}
  explicit array_bytes(std::shared_ptr<std::vector<unsigned char> const> memory)
      : memory_(std::move(memory)), size_(static_cast<std::int64_t>(memory_->size())) {}

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// Fills `to` with the bytes from `at` on, which must be there.
  void read(std::int64_t at, std::span<unsigned char> to) const {
    if (memory_ == nullptr) return file_->read(begin_ + at, to);
    std::copy_n(memory_->begin() + at, to.size(), to.begin());
  }

 private:
  std::shared_ptr<stable_file const> file_;
  std::shared_ptr<std::vector<unsigned char> const> memory_;
  std::int64_t begin_ = 0, size_;
};

/// An array and its name in messages.
struct named_array {
  std::string name;
  array_bytes bytes;
};

/// Some arrays, joined along the first axis. Messages begin with `who`, a public name; `what` is features or targets.
class joined_arrays {
 public:
  joined_arrays(char const* who, std::vector<named_array> arrays, std::optional<dtype> as, char const* what)
      : who_(who), cast_(who, as, what) {
    for (auto& each : arrays) add(std::move(each));
    cast_.of(type_, parts_.front().path);
  }

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] dtype type() const noexcept { return cast_.given(); }
  [[nodiscard]] shape const& row_shape() const noexcept { return row_; }

  void read(std::span<std::int64_t const> ids, void* to) const {
    auto const count = static_cast<std::size_t>(row_.size());
    auto* out = static_cast<unsigned char*>(to);
    std::vector<unsigned char> stored(cast_.converts() ? count * width() : 0);
    for (auto const id : ids) {
      auto const next = std::upper_bound(parts_.begin(), parts_.end(), id,
                                         [](std::int64_t row, part const& each) { return row < each.first; });
      auto const& from = *(next - 1);
      if (!cast_.converts()) {
        read_row(from, id - from.first, {out, count * width()});
      } else {
        read_row(from, id - from.first, stored);
        cast_.convert(stored, out, [&](std::string const& number) {
          throw format_error(from.path, static_cast<std::uint64_t>(from.data_at),
                             text(who_, ": sample ", id, " holds ", number, ", which is not a number of 32 bits"));
        });
      }
      out += count * size_of(type());
    }
  }

 private:
  struct part {
    std::string path;
    array_bytes stored;
    std::int64_t first, rows, data_at;
    bool column_major;
  };
  [[nodiscard]] std::size_t width() const noexcept { return static_cast<std::size_t>(formats::npy::bytes_of(type_)); }

  void add(named_array array) {
    auto& name = array.name;
    auto const bytes = static_cast<std::uint64_t>(array.bytes.size());
    auto const start = [&](std::uint64_t most) {
      std::vector<std::byte> out(std::min(most, bytes));
      array.bytes.read(0, {reinterpret_cast<unsigned char*>(out.data()), out.size()});
      return out;
    };
    auto const length = formats::npy::header_bytes(start(formats::npy::start_bytes), bytes, name);
    auto const header = formats::npy::parse_header(start(length), bytes, name);
    auto const& extents = header.extents;
    if (extents.rank() == 0 || extents.size() == 0) {
      throw config_error(text(who_, ": ", name, " has shape ", to_string(extents), ", but at least one row is needed"));
    }
    shape const row(extents.extents().subspan(1));
    if (parts_.empty()) {
      row_ = row;
      type_ = header.type;
    } else if (row != row_ || header.type != type_) {
      throw config_error(text(who_, ": ", name, " holds rows of ", formats::npy::name_of(header.type), " of shape ",
                              to_string(row), ", but ", parts_.front().path, " rows of ", formats::npy::name_of(type_),
                              " of shape ", to_string(row_)));
    }
    parts_.push_back({std::move(name), std::move(array.bytes), rows_, extents[0],
                      static_cast<std::int64_t>(header.data_at), header.column_major && extents.rank() > 1});
    rows_ += extents[0];
  }

  void read_row(part const& from, std::int64_t row, std::span<unsigned char> to) const {
    auto const bytes = static_cast<std::int64_t>(width());
    if (!from.column_major) return from.stored.read(from.data_at + row * row_.size() * bytes, to);
    for (std::int64_t i = 0; i < row_.size(); ++i) {
      std::int64_t at = row, rest = i, stride = from.rows * row_.size();
      for (int axis = row_.rank() - 1; axis >= 0; --axis) {  // the last axis has the largest stride
        stride /= row_[axis];
        at += rest % row_[axis] * stride;
        rest /= row_[axis];
      }
      from.stored.read(from.data_at + at * bytes, to.subspan(static_cast<std::size_t>(i * bytes), width()));
    }
  }

  char const* who_;
  number_cast cast_;
  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  shape row_;
  formats::npy::number type_ = formats::npy::number::f32;
};

/// The arrays of features and targets as samples: row s of both is sample s.
class array_pair {
 public:
  /// @param features_name, targets_name  of the arrays, in the message about different numbers of rows.
  array_pair(char const* who, joined_arrays features, std::string const& features_name, joined_arrays targets,
             std::string const& targets_name)
      : features_(std::move(features)), targets_(std::move(targets)) {
    if (features_.rows() != targets_.rows()) {
      throw config_error(text(who, ": there are ", how_many(features_.rows(), "row"), " of ", features_name, " but ",
                              targets_.rows(), " of ", targets_name));
    }
  }
  [[nodiscard]] std::int64_t size() const noexcept { return features_.rows(); }
  [[nodiscard]] dtype input_type() const noexcept { return features_.type(); }
  [[nodiscard]] dtype target_type() const noexcept { return targets_.type(); }
  [[nodiscard]] shape input_shape() const { return features_.row_shape(); }
  [[nodiscard]] shape target_shape() const { return targets_.row_shape(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    features_.read(ids, inputs);
    targets_.read(ids, targets);
  }

 private:
  joined_arrays features_, targets_;
};

}  // namespace trireme::data::detail
