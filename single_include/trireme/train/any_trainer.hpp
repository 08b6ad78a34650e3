// Trireme 0.1.0: trireme/train/any_trainer.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 970f0cca5308fa83a0536d5ac1ee916bf2808172317093d0cedf679762c87505
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/train/pretrained.hpp"

// ---- trireme/train/any_trainer.hpp
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A trainer whose policies were chosen at run time. It costs one virtual call a phase, and none within a step's loops.
class any_trainer {
 public:
  virtual ~any_trainer() = default;
  virtual void initialise(std::uint64_t seed) = 0;
  virtual void broadcast() = 0;
  virtual fit_report fit(data::any_dataset const& data, fit_options const& options) = 0;
  virtual void start_epoch() noexcept = 0;
  [[nodiscard]] virtual double evaluate(data::any_dataset const& data, std::int64_t batch) = 0;
  [[nodiscard]] virtual tensor<float> predict(samples const& batch) = 0;
  [[nodiscard]] virtual tensor<float> predict_rows(samples const& batch, paged_rows const& rows) = 0;
  virtual void on_step(std::function<void(step_report const&)> f) = 0;
  virtual void on_read_problem(std::function<void(data::read_problem const&)> f) = 0;
  virtual void request_stop() noexcept = 0;
  virtual void record(observe::timeline& timeline) = 0;
  virtual void save(std::string const& directory, checkpoint::patience const& patience = {},
                    checkpoint::keeping const& keep = {}) = 0;
  virtual void save_in_background(std::string const& directory, checkpoint::patience const& patience = {},
                                  checkpoint::keeping const& keep = {}) = 0;
  virtual void on_save(std::function<void(save_report const&)> f) = 0;
  virtual void finish_save() = 0;
  virtual checkpoint::loaded load(std::string const& directory, checkpoint::patience const& patience = {}) = 0;
  virtual void prepare_saves(std::string const& directory, checkpoint::patience const& patience = {}) = 0;
  /// As checkpoint::resume_or_start().
  virtual std::optional<checkpoint::loaded> resume_or_start(std::string const& directory) = 0;
  /// See train/pretrained.hpp; config_error for a model that has no such files.
  virtual void load_pretrained(std::string const& directory) = 0;
  /// The files that came with a pretrained model, on the first rank.
  [[nodiscard]] virtual std::vector<formats::model_file> const& model_files() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t state_hash() = 0;
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  [[nodiscard]] virtual exchange_times times() const noexcept = 0;
  /// Bytes    that this rank has sent so far, in the world and in its groups.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const noexcept = 0;
  /// Collective. Calls f(name, extents, master values) for every tensor of the model. Every rank gets whole tensors,
  /// under any mesh.
  virtual void for_each_parameter(
      std::function<void(std::string const&, shape const&, std::span<float const>)> const& f) = 0;
  /// Collective. As change_parameters() of a trainer: f(name, extents, master values) writes the values, the same on
  /// every rank. In precision::fp64 f gets them rounded to float; values that it does not change keep all their bits.
  virtual void change_parameters(std::function<void(std::string const&, shape const&, std::span<float>)> const& f) = 0;
};

namespace detail {

template <class Trainer>
class typed_trainer : public any_trainer {
 public:
  template <class... Policies>
  explicit typed_trainer(Policies&&... policies) : trainer_(make_trainer(std::forward<Policies>(policies)...)) {}

