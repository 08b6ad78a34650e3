#pragma once

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

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/formats/model_files.hpp"

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
        slow_to_read_(trireme::slow_to_read(data)),
        model_files_(model_files_of(data)) {
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
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return model_files_; }
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
  std::vector<formats::model_file> model_files_;
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
    for (auto const& each : all_) {
      begins_.push_back(size_);
      size_ += each.size();
    }
  }
  [[nodiscard]] shared_dataset const& front() const noexcept { return all_.front(); }
  [[nodiscard]] std::vector<shared_dataset> const& all() const noexcept { return all_; }
  [[nodiscard]] bool slow_to_read() const {
    return std::any_of(all_.begin(), all_.end(), [](shared_dataset const& each) { return each.slow_to_read(); });
  }
  /// Of two files of one name, that of the first source.
  [[nodiscard]] std::vector<formats::model_file> model_files() const {
    std::vector<formats::model_file> out;
    for (auto each = all_.rbegin(); each != all_.rend(); ++each) merge_model_files(out, each->model_files());
    return out;
  }

  // Samples are numbered through all sources, one source after the other.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t source_of(std::int64_t id) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), id) - begins_.begin()) - 1;
  }
  // A mixture takes the samples of a source in passes, each in an order of its own.
  [[nodiscard]] std::uint64_t pass_of(std::size_t source, std::uint64_t nth) const noexcept {
    return nth / static_cast<std::uint64_t>(all_[source].size());
  }
  /// The number of the nth sample that is taken of a source. Sources of one size are in different orders.
  [[nodiscard]] std::int64_t id_of(std::size_t source, std::uint64_t nth, std::uint64_t seed) const noexcept {
    auto const count = all_[source].size();
    sampler const order{.samples = count, .seed = seed + source * seed_step};
    return begins_[source] +
           order.id(pass_of(source, nth), static_cast<std::int64_t>(nth % static_cast<std::uint64_t>(count)));
  }

  /// Reads samples by their numbers. Neighbours of one source and pass are read together.
  /// @param at       where in the order they are read; null: nowhere.
  /// @param pass_in  pass_in(row, source): the pass of its source that the sample ids[row] is in; called if there is a
  ///                 place.
  template <class PassIn>
  void read(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets,
            PassIn const& pass_in) const {
    std::vector<std::int64_t> run;
    run.reserve(ids.size());
    auto* in = static_cast<std::byte*>(inputs);
    auto* out = static_cast<std::byte*>(targets);
    std::size_t first = 0, row = 0;  // the source of the run
    std::uint64_t pass = 0;
    auto const flush = [&] {
      if (run.empty()) return;
      auto const& source = all_[first];
      if (at == nullptr) {
        source.read(run, in, out);
      } else {
        // Samples of equal numbers in two sources get different random numbers.
        source.read({at->seed + first * seed_step, pass, at->position + static_cast<std::int64_t>(row - run.size())},
                    run, in, out);
      }
      in += run.size() * input_bytes_;
      out += run.size() * target_bytes_;
      run.clear();
    };
    for (; row < ids.size(); ++row) {
      auto const source = source_of(ids[row]);
      auto const in_pass = at == nullptr ? 0 : pass_in(row, source);
      if (source != first || in_pass != pass) flush();
      first = source;
      pass = in_pass;
      run.push_back(ids[row] - begins_[source]);
    }
    flush();
  }

 private:
  static constexpr std::uint64_t seed_step = 0x9e3779b97f4a7c15U;  // between the seeds of two sources

  static std::size_t bytes(dtype type, shape const& one) {
    return static_cast<std::size_t>(one.size()) * size_of(type);
  }
  static std::string described(shared_dataset const& of) {
    return text(name_of(of.input_type()), " ", to_string(of.input_shape()), " with targets ", name_of(of.target_type()),
                " ", to_string(of.target_shape()));
  }
  std::vector<shared_dataset> all_;
  std::size_t input_bytes_ = 0, target_bytes_ = 0;
  std::vector<std::int64_t> begins_;  // the number of the first sample of each source
  std::int64_t size_ = 0;
};

