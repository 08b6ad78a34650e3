#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/cuda/losses_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// The memory of one call. Free again when nobody holds it: what is queued later on the stream comes after its copy.
struct loss_slot {
  std::shared_ptr<mirrored_memory const> memory;
  int number;
  [[nodiscard]] auto* on_device() const noexcept { return of(memory->on_device()); }
  [[nodiscard]] auto* on_host() const noexcept { return of(memory->on_host()); }

 private:
  [[nodiscard]] cuda_kernels::loss_numbers* of(void* all) const noexcept {
    return static_cast<cuda_kernels::loss_numbers*>(all) + number;
  }
};

/// The slots of one thread.
class loss_slots {
 public:
  using slot = std::shared_ptr<loss_slot const>;

  [[nodiscard]] static slot free_slot(char const* who) {
    (void)cuda::stream();  // made first, so it ends after the memory that its kernels write
    thread_local loss_slots all;
    int device = 0;
    expect_cuda(who, ::cudaGetDevice(&device));
    for (std::size_t tried = 0; tried < all.slots_.size(); ++tried) {
      all.next_ = (all.next_ + 1) % all.slots_.size();
      auto const& each = all.slots_[all.next_];
      if (each.use_count() == 1 && each->memory->device() == device) return each;
    }
    auto const memory = std::make_shared<mirrored_memory const>(who, more * sizeof(cuda_kernels::loss_numbers));
    all.next_ = all.slots_.size();
    for (int i = 0; i < more; ++i) all.slots_.push_back(std::make_shared<loss_slot const>(loss_slot{memory, i}));
    return all.slots_[all.next_];
  }

 private:
  static constexpr int more = 64;  // are made at once
  std::vector<slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace detail

/// Losses in CUDA memory, which kernels are still computing: see trireme::losses_in.
///
/// Numerics the sum of all numbers in the order in which they were added, one after the other. (loss_sum adds the sums
///          of micro-batches, so the last bits may differ.)
/// Threads  read in the thread whose stream computes them.
/// Errors   read() throws config_error for a target that is refused: of a cross entropy, one outside of its classes.
class queued_losses {
 public:
  queued_losses() = default;
  queued_losses(loss_sum const& known) { terms_.push_back({.known = known}); }  // NOLINT: as a number would convert

  /// The losses that `launch` computes for `rows` rows: it queues kernels that leave their sum, the rows that do not
  /// count and the refused target in the memory that it gets, which is zero before.
  /// @param columns  the sum is divided by.
  /// @param classes  for the sentence about a refused target of a cross entropy; 0: targets are probabilities.
  template <class Launch>
  queued_losses(char const* who, std::int64_t rows, double columns, std::int64_t classes, Launch&& launch) {
    auto slot = detail::loss_slots::free_slot(who);
    constexpr auto bytes = sizeof(cuda_kernels::loss_numbers);
    auto* const stream = cuda::stream();
    detail::expect_cuda(who, ::cudaMemsetAsync(slot->on_device(), 0, bytes, stream));
    detail::expect_cuda(who, launch(slot->on_device()));
    detail::expect_cuda(who,
                        ::cudaMemcpyAsync(slot->on_host(), slot->on_device(), bytes, cudaMemcpyDeviceToHost, stream));
    terms_.push_back({.slot = std::move(slot), .rows = rows, .columns = columns, .classes = classes});
  }

  queued_losses& operator+=(queued_losses const& other) {
    terms_.insert(terms_.end(), other.terms_.begin(), other.terms_.end());
    return *this;
  }
  /// As loss_sum::add_without_rows.
  void add_without_rows(queued_losses const& other, double divisor = 1, double factor = 1) {
    for (auto each : other.terms_) {
      each.counts = false;
      each.divisor *= divisor;
      each.factor *= factor;
      terms_.push_back(std::move(each));
    }
  }
  /// As loss_sum::count_all_rows, also for losses that are added later.
  void count_all_rows() noexcept { counts_all_ = true; }

  /// Waits for this thread's stream, unless all numbers are known.
  [[nodiscard]] loss_sum read() const {
    for (auto const& each : terms_) {
      if (each.slot == nullptr) continue;
      cuda::finish();
      break;
    }
    loss_sum all;
    for (auto const& each : terms_) {
      auto const found = each.numbers();
      if (each.counts)
        all += found;
      else
        all.add_without_rows(found, each.divisor, each.factor);
    }
    if (counts_all_) all.count_all_rows();
    return all;
  }

 private:
  struct term {
    loss_sum known{};
    detail::loss_slots::slot slot{};  // null: known
    std::int64_t rows = 0;
    double columns = 1;
    std::int64_t classes = 0;
    double divisor = 1, factor = 1;
    bool counts = true;

    [[nodiscard]] loss_sum numbers() const {
      if (slot == nullptr) return known;
      auto const& found = *slot->on_host();
      if (found.first_refused != 0) expect_target(static_cast<std::uint32_t>(found.first_refused));
      auto const left_out = static_cast<std::int64_t>(found.left_out);
      return {found.sum / columns, rows - left_out, left_out};
    }
    // Throws what on<host> throws.
    void expect_target(std::uint32_t bits) const {
      if (classes == 0) {
        float target = 0;
        std::memcpy(&target, &bits, sizeof target);
        static_cast<void>(logistic_loss(0, static_cast<double>(target)));
      } else if (asserts(assertion_level::normal)) {
        throw config_error(text("trireme::ops::cross_entropy: target ", static_cast<std::int32_t>(bits),
                                " is outside of ", how_many(classes, "class")));
      }
    }
  };
  std::vector<term> terms_;
  bool counts_all_ = false;
};

}  // namespace trireme::ops

namespace trireme {

template <>
struct losses_of_space<cuda> {
  using type = ops::queued_losses;
};

}  // namespace trireme
