#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <span>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/detail/read_ahead.hpp"

namespace trireme::data {

/// How the samples of an evaluation are read.
struct evaluation_reading {
  std::int64_t workers = 0;   ///< reading threads; 0: as loader_options::workers
  std::int64_t prefetch = 2;  ///< batches that they read ahead; 0: the caller reads
  friend bool operator==(evaluation_reading const&, evaluation_reading const&) = default;
};

/// All samples once, in order, in batches, as a range: `for (auto const& part : evaluation_batches(...))`.
///
/// The ranks get contiguous runs of whole batches, so the content of a batch does not depend on the number of ranks. A
/// rank may get none. Only the last batch of all may be shorter.
///
/// Ranks   no communication.
/// Bytes    a buffer of `batch` samples for each batch that is read ahead, and one; allocated at construction. An
///          element is valid until the iterator advances.
/// Threads  one caller; threads of its own read ahead as those of data::loader, from begin() on.
/// Errors   throws config_error if `batch` < 1, if there are no samples, or if the rank does not exist; passes on what
///          Dataset::read() throws, with the number of the sample, unless keep_failure() was called.
///
/// @param data  borrowed: must outlive the range.
template <dataset Dataset>
class evaluation_batches : private detail::read_ahead {
 public:
  evaluation_batches(Dataset const& data, std::int64_t batch, int rank = 0, int size = 1, evaluation_reading how = {})
      : read_ahead(settings_of(data, part_of(data, batch, rank, size), size, how)),
        data_(&data),
        batch_(std::min(batch, data.size())),
        mine_(part_of(data, batch, rank, size)) {
    first_.resize(slot_count());
    buffers_.reserve(slot_count());
    for (std::size_t i = 0; i < slot_count(); ++i) buffers_.emplace_back(data, batch_, 0);
  }
  evaluation_batches(Dataset const&& data, std::int64_t batch, int rank = 0, int size = 1,
                     evaluation_reading how = {}) = delete;  // would dangle
  evaluation_batches(evaluation_batches const&) = delete;
  evaluation_batches& operator=(evaluation_batches const&) = delete;
  ~evaluation_batches() override { stop(); }

  /// A single-pass iterator; all iterators of a range share its buffers.
  class iterator {
   public:
    using value_type = samples;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    [[nodiscard]] samples const& operator*() const noexcept { return owner_->current_; }
    iterator& operator++() {
      owner_->advance(++index_);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(iterator const& at, std::default_sentinel_t) noexcept { return at.finished(); }

   private:
    friend evaluation_batches;
    iterator(evaluation_batches* owner, std::int64_t index) : owner_(owner), index_(index) { owner_->advance(index_); }
    [[nodiscard]] bool finished() const noexcept { return index_ >= owner_->mine_.end(); }
    evaluation_batches* owner_;
    std::int64_t index_;
  };

  [[nodiscard]] iterator begin() {
    restart([this] { next_ = expected_ = mine_.first; });
    return {this, mine_.first};
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
  /// For a rank that other ranks wait for: from now on an exception of Dataset::read() is stored in failure(), and
  /// samples that could not be read, and all after them, are zeros.
  void keep_failure() noexcept { keeps_failure_ = true; }
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }
  /// The batches of this rank, as indices among all batches.
  [[nodiscard]] interval batches() const noexcept { return mine_; }

 private:
  static constexpr char const* who = "trireme::data::evaluation_batches";

  static interval part_of(Dataset const& data, std::int64_t batch, int rank, int size) {
    auto const refuse = [](auto const&... parts) { return config_error(text(who, ": ", parts...)); };
    if (data.size() < 1) throw refuse("the dataset has no samples");
    if (batch < 1) throw refuse("a batch of ", how_many(batch, "sample"), ": at least one is needed");
    if (size < 1 || rank < 0 || rank >= size) throw refuse("there is no rank ", rank, " of ", size);
    batch = std::min(batch, data.size());
    return even_split((data.size() + batch - 1) / batch, size, rank);
  }
  static detail::read_ahead::settings settings_of(Dataset const& data, interval mine, int ranks,
                                                  evaluation_reading how) {
    bool const slow = slow_to_read(data);
    auto const workers = how.workers > 0 ? how.workers : detail::usual_workers(slow, ranks);
    auto const ahead = std::clamp<std::int64_t>(mine.count - 1, 0, how.prefetch);
    bool const here = how.prefetch == 0 || mine.count == 0 || (ahead == 0 && workers == 1);
    return {.who = who,
            .batches = static_cast<std::size_t>(here ? 0 : ahead) + 1,
            .workers = here ? 0 : workers,
            .bad_samples = 0,
            .one_by_one = slow};
  }

  [[nodiscard]] std::int64_t samples_in(std::int64_t index) const {
    return std::min(batch_, data_->size() - index * batch_);
  }
  void advance(std::int64_t index) {
    if (index >= mine_.end()) return;
    auto const count = samples_in(index);
    if (!failure_) {
      try {
        current_ = buffers_[take()].whole(*data_, count);
        expected_ = index + 1;
        return;
      } catch (...) {
        if (!keeps_failure_) throw;
        failure_ = std::current_exception();
      }
    }
    auto const numbers = buffers_.front().ids(count);
    for (std::int64_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = index * batch_ + i;
    current_ = buffers_.front().zeros(*data_, count);
  }

  std::int64_t start(std::size_t slot) override {
    if (next_ >= mine_.end()) return -1;
    first_[slot] = next_ * batch_;
    return samples_in(next_++);
  }
  std::int64_t id(std::size_t slot, std::int64_t index, std::int64_t) override { return first_[slot] + index; }
  std::span<std::int64_t> ids(std::size_t slot) override { return buffers_[slot].all_ids(); }
  void read(std::size_t slot, std::int64_t first, std::int64_t count) override {
    buffers_[slot].read(*data_, first, count);
  }
  void take_back() override { next_ = expected_; }

  Dataset const* data_;
  std::int64_t batch_;
  interval mine_;
  std::vector<detail::batch_buffer> buffers_;
  std::vector<std::int64_t> first_;  // the number of the first sample of the batch in each buffer
  std::int64_t next_ = 0;            // of the batch to be read
  std::int64_t expected_ = 0;        // of the batch that the caller takes next
  samples current_;
  bool keeps_failure_ = false;
  std::exception_ptr failure_;
};

}  // namespace trireme::data