  void initialise(std::uint64_t seed) override { trainer_.initialise(seed); }
  void broadcast() override { trainer_.broadcast(); }
  fit_report fit(data::any_dataset const& data, fit_options const& options) override {
    return trainer_.fit(data, options);
  }
  void start_epoch() noexcept override { trainer_.start_epoch(); }
  double evaluate(data::any_dataset const& data, std::int64_t batch) override { return trainer_.evaluate(data, batch); }
  tensor<float> predict(samples const& batch) override { return detail::floats_of(trainer_.predict(batch)); }
  tensor<float> predict_rows([[maybe_unused]] samples const& batch, [[maybe_unused]] paged_rows const& rows) override {
    if constexpr (Trainer::staged) {
      return trainer_.predict_rows(batch, rows);
    } else {
      throw config_error(
          "trireme::any_trainer: predict_rows() needs a model made of units, which keeps the earlier positions; "
          "call predict()");
    }
  }
  void on_step(std::function<void(step_report const&)> f) override { trainer_.on_step(std::move(f)); }
  void on_read_problem(std::function<void(data::read_problem const&)> f) override {
    trainer_.on_read_problem(std::move(f));
  }
  void request_stop() noexcept override { trainer_.request_stop(); }
  void record(observe::timeline& timeline) override { trainer_.record(timeline); }
  void save(std::string const& directory, checkpoint::patience const& patience,
            checkpoint::keeping const& keep) override {
    trainer_.save(directory, patience, keep);
  }
  void save_in_background(std::string const& directory, checkpoint::patience const& patience,
                          checkpoint::keeping const& keep) override {
    trainer_.save_in_background(directory, patience, keep);
  }
  void on_save(std::function<void(save_report const&)> f) override { trainer_.on_save(std::move(f)); }
  void finish_save() override { trainer_.finish_save(); }
  checkpoint::loaded load(std::string const& directory, checkpoint::patience const& patience) override {
    return trainer_.load(directory, patience);
  }
  void prepare_saves(std::string const& directory, checkpoint::patience const& patience) override {
    trainer_.prepare_saves(directory, patience);
  }
  std::optional<checkpoint::loaded> resume_or_start(std::string const& directory) override {
    return checkpoint::resume_or_start(trainer_, directory);
  }
  void load_pretrained(std::string const& directory) override {
    if constexpr (requires {
                    trainer_.described_model().in_files();
                    config_of(trainer_.described_model());
                  }) {
      trireme::load_pretrained(trainer_, directory);
    } else {
      throw config_error(
          "trireme::any_trainer: this model has no in_files(), so it cannot read or write Hugging Face's files");
    }
  }
  std::vector<formats::model_file> const& model_files() const noexcept override { return trainer_.model_files(); }
  std::uint64_t state_hash() override { return trainer_.state_hash(); }
  std::int64_t steps() const noexcept override { return trainer_.steps(); }
  exchange_times times() const noexcept override { return trainer_.exchange().times(); }
  std::uint64_t bytes_sent() const noexcept override { return trainer_.grid().bytes_sent(); }
  void for_each_parameter(
      std::function<void(std::string const&, shape const&, std::span<float const>)> const& f) override {
    for_each_whole_tensor(trainer_.exchange(), f);
  }
  void change_parameters(std::function<void(std::string const&, shape const&, std::span<float>)> const& f) override {
    using master = typename Trainer::master;
    if constexpr (std::same_as<master, float>) {
      trainer_.change_parameters(f);
    } else {
      trainer_.change_parameters([&](std::string const& name, shape const& extents, std::span<master> values) {
        std::vector<float> rounded(values.begin(), values.end());
        f(name, extents, rounded);
        for (std::size_t i = 0; i < values.size(); ++i)
          if (!exactly_equal(rounded[i], static_cast<float>(values[i]))) values[i] = rounded[i];
      });
    }
  }

 private:
  Trainer trainer_;
};

/// One that has a world of its own: made before the trainer, and destroyed after it.
template <class World>
struct held_world {
  World world;
};
template <class World, class Trainer>
class trainer_with_world final : held_world<World>, public typed_trainer<Trainer> {
 public:
  template <class... Policies>
  explicit trainer_with_world(World&& world, Policies&&... policies)
      : held_world<World>{std::move(world)},
        typed_trainer<Trainer>(std::forward<Policies>(policies)..., held_world<World>::world) {}
};

}  // namespace detail

/// A trainer for policies in any order, used through any_trainer.
template <class... Policies>
[[nodiscard]] std::unique_ptr<any_trainer> make_any_trainer(Policies&&... policies) {
  using trainer = decltype(make_trainer(std::forward<Policies>(policies)...));
  return std::unique_ptr<any_trainer>(new detail::typed_trainer<trainer>(std::forward<Policies>(policies)...));
}

/// The same for the ranks of `world`, computing in another memory space (comm::in_space). `world` must outlive it.
///
/// Ranks    collective.
/// @example auto trainer = make_any_trainer_in<cuda>(world, nn::gpt{}, optim::adamw{}, parallel::data{});
template <class Space, communicator Comm, class... Policies>
[[nodiscard]] std::unique_ptr<any_trainer> make_any_trainer_in(Comm& world, Policies&&... policies) {
  using world_type = comm::world_in<Space, Comm>;
  using trainer = decltype(make_trainer(std::forward<Policies>(policies)..., std::declval<world_type&>()));
  return std::unique_ptr<any_trainer>(new detail::trainer_with_world<world_type, trainer>(
      comm::in_space<Space>(world), std::forward<Policies>(policies)...));
}

}  // namespace trireme
