#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/batch_queue.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::detail {

/// Memory for one micro-batch in a space that is not the host's. Micro-batches in flight have one each.
template <class Space>
struct landed_batch {
  using event = typename ops::batch_queue<Space>::event;
  tensor<std::byte, Space> memory{};
  samples_in<Space> here{};      ///< the batch, as kernels see it
  std::uint64_t filling = 0;     ///< of the batch that was copied ahead and waits here; 0: none does
  void const* source = nullptr;  ///< of that batch
  bool in_use = false;
  bool reads_source = false;  ///< until the copy is known to be done
  bool reads_older = false;   ///< until the copies before it are
  event copied{}, older{}, computed{};
};

/// Brings batches to memory that kernels can read. Those in staging memory are copied on a queue of their own, one
/// micro-batch ahead of the kernels; others on the kernels' queue, when they are needed.
///
/// Threads  one owner.
template <class Space>
class batch_upload {
 public:
  using landing = landed_batch<Space>;

  /// For a plan of a training whose kernels read batches where they are: nothing is copied.
  void leave() noexcept { copies_ = false; }
  /// For a plan of a training in a space with staging memory: batches are placed as if they were copied from there.
  void stage() noexcept { stages_ = true; }
  /// Starts a pass with these batches: kernels do not read any more what was brought before.
  void begin(std::span<samples const> batches) {
    for (auto const& each : all_) give_back(each.get());
    for (auto const& each : batches) largest_ = std::max(largest_, bytes_of(each));
  }
  /// The batch, as kernels see it. @param[out] at  where it is, to be given back when no further kernel reads it.
  samples_in<Space> place(samples const& batch, landing*& at) {
    at = nullptr;
    if (!copies_) return {as_if_there(batch.inputs), as_if_there(batch.targets), {batch.ids.data(), count_of(batch)}};
    at = waiting(batch);
    bool const came = at != nullptr;
    if (!came) at = &free_one(batch);
    at->in_use = true;
    at->filling = 0;
    bool const copied = came || send(batch, *at);
    queue_.order(at->copied);
    if (!copied) upload(batch, *at);
    return at->here;
  }
  /// Starts to copy a batch for a later place(), if it is in staging memory. What was copied ahead before is forgotten.
  void ahead(samples const& batch) {
    if (!stages_ || !copies_ || batch.filling == 0 || waiting(batch) != nullptr) return;
    for (auto const& each : all_) each->filling = 0;
    largest_ = std::max(largest_, bytes_of(batch));
    auto& at = free_one(batch);
    if (!send(batch, at)) return;
    at.filling = batch.filling;
    at.source = batch.inputs.address;
  }
  void give_back(landing* at) {
    if (at == nullptr || !at->in_use) return;
    at->in_use = false;
    queue_.computed(at->computed);
  }
  /// Returns when no copy reads the memory of a batch any more; without `all`, but for the one that was copied ahead.
  void finish(bool all) {
    for (auto const& each : all_) {
      if (each->reads_older) queue_.finish(each->older);
      each->reads_older = false;
      if (!each->reads_source || (!all && each->filling != 0)) continue;
      queue_.finish(each->copied);
      each->reads_source = false;
    }
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& each : all_) sum += each->memory.view().bytes();
    return sum;
  }

 private:
  static any_view<Space> as_if_there(any_view<host> const& from) { return {from.address, from.type, from.extents}; }
  static shape count_of(samples const& batch) { return {std::ssize(batch.ids)}; }
  [[nodiscard]] static std::size_t padded(std::size_t bytes) noexcept {
    constexpr std::size_t alignment = 256;  // in every space, so that a plan counts the same bytes
    return (bytes + alignment - 1) / alignment * alignment;
  }
  [[nodiscard]] static std::size_t bytes_of(samples const& batch) {
    return padded(batch.inputs.bytes()) + padded(batch.targets.bytes()) + padded(batch.ids.size_bytes());
  }

  landing* waiting(samples const& batch) {
    for (auto const& each : all_)
      if (batch.filling != 0 && each->filling == batch.filling && each->source == batch.inputs.address)
        return each.get();
    return nullptr;
  }
  // One that is free, and since a long time. Of staged batches there are two at least: while kernels still read one,
  // the next is copied to the other.
  landing& free_one(samples const& batch) {
    auto const is_free = [](auto const& one) { return !one->in_use && one->filling == 0; };
    while (all_.size() < (stages_ ? 2U : 1U) || std::none_of(all_.begin(), all_.end(), is_free))
      all_.push_back(std::make_unique<landing>());
    for (auto const& each : all_) {  // all of them now, so that no later step does it
      if (!is_free(each) || each->memory.view().bytes() >= largest_) continue;
      finish(true);
      each->memory = tensor<std::byte, Space>({static_cast<std::int64_t>(largest_ + largest_ / 16)});
    }
    do last_ = (last_ + 1) % all_.size();
    while (!is_free(all_[last_]));
    auto& at = *all_[last_];
    auto* address = at.memory.view().address();
    auto const next = [&](std::size_t bytes) {
      auto* const part = bytes == 0 ? nullptr : address;
      address += padded(bytes);
      return part;
    };
    at.here.inputs = {next(batch.inputs.bytes()), batch.inputs.type, batch.inputs.extents};
    at.here.targets = {next(batch.targets.bytes()), batch.targets.type, batch.targets.extents};
    at.here.ids = {elements_at<std::int64_t>(next(batch.ids.size_bytes())), count_of(batch)};
    return at;
  }
  // Copies it beside the kernels, if it is in staging memory.
  bool send(samples const& batch, [[maybe_unused]] landing& at) {
    if (!stages_ || batch.filling == 0) return false;
    if constexpr (has_staging<Space>) {
      if (at.reads_source) {  // by an older copy, whose event is kept; copies end in their order
        std::swap(at.copied, at.older);
        at.reads_older = true;
      }
      queue_.follow(at.computed);
      auto const copy = [&](void const* to, void const* from, std::size_t bytes) {
        if (bytes > 0) queue_.copy(const_cast<void*>(to), from, bytes);
      };
      copy(at.here.inputs.address, batch.inputs.address, batch.inputs.bytes());
      copy(at.here.targets.address, batch.targets.address, batch.targets.bytes());
      copy(at.here.ids.address(), batch.ids.data(), batch.ids.size_bytes());
      queue_.copied(at.copied);
      at.reads_source = true;
    }
    return true;
  }
  static void upload(samples const& batch, landing const& at) {
    auto const part = [](any_view<Space> const& to, any_view<host> const& from) {
      if (from.empty()) return;
      if (from.type == dtype::i32) return typed<std::int32_t>(to.address, from.template as<std::int32_t>().span());
      if (from.type == dtype::f64) return typed<double>(to.address, from.template as<double>().span());
      typed<float>(to.address, from.template as<float>().span());
    };
    part(at.here.inputs, batch.inputs);
    part(at.here.targets, batch.targets);
    if (!batch.ids.empty()) typed<std::int64_t>(at.here.ids.address(), batch.ids);
  }
  template <class T>
  static void typed(void const* to, std::span<T const> from) {
    ops::on<Space>::upload(tensor_view<T, Space>(elements_at<T>(const_cast<void*>(to)), {std::ssize(from)}), from);
  }

  bool copies_ = true;
  bool stages_ = has_staging<Space>;
  std::size_t largest_ = 0;  // bytes of a micro-batch so far
  std::size_t last_ = 0;
  std::vector<std::unique_ptr<landing>> all_;
  ops::batch_queue<Space> queue_;  // whose end waits for its copies
};

/// In host memory kernels read batches where they are.
template <>
class batch_upload<host> {
 public:
  struct landing {};
  void leave() noexcept {}
  void stage() noexcept {}
  void begin(std::span<samples const>) noexcept {}
  static samples const& place(samples const& batch, landing*&) noexcept { return batch; }
  void ahead(samples const&) noexcept {}
  void give_back(landing*) noexcept {}
  void finish(bool) noexcept {}
  [[nodiscard]] static std::size_t bytes() noexcept { return 0; }
};

}  // namespace trireme::detail
