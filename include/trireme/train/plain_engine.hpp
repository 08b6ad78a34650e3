#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/parallel/exchange.hpp"

namespace trireme {

/// Runs a plain model: its own storage, its own kernels. Knows nothing of ranks.
template <class Env, plain_model Model>
class plain_engine {
 public:
  using space = typename Env::space;
  using value = typename Env::param;

  /// A model given by name stays the caller's; a temporary is kept here.
  explicit plain_engine(Model& model) : model_(std::shared_ptr<Model>{}, &model) {}
  explicit plain_engine(Model&& model) : model_(std::make_shared<Model>(std::move(model))) {}

  [[nodiscard]] std::vector<foreign_parameter<value, space>> parameters() {
    std::vector<foreign_parameter<value, space>> all;
    model_->visit_parameters(
        [&](std::string const& name, tensor_view<value, space> values, tensor_view<value, space> gradient) {
          all.push_back({name, values, gradient});
        });
    if (reported_.empty()) {
      for (auto const& each : all) names_.push_back(each.name);
      reported_.assign(all.size(), 0);
    }
    return all;
  }

  void invalidate() noexcept {}

  /// Forward and backward; ready(index) as each gradient is filled.
  template <class Ready>
  loss_sum train(samples const& batch, Ready&& ready) {
    auto const loss = forward(batch, purpose::train);
    reported_.assign(reported_.size(), 0);
    model_->backward([&](std::string_view name) {
      auto const index = index_of(name);
      reported_[index] = 1;
      ready(static_cast<int>(index));
    });
    for (std::size_t index = 0; index < reported_.size(); ++index) {
      if (reported_[index] != 0) continue;
      throw config_error(text("trireme::trainer: the model's backward did not call ready(\"", names_[index], "\")"));
    }
    return loss;
  }

  [[nodiscard]] loss_sum evaluate(samples const& batch) { return forward(batch, purpose::evaluate); }
  [[nodiscard]] tensor<float> predict(samples const& batch) requires has_model_predict<Model> {
    return model_->predict(batch);
  }
  /// Calls f(name, values) for each buffer.
  template <class F>
  void visit_buffers(F&& f) {
    if constexpr (has_buffers<Model>) model_->visit_buffers(f);
  }

  [[nodiscard]] Model& model() noexcept { return *model_; }

 private:
  [[nodiscard]] loss_sum forward(samples const& batch, [[maybe_unused]] purpose why) {
    double mean = 0;
    if constexpr (has_purposeful_forward<Model>) {
      mean = static_cast<double>(model_->forward(batch, why));
    } else {
      mean = static_cast<double>(model_->forward(batch));
    }
    return {mean * static_cast<double>(batch.count()), batch.count()};
  }
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    for (std::size_t index = 0; index < names_.size(); ++index) {
      if (names_[index] == name) return index;
    }
    throw config_error(text("trireme::trainer: the model's backward called ready(\"", name,
                            "\"), but visit_parameters names no such parameter"));
  }

  std::shared_ptr<Model> model_;
  std::vector<std::string> names_;
  std::vector<char> reported_;
};

}  // namespace trireme
