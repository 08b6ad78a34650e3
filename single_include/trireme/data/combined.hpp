// Trireme 0.1.0: trireme/data/combined.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 3c0f779637c28b17e05a97a8b7431bfdd0a42bcdf597ca69932c364f0ae16e42
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/data/combined.hpp
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Datasets made of other datasets.
namespace trireme::data {

/// Owns any dataset, which is copied or moved into it. Copies share it.
/// @models trireme::dataset, trireme::has_placed_read          @see any_dataset, which borrows
class shared_dataset {
 public:
  template <dataset Dataset>
  requires(!std::same_as<Dataset, shared_dataset>)
      shared_dataset(Dataset data)  // NOLINT(google-explicit-constructor): every dataset converts
      : size_(data.size()),
        input_type_(data.input_type()),
        target_type_(data.target_type()),
        input_shape_(data.input_shape()),
        target_shape_(data.target_shape()),
        slow_to_read_(trireme::slow_to_read(data)) {
    auto const held = std::make_shared<Dataset const>(std::move(data));
    read_ = [held](read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) {
      if (at != nullptr) {
        read_at(*held, *at, ids, inputs, targets);
      } else {
        held->read(ids, inputs, targets);
      }
    };
  }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return input_type_; }
  [[nodiscard]] dtype target_type() const noexcept { return target_type_; }
  [[nodiscard]] shape input_shape() const { return input_shape_; }
  [[nodiscard]] shape target_shape() const { return target_shape_; }
  [[nodiscard]] bool slow_to_read() const noexcept { return slow_to_read_; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read_(nullptr, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read_(&place, ids, inputs, targets);
  }

 private:
  std::int64_t size_;
  dtype input_type_, target_type_;
  shape input_shape_, target_shape_;
  bool slow_to_read_;
  std::function<void(read_place const*, std::span<std::int64_t const>, void*, void*)> read_;
};

namespace detail {

/// Sources whose samples have one shape and type.
class equal_sources {
 public:
  equal_sources(std::vector<shared_dataset> sources, char const* who) : all_(std::move(sources)) {
    if (all_.empty()) throw config_error(text(who, ": there are no sources; give at least one"));
    for (std::size_t i = 0; i < all_.size(); ++i) {
      auto const& each = all_[i];
      if (each.size() < 1) throw config_error(text(who, ": source ", i, " has no samples"));
      if (each.input_type() != front().input_type() || each.target_type() != front().target_type() ||
          each.input_shape() != front().input_shape() || each.target_shape() != front().target_shape()) {
        throw config_error(text(who, ": samples of source ", i, " are ", described(each),
                                ", but those of source 0 are ", described(front()),
                                "; give sources whose samples have one shape and type"));
      }
    }
    input_bytes_ = bytes(front().input_type(), front().input_shape());
    target_bytes_ = bytes(front().target_type(), front().target_shape());
  }
  [[nodiscard]] shared_dataset const& front() const noexcept { return all_.front(); }
  [[nodiscard]] std::vector<shared_dataset> const& all() const noexcept { return all_; }
  [[nodiscard]] bool slow_to_read() const {
    return std::any_of(all_.begin(), all_.end(), [](shared_dataset const& each) { return each.slow_to_read(); });
  }

  /// A sample in one of the sources.
  struct part {
    std::size_t source;
    std::int64_t id;
    std::uint64_t epoch;  // of the source
  };
  /// part_of(row) gives the part of ids[row]. Neighbours of one source are read together.
  /// @param at  where in the order they are read; null: nowhere.
  template <class PartOf>
  void read(read_place const* at, std::size_t rows, void* inputs, void* targets, PartOf const& part_of) const {
    std::vector<std::int64_t> run;
    run.reserve(rows);
    auto* in = static_cast<std::byte*>(inputs);
    auto* out = static_cast<std::byte*>(targets);
    part first{};
    std::size_t row = 0;
    auto const flush = [&] {
      if (run.empty()) return;
      auto const& source = all_[first.source];
      if (at == nullptr) {
        source.read(run, in, out);
      } else {
        // Samples of equal numbers in two sources get different random numbers.
        source.read({at->seed + first.source * seed_step, first.epoch,
                     at->position + static_cast<std::int64_t>(row - run.size())},
                    run, in, out);
      }
      in += run.size() * input_bytes_;
      out += run.size() * target_bytes_;
      run.clear();
    };
    for (; row < rows; ++row) {
      auto const next = part_of(row);
      if (next.source != first.source || next.epoch != first.epoch) flush();
      first = next;
      run.push_back(next.id);
    }
    flush();
  }
  /// Between the seeds of two sources.
  static constexpr std::uint64_t seed_step = 0x9e3779b97f4a7c15U;

