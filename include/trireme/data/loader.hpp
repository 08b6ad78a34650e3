#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/shares.hpp"

namespace trireme::data {

/// How samples are grouped into batches.
struct loader_options {
  std::int64_t batch = 64;         ///< samples per step, over all ranks
  std::int64_t micro_batches = 1;  ///< logical parts of the whole batch, over all ranks
  std::uint64_t seed = 0;          ///< of the order of samples
  std::int64_t prefetch = 2;       ///< batches that a thread reads ahead; 0: next() reads them
  bool drop_last = false;          ///< skip the last batch of an epoch if it is short
  /// Of each rank, in proportion, as in data::shares; empty: equal ones.
  std::vector<std::int64_t> weights{};
  friend bool operator==(loader_options const&, loader_options const&) = default;
};

/// "trireme::data::loader_options{.batch = 64, ...}"
[[nodiscard]] inline std::string to_string(loader_options const& options) {
  return text("trireme::data::loader_options{.batch = ", options.batch, ", .micro_batches = ", options.micro_batches,
              ", .seed = ", options.seed, ", .prefetch = ", options.prefetch, ", .drop_last = ", options.drop_last,
              options.weights.empty() ? "" : text(", .weights = ", to_string_of_weights(options.weights)), "}");
}

/// One rank's part of an endless sequence of shuffled batches, which a thread of its own reads ahead.
///
/// The sequence of samples depends only on the seed (it is data::sampler's, or that of a dataset that models
/// trireme::has_sample_order), and its division into batches and micro-batches only on the
/// options, never on the number of ranks; only with .weights do micro-batches depend on it. A batch does not cross
/// epochs: the last one of an epoch may be short.
///
/// Ranks    no communication: each rank makes its own, with equal options (and the same data).
/// Bytes    (prefetch + 1) buffers for this rank's part of a batch, allocated at construction; next() allocates
///          nothing.
/// Threads  one caller. The reader thread calls Dataset::read(), and blocks when it is far enough ahead.
/// Errors   throws config_error for invalid options. If Dataset::read() throws, the next() that would have returned
///          that batch throws it; calling next() again reads the same batch again.
///
/// @tparam Dataset  models trireme::dataset.
/// @param  data     borrowed: must outlive the loader.
template <dataset Dataset>
class loader {
 public:
  loader(Dataset const& data, loader_options options, int rank = 0, int size = 1)
      : data_(&data), options_(options), order_{.samples = detail::epoch_size(data), .seed = options.seed} {
    check(rank, size);
    position_ = cursor_ = normalised({});
    parts_ = even_split(options.micro_batches, size, rank);
    auto const largest = std::min(options.batch, order_.samples);
    // Rounded up: in these parts a shorter batch can have one sample more than the longest one.
    auto const most = largest_part(largest);
    auto const slot_count = static_cast<std::size_t>(options.prefetch) + 1;
    slots_.reserve(slot_count);
    for (std::size_t i = 0; i < slot_count; ++i) {
      slots_.push_back({detail::batch_buffer(data, most, std::min(parts_.count, largest)), {}, {}});
    }
    if (options.prefetch > 0) reader_ = std::thread([this] { read_ahead(); });
  }
  loader(Dataset const&& data, loader_options options, int rank = 0, int size = 1) = delete;  // would dangle
  loader(loader const&) = delete;
  loader& operator=(loader const&) = delete;
  ~loader() {
    if (!reader_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    room_.notify_one();
    reader_.join();
  }

  [[nodiscard]] loader_options const& options() const noexcept { return options_; }
  /// The logical micro-batches that this rank runs.
  [[nodiscard]] interval parts() const noexcept { return parts_; }
  [[nodiscard]] std::int64_t batches_per_epoch() const noexcept {
    return (order_.samples + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
  }

  /// The next batch; valid until the next call of next() or seek().
  [[nodiscard]] batch const& next() {
    auto const& ready = reader_.joinable() ? wait_for_slot() : read_now();
    position_ = ready.after;
    return ready.view;
  }

  /// After next() has thrown: the batch that it would have returned, with all values 0. For a rank that must take part
  /// in a step which all ranks then give up. Valid as long as that of next(), which reads the same batch again.
  [[nodiscard]] batch const& zeros() {
    std::lock_guard const lock(mutex_);  // the reader waits for next() or seek()
    auto& spare = slots_[read_ % slots_.size()];
    fill(spare, position_, false);
    return spare.view;
  }

  /// The position of the batch that the next next() returns; checkpoints store it.
  [[nodiscard]] loader_position position() const noexcept { return position_; }

  /// Continues at a position from position(), with any number of ranks and any batch size.
  ///
  /// Errors   config_error for a position within an epoch of another number of samples, or of another order: some
  ///          samples would be used twice and others never. seek(place.next_epoch()) skips the rest of that epoch.
  void seek(loader_position to) {
    bool const another = to.samples != order_.samples || to.seed != order_.seed;
    if (to.samples != 0 && to.position != 0 && another) {
      throw config_error(text("trireme::data::loader: cannot seek to ", to_string(to), " with ", order_.samples,
                              " samples in the order of seed ", order_.seed,
                              "; give the dataset and the seed of that position, or seek(place.next_epoch())"));
    }
    if (to.position < 0 || to.position > order_.samples) {
      throw config_error(text("trireme::data::loader: cannot seek to ", to_string(to), " of ", order_.samples,
                              " samples: the position was saved for other data"));
    }
    {
      std::lock_guard const lock(mutex_);
      position_ = cursor_ = normalised(to);
      ++generation_;  // a batch that is being read now is discarded
      read_ = taken_ = 0;
      in_use_ = false;
      failure_ = nullptr;
      halted_ = false;
    }
    room_.notify_one();
  }

 private:
  struct slot {
    detail::batch_buffer buffer;
    batch view;
    loader_position after;
  };

  void check(int rank, int size) const {
    auto const refuse = [](auto const&... parts) { return config_error(text("trireme::data::loader: ", parts...)); };
    auto const limit = std::int64_t{1} << 31;  // so that products of two counts fit
    if (order_.samples < 1) throw refuse("the dataset has no samples");
    if (options_.batch < 1 || options_.batch > limit) {
      throw refuse(".batch = ", options_.batch, ", but it must be from 1 to ", limit);
    }
    if (options_.micro_batches < 1 || options_.micro_batches > limit) {
      throw refuse(".micro_batches = ", options_.micro_batches, ", but it must be from 1 to ", limit);
    }
    if (options_.prefetch < 0 || options_.prefetch > 1024) {
      throw refuse(".prefetch = ", options_.prefetch, ", but it must be from 0 to 1024");
    }
    if (size < 1 || rank < 0 || rank >= size) throw refuse("there is no rank ", rank, " of ", size);
    shares{.weights = options_.weights}.validate(size);
    if (!options_.weights.empty() && options_.micro_batches % size != 0) {
      throw refuse(".micro_batches = ", options_.micro_batches, " with shares for ", size,
                   " ranks; it must be a multiple of them, since each rank divides its share into the same number");
    }
    if (options_.drop_last && order_.samples < options_.batch) {
      throw refuse("with .drop_last, ", how_many(order_.samples, "sample"),
                   agreeing(order_.samples, " never fills", " never fill"), " a batch of ", options_.batch,
                   ": choose a smaller batch");
    }
  }

  /// The same position, as the beginning of a batch: the end of an epoch becomes the beginning of the next.
  [[nodiscard]] loader_position normalised(loader_position at) const noexcept {
    auto const left = order_.samples - at.position;
    bool const over = left == 0 || (options_.drop_last && left < options_.batch);
    if (over) at = at.next_epoch();
    return {at.epoch, at.position, order_.samples, order_.seed};
  }

  // The samples of a batch of `count` in logical micro-batch m of this rank.
  [[nodiscard]] interval samples_of(std::int64_t m, std::int64_t count) const noexcept {
    if (options_.weights.empty()) return even_split(count, options_.micro_batches, m);
    auto const own = weighted_split(count, options_.weights, rank());
    auto const part = even_split(own.count, parts_.count, m - parts_.first);
    return {own.first + part.first, part.count};
  }
  // The most samples that this rank gets of any batch of at most `count`.
  [[nodiscard]] std::int64_t largest_part(std::int64_t count) const noexcept {
    if (options_.weights.empty()) return (count * parts_.count + options_.micro_batches - 1) / options_.micro_batches;
    auto const sum = std::accumulate(options_.weights.begin(), options_.weights.end(), std::int64_t{0});
    return (count * options_.weights[static_cast<std::size_t>(rank())] + sum - 1) / sum;
  }
  // Each rank with a weight has the same number of micro-batches.
  [[nodiscard]] int rank() const noexcept { return static_cast<int>(parts_.first / parts_.count); }

  void fill(slot& into, loader_position at, bool reads = true) const {
    auto const count = std::min(options_.batch, order_.samples - at.position);
    auto const first = parts_.count == 0 ? 0 : samples_of(parts_.first, count).first;
    auto const last = parts_.count == 0 ? 0 : samples_of(parts_.end() - 1, count).end();
    auto const ids = into.buffer.ids(last - first);
    for (auto i = first; i < last; ++i) {
      ids[static_cast<std::size_t>(i - first)] = detail::id_at(*data_, order_.seed, at.epoch, at.position + i);
    }
    auto const all = reads ? into.buffer.read(*data_, last - first) : into.buffer.zeros(*data_, last - first);
    into.buffer.clear();
    for (auto m = parts_.first; m < parts_.end(); ++m) {
      auto const part = samples_of(m, count);
      if (part.count > 0) into.buffer.add_part(m, all.part(part.first - first, part.count));
    }
    into.view = {into.buffer.views(), into.buffer.parts(), count, at.epoch, at.position};
    into.after = normalised({at.epoch, at.position + count});
  }

  slot& read_now() {
    fill(slots_.front(), cursor_);
    cursor_ = slots_.front().after;
    return slots_.front();
  }

  slot& wait_for_slot() {
    std::unique_lock lock(mutex_);
    mode_ = arithmetic_mode::of_this_thread();
    in_use_ = false;
    if (failure_ == nullptr) halted_ = false;  // the last call reported it: this one tries again
    room_.notify_one();
    filled_.wait(lock, [this] { return read_ > taken_ || failure_ != nullptr; });
    if (read_ == taken_) {  // batches that were read before the failure come first
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    in_use_ = true;
    return slots_[taken_++ % slots_.size()];
  }

  void read_ahead() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock,
                 [this] { return stopping_ || (!halted_ && read_ + (in_use_ ? 1 : 0) < taken_ + slots_.size()); });
      if (stopping_) return;
      auto const generation = generation_;
      auto const at = cursor_;
      auto& into = slots_[read_ % slots_.size()];
      auto const mode = mode_;
      std::exception_ptr failure;
      lock.unlock();
      mode.use();
      try {
        fill(into, at);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (generation != generation_) continue;
      if (failure == nullptr) {
        cursor_ = into.after;
        ++read_;
      } else {
        failure_ = std::move(failure);
        halted_ = true;
      }
      filled_.notify_one();
    }
  }

  Dataset const* data_;
  loader_options options_;
  sampler order_;
  interval parts_;
  loader_position position_;  // the caller's
  std::vector<slot> slots_;   // slot i % slots is the reader's until read_ > i, then the caller's

  std::mutex mutex_;  // guards what follows
  std::condition_variable room_;
  std::condition_variable filled_;
  loader_position cursor_;  // the reader's
  std::exception_ptr failure_;
  std::size_t read_ = 0;
  std::size_t taken_ = 0;
  std::uint64_t generation_ = 0;
  bool in_use_ = false;  // whether the caller still uses slot taken_ - 1
  bool halted_ = false;  // set by a failure, until the caller tries again
  bool stopping_ = false;
  arithmetic_mode mode_ = arithmetic_mode::of_this_thread();  // of the caller: read() uses the same rounding modes
  std::thread reader_;
};

}  // namespace trireme::data
