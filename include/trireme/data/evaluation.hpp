#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/batch.hpp"

namespace trireme::data {

/// All samples once, in order, in batches, as a range: `for (auto const& part : evaluation_batches(...))`.
///
/// The ranks get contiguous runs of whole batches, so the content of a batch does not depend on the number of ranks. A
/// rank may get none. Only the last batch of all may be shorter.
///
/// Ranks   no communication.
/// Bytes    one buffer of `batch` samples, allocated at construction; an element is valid until the iterator advances.
/// Threads  one caller; advancing the iterator reads the data in the same thread.
/// Errors   throws config_error if `batch` < 1, if there are no samples, or if the rank does not exist; passes on what
///          Dataset::read() throws, unless keep_failure() was called.
///
/// @param data  borrowed: must outlive the range.
template <dataset Dataset>
class evaluation_batches {
 public:
  evaluation_batches(Dataset const& data, std::int64_t batch, int rank = 0, int size = 1)
      : data_(&data), batch_(checked(data, batch, rank, size)), buffer_(data, batch_, 0) {
    mine_ = even_split((data.size() + batch_ - 1) / batch_, size, rank);
  }
  evaluation_batches(Dataset const&& data, std::int64_t batch, int rank = 0, int size = 1) = delete;  // would dangle

  /// A single-pass iterator; all iterators of a range share its buffer.
  class iterator {
   public:
    using value_type = samples;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    [[nodiscard]] samples const& operator*() const noexcept { return owner_->current_; }
    iterator& operator++() {
      owner_->read(++index_);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(iterator const& at, std::default_sentinel_t) noexcept { return at.finished(); }

   private:
    friend evaluation_batches;
    iterator(evaluation_batches* owner, std::int64_t index) : owner_(owner), index_(index) { owner_->read(index_); }
    [[nodiscard]] bool finished() const noexcept { return index_ >= owner_->mine_.end(); }
    evaluation_batches* owner_;
    std::int64_t index_;
  };

  [[nodiscard]] iterator begin() { return {this, mine_.first}; }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
  /// For a rank that other ranks wait for: from now on an exception of Dataset::read() is stored in failure(), and
  /// samples that could not be read, and all after them, are zeros.
  void keep_failure() noexcept { keeps_failure_ = true; }
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }
  /// The batches of this rank, as indices among all batches.
  [[nodiscard]] interval batches() const noexcept { return mine_; }

 private:
  static std::int64_t checked(Dataset const& data, std::int64_t batch, int rank, int size) {
    auto const refuse = [](auto const&... parts) {
      return config_error(text("trireme::data::evaluation_batches: ", parts...));
    };
    if (data.size() < 1) throw refuse("the dataset has no samples");
    if (batch < 1) throw refuse("a batch of ", how_many(batch, "sample"), ": at least one is needed");
    if (size < 1 || rank < 0 || rank >= size) throw refuse("there is no rank ", rank, " of ", size);
    return std::min(batch, data.size());
  }

  void read(std::int64_t index) {
    if (index >= mine_.end()) return;
    auto const first = index * batch_;
    auto const count = std::min(batch_, data_->size() - first);
    auto const ids = buffer_.ids(count);
    for (std::int64_t i = 0; i < count; ++i) ids[static_cast<std::size_t>(i)] = first + i;
    if (!failure_) {
      try {
        current_ = buffer_.read(*data_, count);
        return;
      } catch (...) {
        if (!keeps_failure_) throw;
        failure_ = std::current_exception();
      }
    }
    current_ = buffer_.zeros(*data_, count);
  }

  Dataset const* data_;
  std::int64_t batch_;
  detail::batch_buffer buffer_;
  interval mine_;
  samples current_;
  bool keeps_failure_ = false;
  std::exception_ptr failure_;
};

}  // namespace trireme::data