 private:
  static std::size_t bytes(dtype type, shape const& one) {
    return static_cast<std::size_t>(one.size()) * size_of(type);
  }
  static std::string described(shared_dataset const& of) {
    return text(name_of(of.input_type()), " ", to_string(of.input_shape()), " with targets ", name_of(of.target_type()),
                " ", to_string(of.target_shape()));
  }
  std::vector<shared_dataset> all_;
  std::size_t input_bytes_ = 0, target_bytes_ = 0;
};

}  // namespace detail

/// The samples of several datasets, one after the other.
///
/// Errors   config_error if there are no sources, or if their samples differ in shape or type.
/// @models trireme::dataset, trireme::has_placed_read
class concat {
 public:
  concat(std::initializer_list<shared_dataset> sources) : concat(std::vector<shared_dataset>(sources)) {}
  explicit concat(std::vector<shared_dataset> sources) : sources_(std::move(sources), "trireme::data::concat") {
    for (auto const& each : sources_.all()) {
      begins_.push_back(size_);
      size_ += each.size();
    }
  }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return sources_.front().input_type(); }
  [[nodiscard]] dtype target_type() const noexcept { return sources_.front().target_type(); }
  [[nodiscard]] shape input_shape() const { return sources_.front().input_shape(); }
  [[nodiscard]] shape target_shape() const { return sources_.front().target_shape(); }
  [[nodiscard]] bool slow_to_read() const { return sources_.slow_to_read(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(nullptr, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(&place, ids, inputs, targets);
  }

 private:
  void read(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    sources_.read(at, ids.size(), inputs, targets, [&](std::size_t row) {
      auto const next = std::upper_bound(begins_.begin(), begins_.end(), ids[row]);
      return detail::equal_sources::part{static_cast<std::size_t>(next - begins_.begin()) - 1, ids[row] - *(next - 1),
                                         at == nullptr ? 0 : at->epoch};
    });
  }
  detail::equal_sources sources_;
  std::vector<std::int64_t> begins_;
  std::int64_t size_ = 0;
};

/// Some samples of a dataset, in the order of a list of their numbers; a number may occur more than once.
///
/// Bytes    8 for each sample.
/// Errors   config_error for a number that the dataset does not have.
/// @models trireme::dataset, trireme::has_placed_read
class subset {
 public:
  subset(shared_dataset from, std::vector<std::int64_t> ids)
      : from_(std::move(from)), ids_(std::make_shared<std::vector<std::int64_t> const>(std::move(ids))) {
    for (auto const id : *ids_) {
      if (id < 0 || id >= from_.size()) {
        throw config_error(text("trireme::data::subset: there is no sample ", id, " of ", from_.size()));
      }
    }
  }
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(ids_->size()); }
  [[nodiscard]] dtype input_type() const noexcept { return from_.input_type(); }
  [[nodiscard]] dtype target_type() const noexcept { return from_.target_type(); }
  [[nodiscard]] shape input_shape() const { return from_.input_shape(); }
  [[nodiscard]] shape target_shape() const { return from_.target_shape(); }
  [[nodiscard]] bool slow_to_read() const { return from_.slow_to_read(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    from_.read(numbers_of(ids), inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    from_.read(place, numbers_of(ids), inputs, targets);
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> numbers_of(std::span<std::int64_t const> ids) const {
    std::vector<std::int64_t> theirs;
    theirs.reserve(ids.size());
    for (auto const id : ids) theirs.push_back((*ids_)[static_cast<std::size_t>(id)]);
    return theirs;
  }
  shared_dataset from_;
  std::shared_ptr<std::vector<std::int64_t> const> ids_;
};

/// The two parts of a dataset.
struct hash_split_parts {
  subset training, held_out;
};

/// Splits a dataset by a hash of each sample's number, so that a sample's side never depends on the others: a dataset
/// that grows at its end keeps the sides of its samples.
///
///     auto const parts = data::hash_split{.held_out = 0.1}(samples);
///
/// Errors   config_error if the fraction is not between 0 and 1, or if one part has no samples.
struct hash_split {
  double held_out = 0.1;   ///< the part of all samples, about
  std::uint64_t seed = 0;  ///< another seed gives other sides

  /// Whether a sample is held out.
  [[nodiscard]] bool holds_out(std::int64_t id) const noexcept {
    auto const block = random_block({seed, 0}, 0x73706c74U, static_cast<std::uint64_t>(id), 0);  // "splt"
    return static_cast<double>(block[0]) < held_out * 0x1p32;
  }
  [[nodiscard]] hash_split_parts operator()(shared_dataset const& from) const {
    if (!(held_out > 0 && held_out < 1)) {
      throw config_error(text("trireme::data::hash_split: .held_out = ", held_out, ", but it must be between 0 and 1"));
    }
    std::vector<std::int64_t> sides[2];
    for (std::int64_t id = 0; id < from.size(); ++id) sides[holds_out(id) ? 1 : 0].push_back(id);
    if (sides[0].empty() || sides[1].empty()) {
      throw config_error(text("trireme::data::hash_split: of ", how_many(from.size(), "sample"),
                              " none is left in one of the parts; give more samples"));
    }
    return {subset(from, std::move(sides[0])), subset(from, std::move(sides[1]))};
  }
  friend bool operator==(hash_split const&, hash_split const&) = default;
};

/// "trireme::data::hash_split{.held_out = 0.1, .seed = 0}"
[[nodiscard]] inline std::string to_string(hash_split const& split) {
  return text("trireme::data::hash_split{.held_out = ", split.held_out, ", .seed = ", split.seed, "}");
}

}  // namespace trireme::data
