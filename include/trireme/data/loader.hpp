#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/detail/read_ahead.hpp"
#include "trireme/data/read_problem.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/shares.hpp"

namespace trireme::data {

/// How samples are grouped into batches.
struct loader_options {
  std::int64_t batch = 64;         ///< samples per step, over all ranks
  std::int64_t micro_batches = 1;  ///< logical parts of the whole batch, over all ranks
  std::uint64_t seed = 0;          ///< of the order of samples
  std::int64_t prefetch = 2;       ///< batches that threads read ahead; 0: next() reads them
  bool drop_last = false;          ///< skip the last batch of an epoch if it is short
  std::int64_t workers = 0;        ///< reading threads; 0: one, or cores / ranks if trireme::slow_to_read(data)
  std::int64_t bad_samples = 0;    ///< samples of this rank that may be left out because they cannot be read
  /// Keeps samples together that lie together in the data, for data that is larger than the memory.
  std::optional<blocks> locality{};
  /// Of each rank, in proportion, as in data::shares; empty: equal ones.
  std::vector<std::int64_t> weights{};
  friend bool operator==(loader_options const&, loader_options const&) = default;
};

/// "trireme::data::loader_options{.batch = 64, ...}"
[[nodiscard]] inline std::string to_string(loader_options const& options) {
  return text("trireme::data::loader_options{.batch = ", options.batch, ", .micro_batches = ", options.micro_batches,
              ", .seed = ", options.seed, ", .prefetch = ", options.prefetch, ", .drop_last = ", options.drop_last,
              ", .workers = ", options.workers, ", .bad_samples = ", options.bad_samples,
              options.locality ? text(", .locality = ", to_string(*options.locality)) : "",
              options.weights.empty() ? "" : text(", .weights = ", to_string_of_weights(options.weights)), "}");
}

/// One rank's part of an endless sequence of shuffled batches, which threads of its own read ahead.
///
/// The sequence of samples depends only on the seed (it is data::sampler's, or that of a dataset that models
/// trireme::has_sample_order), and its division into batches and micro-batches only on the
/// options, never on the number of ranks; only with .weights do micro-batches depend on it. A batch does not cross
/// epochs: the last one of an epoch may be short.
///
/// A sample that cannot be read is an error, unless .bad_samples permits to leave it out. Then the sample of another
/// position of the epoch is in its place, which is drawn by (seed, epoch, position, attempt): it is the same on any
/// number of ranks and threads, and after a resume.
///
/// Ranks    no communication: each rank makes its own, with equal options (and the same data).
/// Bytes    (prefetch + 1) buffers for this rank's part of a batch, allocated at construction; next() allocates
///          nothing, but for the first, which starts the threads.
/// Threads  one caller. `workers` threads call Dataset::read(), each for a part of the next batch, and block when they
///          are far enough ahead. Order, bytes and errors are those of one thread.
/// Errors   throws config_error for invalid options. If Dataset::read() throws, the next() that would have returned
///          that batch throws it; calling next() again reads the same batch again. The error names the sample (see
///          sample_error); with .bad_samples, config_error and std::bad_alloc are still errors.
///
/// @tparam Dataset  models trireme::dataset.
/// @param  data     borrowed: must outlive the loader.
/// @param  memory   that of the batches.
template <dataset Dataset>
class loader : private detail::read_ahead {
 public:
  loader(Dataset const& data, loader_options options, int rank = 0, int size = 1, batch_memory memory = {})
      : read_ahead({.who = who,
                    .batches = static_cast<std::size_t>(std::clamp<std::int64_t>(options.prefetch, 0, 1024)) + 1,
                    .workers = options.prefetch <= 0 ? 0
                               : options.workers > 0 ? options.workers
                                                     : detail::usual_workers(slow_to_read(data), size),
                    .bad_samples = options.bad_samples,
                    .one_by_one = slow_to_read(data)}),
        data_(&data),
        options_(options),
        order_(detail::order_of(data, options.seed, options.locality, who)),
        of_(detail::sets_order(data) ? data.size() : 0),
        unread_(std::move(memory.unread)) {
    check(rank, size);
    position_ = cursor_ = normalised({});
    parts_ = even_split(options.micro_batches, size, rank);
    auto const largest = std::min(options.batch, order_.samples);
    // Rounded up: in these parts a shorter batch can have one sample more than the longest one.
    auto const most = largest_part(largest);
    slots_.reserve(slot_count());
    for (std::size_t i = 0; i < slot_count(); ++i) {
      slots_.push_back({detail::batch_buffer(data, most, std::min(parts_.count, largest), memory), {}, {}, {}});
    }
  }
  loader(Dataset const&& data, loader_options options, int rank = 0, int size = 1) = delete;  // would dangle
  loader(loader const&) = delete;
  loader& operator=(loader const&) = delete;
  ~loader() override {
    stop();
    try {
      wait_for_readers(true);
    } catch (...) {  // a device that has failed reads nothing
    }
  }

