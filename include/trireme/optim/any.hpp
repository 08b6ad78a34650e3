#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/ops/phantom.hpp"

namespace trireme::optim {

/// Holds any optimizer, for programs that choose it at run time: one trainer is compiled for all of them.
///
/// Bytes    copies share one description. One virtual call for each segment or tensor that is updated.
/// Numerics those of the contained optimizer, bit for bit; so are its moments, hashes and checkpoints.
/// Plans    run the contained optimizer in phantom memory, so it must access numbers only through ops::on<space>.
/// @tparam Env  the precision and memory space of the trainer: environment<precision::fp32>, say.
/// @models  element_optimizer and whole_tensor_optimizer; `whole_tensors` says at run time which one applies.
template <class Env>
class any {
  static_assert(!std::is_same_v<typename Env::space, phantom>,
                "trireme::optim::any: name the trainer's memory space; plans derive phantom memory from it");
  using on_paper = environment<typename Env::precision, phantom>;

 public:
  using policy_category = slot::optimizer;

  template <class Optimizer>
  requires(!std::same_as<Optimizer, any> && trireme::optimizer<Optimizer, Env>)
      any(Optimizer const& optimizer)  // NOLINT(google-explicit-constructor): every optimizer converts
      : whole_tensors(wants_whole_tensors(optimizer)),
        clip(optimizer.clip),
        momentum(momentum_of(optimizer)),
        within_(std::make_shared<model<Optimizer>>(optimizer)) {
    for (auto const& name : optimizer.moment_names) moment_names.push_back(name);
  }

  bool whole_tensors;
  double clip;
  double momentum;  ///< see momentum_of()
  std::vector<std::string_view> moment_names;
  [[nodiscard]] double rate_at(std::int64_t step) const { return within_->rate_at(step); }
  [[nodiscard]] shape moment_shape(std::size_t which, parameter_info const& info) const {
    return within_->moment_shape(which, info);
  }
  void validate() const {
    within_->validate();
    expect_number("optim::any", ".clip", clip, limit_or_none);
  }
  void for_each_pattern(std::function<void(name_pattern const&)> const& f) const { within_->for_each_pattern(f); }
  [[nodiscard]] bool freezes(parameter_info const& info) const { return within_->requirements.freezes(info); }
  void update(update_segment<Env> const& segment, std::int64_t step) const { within_->update(segment, step); }
  void update(tensor_update<Env> const& tensor, std::int64_t step) const { within_->update(tensor, step); }
  void update(update_segment<on_paper> const& segment, std::int64_t step) const { within_->update(segment, step); }
  void update(tensor_update<on_paper> const& tensor, std::int64_t step) const { within_->update(tensor, step); }

  [[nodiscard]] friend std::string to_string(any const& o) { return o.within_->description(); }

 private:
  struct face {
    explicit face(bucket_requirements w) : requirements(std::move(w)) {}
    virtual ~face() = default;
    [[nodiscard]] virtual double rate_at(std::int64_t step) const = 0;
    [[nodiscard]] virtual shape moment_shape(std::size_t which, parameter_info const& info) const = 0;
    virtual void update(update_segment<Env> const& segment, std::int64_t step) const = 0;
    virtual void update(tensor_update<Env> const& tensor, std::int64_t step) const = 0;
    virtual void update(update_segment<on_paper> const& segment, std::int64_t step) const = 0;
    virtual void update(tensor_update<on_paper> const& tensor, std::int64_t step) const = 0;
    [[nodiscard]] virtual std::string description() const = 0;
    virtual void validate() const = 0;
    virtual void for_each_pattern(std::function<void(name_pattern const&)> const& f) const = 0;
    bucket_requirements requirements;
  };
  // A function that the optimizer lacks is never called: whole_tensors says which kind it is.
  template <class Optimizer>
  struct model final : face {
    explicit model(Optimizer const& optimizer) : face(bucket_requirements_of(optimizer)), within(optimizer) {}
    double rate_at(std::int64_t step) const override { return within.rate_at(step); }
    shape moment_shape([[maybe_unused]] std::size_t which, parameter_info const& info) const override {
      if constexpr (has_moment_shape<Optimizer>) return within.moment_shape(which, info);
      return info.extents;
    }
    void update(update_segment<Env> const& segment, std::int64_t step) const override { pass_on(segment, step); }
    void update(tensor_update<Env> const& tensor, std::int64_t step) const override { pass_on(tensor, step); }
    void update(update_segment<on_paper> const& segment, std::int64_t step) const override { pass_on(segment, step); }
    void update(tensor_update<on_paper> const& tensor, std::int64_t step) const override { pass_on(tensor, step); }
    template <class What>
    void pass_on([[maybe_unused]] What const& what, [[maybe_unused]] std::int64_t step) const {
      if constexpr (requires { within.update(what, step); }) within.update(what, step);
    }
    std::string description() const override { return describe(within); }
    void validate() const override { expect_valid(within); }
    void for_each_pattern([[maybe_unused]] std::function<void(name_pattern const&)> const& f) const override {
      if constexpr (has_patterns<Optimizer>) within.for_each_pattern(f);
    }
    Optimizer within;
  };

  std::shared_ptr<face const> within_;
};

}  // namespace trireme::optim