/// What concat, blend and curriculum are made of: they differ in the order of samples alone.
class made_of_equal_sources {
 public:
  [[nodiscard]] std::int64_t size() const noexcept { return sources_.size(); }
  [[nodiscard]] dtype input_type() const noexcept { return sources_.front().input_type(); }
  [[nodiscard]] dtype target_type() const noexcept { return sources_.front().target_type(); }
  [[nodiscard]] shape input_shape() const { return sources_.front().input_shape(); }
  [[nodiscard]] shape target_shape() const { return sources_.front().target_shape(); }
  [[nodiscard]] bool slow_to_read() const { return sources_.slow_to_read(); }
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return sources_.model_files(); }

 protected:
  made_of_equal_sources(std::vector<shared_dataset> sources, char const* who) : sources_(std::move(sources), who) {}

  equal_sources sources_;
};

}  // namespace detail

/// The samples of several datasets, one after the other.
///
/// Errors   config_error if there are no sources, or if their samples differ in shape or type.
/// @models trireme::dataset, trireme::has_placed_read
class concat : public detail::made_of_equal_sources {
 public:
  concat(std::initializer_list<shared_dataset> sources) : concat(std::vector<shared_dataset>(sources)) {}
  explicit concat(std::vector<shared_dataset> sources)
      : made_of_equal_sources(std::move(sources), "trireme::data::concat") {}
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(nullptr, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    read(&place, ids, inputs, targets);
  }

 private:
  void read(read_place const* at, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    sources_.read(at, ids, inputs, targets, [&](std::size_t, std::size_t) { return at->epoch; });
  }
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
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return from_.model_files(); }
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
struct split_parts {
  subset training, held_out;
};

/// Splits a dataset by a hash of each sample's number, so that a sample's side never depends on the others: a dataset
/// that grows at its end keeps the sides of its samples.
///
///     auto const parts = data::split{.held_out = 0.1, .by = data::split::hash}(samples);
///
/// Errors   config_error if the fraction is not between 0 and 1, or if one part has no samples.
struct split {
  enum choice : std::uint8_t { hash };

  double held_out = 0.1;   ///< the part of all samples, about
  choice by = hash;        ///< what a sample's side depends on: a hash of its number
  std::uint64_t seed = 0;  ///< another seed gives other sides

  /// Whether a sample is held out.
  [[nodiscard]] bool holds_out(std::int64_t id) const noexcept {
    auto const block = random_block({seed, 0}, 0x73706c74U, static_cast<std::uint64_t>(id), 0);  // "splt"
    return static_cast<double>(block[0]) < held_out * 0x1p32;
  }
  [[nodiscard]] split_parts operator()(shared_dataset const& from) const {
    if (!(held_out > 0 && held_out < 1)) {
      throw config_error(text("trireme::data::split: .held_out = ", held_out, ", but it must be between 0 and 1"));
    }
    std::vector<std::int64_t> sides[2];
    for (std::int64_t id = 0; id < from.size(); ++id) sides[holds_out(id) ? 1 : 0].push_back(id);
    if (sides[0].empty() || sides[1].empty()) {
      throw config_error(text("trireme::data::split: of ", how_many(from.size(), "sample"),
                              " none is left in one of the parts; give more samples"));
    }
    return {subset(from, std::move(sides[0])), subset(from, std::move(sides[1]))};
  }
  friend bool operator==(split const&, split const&) = default;
};

/// "trireme::data::split{.held_out = 0.1, .by = hash, .seed = 0}"
[[nodiscard]] inline std::string to_string(split const& it) {
  return text("trireme::data::split{.held_out = ", it.held_out, ", .by = hash, .seed = ", it.seed, "}");
}

}  // namespace trireme::data