  [[nodiscard]] loader_options const& options() const noexcept { return options_; }
  /// The logical micro-batches that this rank runs.
  [[nodiscard]] interval parts() const noexcept { return parts_; }
  [[nodiscard]] std::int64_t batches_per_epoch() const noexcept {
    return (order_.samples + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
  }

  /// The next batch; valid until the next call of next() or seek().
  [[nodiscard]] batch const& next() {
    wait_for_readers(false);
    auto const& ready = slots_[take()];
    position_ = ready.after;
    return ready.view;
  }
  /// The batch that the next next() returns, if it has been read already and has no errors; else nullptr. It is valid
  /// as long as that one, unless seek() is called before.
  [[nodiscard]] batch const* ahead() {
    auto const at = peek();
    return at < slot_count() ? &slots_[at].view : nullptr;
  }

  /// After next() has thrown: the batch that it would have returned, with all values 0. For a rank that must take part
  /// in a step which all ranks then give up. Valid as long as that of next(), which reads the same batch again.
  [[nodiscard]] batch const& zeros() {
    wait_for_readers(true);
    auto& spare = slots_.front();  // no thread reads before next() or seek()
    auto const count = plan(spare, position_);
    for (std::int64_t i = 0; i < count; ++i) spare.buffer.ids(count)[static_cast<std::size_t>(i)] = id_in(spare, i, 0);
    static_cast<void>(spare.buffer.zeros(*data_, count));
    return spare.view;
  }

  /// The position of the batch that the next next() returns; checkpoints store it.
  [[nodiscard]] loader_position position() const noexcept { return position_; }

  /// Continues at a position from position(), with any number of ranks and any batch size.
  ///
  /// Errors   config_error for a position within an epoch of another number of samples, or of another order: some
  ///          samples would be used twice and others never. seek(place.next_epoch()) skips the rest of that epoch.
  void seek(loader_position to) {
    bool const another = to.samples != order_.samples || to.seed != order_.seed || to.block != order_.block ||
                         to.window != order_.window || to.of != of_;
    if (to.samples != 0 && to.position != 0 && another) {
      throw config_error(text("trireme::data::loader: cannot seek to ", to_string(to), " with ", order_.samples,
                              " samples", of_ > 0 && of_ != order_.samples ? text(" of ", of_) : "",
                              " in the order of seed ", order_.seed,
                              order_.block > 0 ? text(" and blocks of ", order_.block) : "",
                              "; give the dataset and the seed of that position, or seek(place.next_epoch())"));
    }
    if (to.position < 0 || to.position > order_.samples) {
      throw config_error(text("trireme::data::loader: cannot seek to ", to_string(to), " of ", order_.samples,
                              " samples: the position was saved for other data"));
    }
    wait_for_readers(true);
    restart([&] { position_ = cursor_ = normalised(to); });
  }

  /// Calls f(read_problem const&) in next(), when a sample has been left out, and again and again while next() waits
  /// for a sample whose reading takes 10 seconds and more.
  void on_problem(std::function<void(read_problem const&)> f) { read_ahead::on_problem(std::move(f)); }
  /// The samples of this rank that were left out in the batches so far, each once.
  [[nodiscard]] std::vector<read_problem> const& left_out() const noexcept { return read_ahead::left_out(); }
  /// Seconds for which next() has waited, in all calls.
  [[nodiscard]] double waited() const noexcept { return read_ahead::waited(); }
  /// The read that took the longest so far.
  [[nodiscard]] read_problem slowest() { return read_ahead::slowest(); }

 private:
  static constexpr char const* who = "trireme::data::loader";

  void wait_for_readers(bool all) const {
    if (unread_) unread_(all);
  }

  struct slot {
    detail::batch_buffer buffer;
    batch view;
    loader_position after;
    std::int64_t first = 0;  // this rank's part of the batch begins at this one of its samples
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
    if (options_.workers < 0 || options_.workers > 1024) {
      throw refuse(".workers = ", options_.workers, ", but it must be from 1 to 1024, or 0 for the usual number");
    }
    if (options_.prefetch == 0 && options_.workers > 1) {
      throw refuse(".workers = ", options_.workers, " read nothing ahead with .prefetch = 0; leave one of them out");
    }
    if (options_.bad_samples < 0) {
      throw refuse(".bad_samples = ", options_.bad_samples, ", but it must be 0 or more");
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
    return {at.epoch, at.position, order_.samples, order_.seed, order_.block, order_.window, of_};
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

  // Makes a slot that of the batch at a position, whose samples are not read yet.
  // @returns the number of samples of this rank.
  std::int64_t plan(slot& into, loader_position at) const {
    auto const count = std::min(options_.batch, order_.samples - at.position);
    auto const first = parts_.count == 0 ? 0 : samples_of(parts_.first, count).first;
    auto const last = parts_.count == 0 ? 0 : samples_of(parts_.end() - 1, count).end();
    auto const all = into.buffer.whole(*data_, last - first);
    into.buffer.clear();
    for (auto m = parts_.first; m < parts_.end(); ++m) {
      auto const part = samples_of(m, count);
      if (part.count > 0) into.buffer.add_part(m, all.part(part.first - first, part.count));
    }
    into.view = {into.buffer.views(), into.buffer.parts(), count, at.epoch, at.position};
    into.after = normalised({at.epoch, at.position + count});
    into.first = first;
    return last - first;
  }
  [[nodiscard]] std::int64_t id_in(slot const& of, std::int64_t index, std::int64_t attempt) const {
    auto const epoch = of.view.epoch;
    auto position = of.view.position + of.first + index;
    if (attempt > 0) {
      constexpr std::uint32_t site = 0x62616473U;  // "bads": separates these random numbers from other uses of the seed
      auto const block = random_block({order_.seed, epoch}, site, static_cast<std::uint64_t>(position),
                                      static_cast<std::uint32_t>(attempt));
      auto const drawn = std::uint64_t{block[1]} << 32 | block[0];
      position = static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(order_.samples));
    }
    return detail::id_at(*data_, order_, epoch, position);
  }

  std::int64_t start(std::size_t number) override {
    auto const count = plan(slots_[number], cursor_);
    cursor_ = slots_[number].after;
    return count;
  }
  std::int64_t id(std::size_t number, std::int64_t index, std::int64_t attempt) override {
    return id_in(slots_[number], index, attempt);
  }
  std::span<std::int64_t> ids(std::size_t number) override { return slots_[number].buffer.all_ids(); }
  void read(std::size_t number, std::int64_t first, std::int64_t count) override {
    auto& of = slots_[number];
    read_place const place{order_.seed, of.view.epoch, of.view.position + of.first + first};
    of.buffer.read(*data_, first, count, &place);
  }
  void take_back() override { cursor_ = position_; }

  Dataset const* data_;
  loader_options options_;
  sampler order_;
  std::int64_t of_;                   // samples of a dataset that sets its own order, else 0
  std::function<void(bool)> unread_;  // of the batches' memory
  interval parts_;
  loader_position position_;  // the caller's
  loader_position cursor_;    // the threads'
  std::vector<slot> slots_;
};

}  // namespace trireme::data
