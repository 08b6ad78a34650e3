// Trireme 0.1.0: trireme/interop/torch_sampler.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: fa3eb8879c23ce9b2e44566b672079131b131315b126bf0f1c0ee0dfea5c7474
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_sampler.hpp
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::interop {

/// How to distribute a number of samples that the ranks do not divide: repeat the first of the order until every rank
/// has as many, or leave out the last of the order (others in each epoch).
enum class uneven_ends { pad, drop };

struct distributed_sampler_options {
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< false: in the dataset's order
  uneven_ends ends = uneven_ends::pad;
};

/// A sampler for torch::data::make_data_loader: the ranks visit disjoint samples, in a different order in each epoch.
///
/// Why: the epoch of LibTorch's DistributedRandomSampler cannot be set once a loader has it, so it repeats its order.
/// This sampler begins the next epoch whenever a loader begins a pass. Copies share one position: set_epoch() on a copy
/// that you keep also applies to the loader's. The order is that of data::sampler, which stores no permutation.
///
/// Ranks    construction is collective; all ranks get equally many samples in each epoch. Sample i of the order goes to
///          rank i modulo size().
/// Threads  one owner; a loader calls it in the thread that begins and advances its iterator.
/// Errors   config_error on every rank if samples or options are not the same on all of them, if there is no sample, or
///          if there are fewer samples than ranks and the uneven end is dropped.
///
/// @example interop::distributed_sampler order(images.size().value(), world);
///          auto loader = torch::data::make_data_loader(images, order, 32);
///          for (int epoch = 0; epoch < 10; ++epoch) for (auto& batch : *loader) { ... }
class distributed_sampler : public torch::data::samplers::Sampler<> {
 public:
  template <class Comm>
  distributed_sampler(std::size_t samples, Comm& world, distributed_sampler_options const& options = {})
      : order_{static_cast<std::int64_t>(samples), options.seed},
        options_(options),
        rank_(static_cast<std::size_t>(world.rank())),
        ranks_(static_cast<std::size_t>(world.size())),
        place_(std::make_shared<place>()) {
    std::vector<parallel::rank_value> const items{
        {"the number of samples", text(samples)},
        {"the seed", text(options.seed)},
        {"the order", options.shuffle ? "shuffled" : "that of the dataset"},
        {"an uneven end", options.ends == uneven_ends::pad ? "padded" : "dropped"}};
    parallel::expect_same_on_all_ranks(world, name, world.rank(), items, "give all ranks the same data and options");
    expect_samples();
  }

  /// Sets where the next pass of a loader begins: in which epoch, and after how many samples of this rank. For a
  /// resumed run: count the samples that were trained on, not those that the loader has drawn ahead.
  /// Errors  config_error if an epoch has fewer samples.
  void set_epoch(std::uint64_t epoch, std::size_t samples_of_this_rank = 0) {
    if (samples_of_this_rank > local_samples()) {
      throw config_error(text(name, ": set_epoch() after ", how_many(samples_of_this_rank, "sample"),
                              " of this rank, but it has ", local_samples(), " in an epoch"));
    }
    place_->next = {epoch, samples_of_this_rank};
    place_->told = true;
  }
  /// The epoch of the latest pass that has begun.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return place_->now.epoch; }
  /// How many samples each rank gets in an epoch.
  [[nodiscard]] std::size_t local_samples() const noexcept {
    auto const all = static_cast<std::size_t>(order_.samples);
    return options_.ends == uneven_ends::pad ? (all + ranks_ - 1) / ranks_ : all / ranks_;
  }

  // The functions that a loader calls.

  /// Begins a pass: of the next epoch, or where set_epoch() has put it.
  void reset(torch::optional<std::size_t> new_size = torch::nullopt) override {
    if (new_size.has_value()) {
      order_.samples = static_cast<std::int64_t>(*new_size);
      expect_samples();
    }
    if (!std::exchange(place_->told, false)) place_->next = {place_->now.epoch + 1, 0};
    place_->now = place_->next;
  }
  /// The indices of up to `batch_size` samples; nullopt at the end of the epoch.
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    auto& at = place_->now.drawn;
    auto const end = at + std::min(batch_size, local_samples() - std::min(at, local_samples()));
    if (at == end) return torch::nullopt;
    std::vector<std::size_t> ids;
    for (; at < end; ++at) ids.push_back(id(at));
    return ids;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", torch::tensor(static_cast<std::int64_t>(place_->now.epoch)), true);
    archive.write("drawn", torch::tensor(static_cast<std::int64_t>(place_->now.drawn)), true);
  }
  /// The next pass begins at the saved position.
  void load(torch::serialize::InputArchive& archive) override {
    auto const read = [&](char const* key) {
      torch::Tensor number;
      archive.read(key, number, true);
      return number.item<std::int64_t>();
    };
    auto const epoch = read("epoch"), drawn = read("drawn");
    if (epoch < 0 || drawn < 0) throw config_error(text(name, ": the archive has a negative epoch or position"));
    set_epoch(static_cast<std::uint64_t>(epoch), static_cast<std::size_t>(drawn));
  }

 private:
  static constexpr char const* name = "trireme::interop::distributed_sampler";
  struct start {
    std::uint64_t epoch = 0;
    std::size_t drawn = 0;
  };
  struct place {
    start now{}, next{};
    bool told = true;  // `next` has been set since the last pass began
  };

  void expect_samples() const {
    if (order_.samples > 0 && local_samples() > 0) return;
    throw config_error(text(name, ": ", how_many(order_.samples, "sample"), " ",
                            agreeing(order_.samples, "leaves", "leave"), " none for each of ", how_many(ranks_, "rank"),
                            order_.samples > 0 ? "; pad the end, or use fewer ranks" : ""));
  }
  [[nodiscard]] std::size_t id(std::size_t nth_of_this_rank) const {
    auto const position = (nth_of_this_rank * ranks_ + rank_) % static_cast<std::size_t>(order_.samples);
    if (!options_.shuffle) return position;
    return static_cast<std::size_t>(order_.id(place_->now.epoch, static_cast<std::int64_t>(position)));
  }

  data::sampler order_;
  distributed_sampler_options options_;
  std::size_t rank_, ranks_;
  std::shared_ptr<place> place_;  // shared by all copies
};

}  // namespace trireme::interop
