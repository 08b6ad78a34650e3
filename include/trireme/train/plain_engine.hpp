#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/core/error.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/exchange.hpp"

namespace trireme {

/// Runs a plain model, which has its own storage and kernels. Does not depend on ranks.
///
/// Bytes    parameters of the trainer's element type are used in place. For narrower ones (bf16 in a trainer of fp32)
///          it keeps a value and a gradient in the trainer's type: that value is updated, saved and hashed, and the
///          exchange that writes it also rounds it into the model's own memory.
template <class Env, plain_model Model>
class plain_engine {
 public:
  using space = typename Env::space;
  using value = typename Env::param;

  /// A model passed as an lvalue stays the caller's; a temporary is moved here.
  explicit plain_engine(Model& model) : model_(std::shared_ptr<Model>{}, &model) { begin(); }
  explicit plain_engine(Model&& model) : model_(std::make_shared<Model>(std::move(model))) { begin(); }

  /// Whether the model itself multiplies its loss by a loss scale, so that small gradients within it do not underflow.
  static constexpr bool scales_loss = has_scaled_backward<Model>;
  /// Whether gradients are those of the sum over a micro-batch's counted targets, not of the mean over its samples.
  static constexpr bool sums_gradients = counts_targets<Model>;

  /// The parameters for an exchange, in the trainer's element type.
  [[nodiscard]] std::vector<foreign_parameter<value, space>> parameters() const {
    std::vector<foreign_parameter<value, space>> all;
    for (auto const& each : all_) {
      all.push_back({each.name, each.values, each.gradient, each.give});
      if constexpr (declares_fused<Model>) all.back().fused = model_->fused(std::string_view(each.name));
    }
    return all;
  }
  /// The optimizer's requests, and the parameters that the model itself declares frozen.
  [[nodiscard]] bucket_requirements requirements(bucket_requirements of_optimizer) const {
    std::vector<std::string> frozen;
    for (auto const& each : all_) {
      if (each.frozen) frozen.push_back(each.name);
    }
    if (frozen.empty()) return of_optimizer;
    auto all = of_optimizer;
    all.frozen = [frozen, of_optimizer](parameter_info const& info) {
      return of_optimizer.freezes(info) || std::find(frozen.begin(), frozen.end(), info.name) != frozen.end();
    };
    return all;
  }
  /// Whether a parameter has another element type in the model's own memory.
  [[nodiscard]] bool converts(std::size_t index) const { return all_[index].give != nullptr; }

  /// Forward and backward; ready(index) as each gradient is filled.
  /// @param scale  factor on the loss that is differentiated; other than 1 only if scales_loss.
  template <class Ready>
  loss_sum train(samples const& batch, Ready&& ready, [[maybe_unused]] double scale = 1) {
    auto const loss = forward(batch, purpose::train);
    for (std::size_t index = 0; index < all_.size(); ++index) {
      all_[index].reported = all_[index].frozen;
      if (all_[index].frozen) ready(static_cast<int>(index));
    }
    auto const report = [&](std::string_view name) {
      auto const index = index_of(name);
      auto& it = all_[index];
      if (it.frozen) return;
      if (it.take) it.take();
      it.reported = true;
      ready(static_cast<int>(index));
    };
    if constexpr (scales_loss) {
      model_->backward(report, scale);
    } else {
      model_->backward(report);
    }
    for (std::size_t index = 0; index < all_.size(); ++index) {
      auto const& it = all_[index];
      if (it.reported) continue;
      if constexpr (leaves_parameters_out<Model>) {
        ops::on<space>::fill(it.gradient, 0.0);
        ready(static_cast<int>(index));
      } else {
        throw config_error(text("trireme::trainer: the model's backward did not call ready(\"", it.name, "\")"));
      }
    }
    return loss;
  }

  [[nodiscard]] loss_sum evaluate(samples const& batch) { return forward(batch, purpose::evaluate); }
  [[nodiscard]] auto predict(samples const& batch) requires has_model_predict<Model> {
    pass_values_on();
    return model_->predict(batch);
  }
  [[nodiscard]] typename input_gradients_of<Model, Env>::type input_gradient(samples const& batch) {
    pass_values_on();
    if constexpr (has_model_input_gradient<Model>) return model_->input_gradient(batch);
    return {};  // the trainer has rejected it
  }
  /// Calls f(name, values) for each buffer.
  template <class F>
  void visit_buffers(F&& f) {
    if constexpr (has_buffers<Model>) model_->visit_buffers(f);
  }

  [[nodiscard]] Model& model() noexcept { return *model_; }

 private:
  // Sets the types of a model that casts, before each pass: a trainer with other types may use the same model.
  void pass_values_on() {
    if constexpr (casts_inside<Model>) model_->compute_in(dtype_of<casts_to<typename Env::precision>>);
  }
  [[nodiscard]] loss_sum forward(samples const& batch, [[maybe_unused]] purpose why) {
    pass_values_on();
    auto const given = [&] {
      if constexpr (has_purposeful_forward<Model>) {
        return model_->forward(batch, why);
      } else {
        return model_->forward(batch);
      }
    }();
    if constexpr (sums_gradients) {
      return sum_of(given, batch.count());
    } else {
      return {static_cast<double>(given) * static_cast<double>(batch.count()), batch.count()};
    }
  }
  struct held {
    std::string name;
    tensor_view<value, space> values{}, gradient{};
    bool frozen = false;
    bool reported = false;
    std::function<void()> give{};  // values -> the model's memory
    std::function<void()> take{};  // the model's gradient -> gradient
    tensor<value, space> own_values{}, own_gradient{};
  };
  void begin() {
    pass_values_on();
    model_->visit_parameters(
        [this]<class V, class G>(std::string const& name, tensor_view<V, space> values,
                                 tensor_view<G, space> gradient) { this->add(name, values, gradient); });
  }
  template <class V, class G>
  void add(std::string const& name, tensor_view<V, space> values, tensor_view<G, space> gradient) {
    static_assert(sizeof(V) <= sizeof(value) && sizeof(G) <= sizeof(value),
                  "trireme::trainer: the model has parameters of double; make its trainer with precision::fp64");
    using kernels = ops::on<space>;
    held it{.name = name};
    if constexpr (has_frozen<Model>) it.frozen = model_->frozen(std::string_view(name));
    if constexpr (std::is_same_v<V, value>) {
      it.values = values;
    } else {
      it.own_values = tensor<value, space>(values.extents());
      it.values = it.own_values.view();
      kernels::copy(it.values, tensor_view<V const, space>(values));
      it.give = [to = values, from = it.values] { kernels::copy(to, tensor_view<value const, space>(from)); };
    }
    if (it.frozen) {
      it.gradient = it.values;  // the right size; the gradient of a frozen parameter is never read or written
    } else if constexpr (std::is_same_v<G, value>) {
      it.gradient = gradient;
    } else {
      it.own_gradient = tensor<value, space>(gradient.extents());
      it.gradient = it.own_gradient.view();
      it.take = [to = it.gradient, from = gradient] { kernels::copy(to, tensor_view<G const, space>(from)); };
    }
    all_.push_back(std::move(it));
  }
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    for (std::size_t index = 0; index < all_.size(); ++index) {
      if (all_[index].name == name) return index;
    }
    throw config_error(text("trireme::trainer: the model's backward called ready(\"", name,
                            "\"), but visit_parameters names no such parameter"));
  }

  std::shared_ptr<Model> model_;
  std::vector<held> all_;
};

}  // namespace trireme
