#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/interop/torch_autocast.hpp"
#include "trireme/interop/torch_loss.hpp"

namespace trireme::interop {

struct torch_model_options {
  /// true: a micro-batch need not use every parameter, and an unused one gets a gradient of zeros. false: a parameter
  /// without a gradient is an error.
  bool unused_parameters = false;
};

/// A torch::nn::Module as a plain model (contract/model.hpp), which make_trainer accepts.
///
/// Shapes   the module gets inputs in the dataset's shape, (n, ...), without a copy.
/// Bytes    values and gradients are views of the module's own storage; .grad() of each trained parameter is allocated
///          when the model is made, and stays there.
/// Numerics parameters may be float, bfloat16 and float16 in any mixture, and double as well with Element = double and
///          precision::fp64. The trainer keeps master values of those narrower than Element (train/plain_engine.hpp).
///          With precision::bf16 and precision::fp16 module and loss run under torch's autocast, and parameters stay as
///          they are; losses are multiplied by the precision's loss scale before backward.
/// Threads  one owner; copies share the module and the state of a pass.
/// Errors   config_error for a parameter of another type, one without a gradient in a pass, or one whose memory has
///          changed; for a buffer that is not float, double, int64 or int32; for a loss that is not one number; for
///          a type that this LibTorch's autocast does not support (interop::autocast).
template <class Element, class Module, class Loss>
class torch_module_model {
 public:
  using value_type = Element;
  /// The trainer accepts parameters that backward() does not report: backward() refuses them itself, unless
  /// unused_parameters is set.
  static constexpr bool leaves_parameters_out = true;

  torch_module_model(std::shared_ptr<Module> module, Loss loss, torch_model_options const& options)
      : state_(std::make_shared<state>(std::move(module), std::move(loss), options)) {}

  template <class Visit>
  void visit_parameters(Visit&& visit) {
    for (auto const& each : state_->parameters) {
      bool const shown = show<double>(visit, each) || show<float>(visit, each) || show<bfloat16>(visit, each) ||
                         show<float16>(visit, each);
      if (shown) continue;
      throw config_error(text("trireme::interop::torch_model: parameter \"", each.name, "\" has elements of ",
                              c10::toString(each.value.scalar_type()),
                              ", which this trainer does not take; for Double use torch_model<double> and "
                              "precision::fp64"));
    }
  }
  template <class Visit>
  void visit_buffers(Visit&& visit) {
    for (auto const& each : state_->buffers) detail::show_buffer("torch_model", each, visit);
  }
  [[nodiscard]] bool frozen(std::string_view name) const {
    for (auto const& each : state_->parameters) {
      if (each.name == name) return !each.value.requires_grad();
    }
    return false;
  }

  /// From now on passes are computed in this type, by torch's autocast if it is narrower than the parameters.
  void compute_in(dtype type) {
    state_->computes = detail::torch_type(type);
    if (state_->casts()) interop::autocast const known(state_->computes);
  }
  std::conditional_t<detail::loss_counts<Loss>, counted_loss, double> forward(samples const& batch, purpose why) {
    auto& it = *state_;
    for (auto const& each : it.parameters) detail::expect_at(each.value, each.memory, each.name);
    if (it.module->is_training() != (why == purpose::train)) it.module->train(why == purpose::train);
    torch::AutoGradMode const mode(why == purpose::train);
    auto loss = it.cast([&] {
      return detail::loss_of(it.loss, it.module->forward(detail::tensor_of(batch.inputs)),
                             detail::tensor_of(batch.targets), "torch_model");
    });
    auto const number = loss.sum.template item<double>();
    if (why == purpose::train) it.last = std::move(loss.sum);
    if constexpr (detail::loss_counts<Loss>) {
      return {number, loss.count};
    } else {
      return number;
    }
  }
  template <class Ready>
  void backward(Ready&& ready, double scale = 1) {
    auto& it = *state_;
    for (auto& each : it.parameters) {
      each.reported = !each.value.requires_grad();
      if (each.reported) continue;
      if (!each.gradient.defined()) {
        throw config_error(text("trireme::interop::torch_model: parameter \"", each.name,
                                "\" did not require a gradient when the model was made; make the model again"));
      }
      each.gradient.zero_();
      each.value.mutable_grad() = each.gradient;  // zero_grad() may have cleared it
    }
    struct end {
      state& of;
      ~end() { of.ready = nullptr, of.last = torch::Tensor(); }
    } const end{it};
    it.ready = [&](parameter const& each) { ready(each.name.c_str()); };
    it.last.backward(torch::full_like(it.last, scale));
    for (auto const& each : it.parameters) {
      if (each.reported || it.options.unused_parameters) continue;
      throw config_error(text("trireme::interop::torch_model: parameter \"", each.name,
                              "\" got no gradient; if a batch need not use all parameters, say "
                              "{.unused_parameters = true}, and requires_grad_(false) of what is never trained"));
    }
  }
  tensor<float> predict(samples const& batch) {
    auto& it = *state_;
    if (it.module->is_training()) it.module->eval();
    torch::NoGradGuard const guard;
    auto const computed = it.cast([&] { return it.module->forward(detail::tensor_of(batch.inputs)); });
    auto const out = computed.to(at::kFloat).contiguous();
    tensor<float> result(detail::shape_of(out));
    std::copy_n(out.template data_ptr<float>(), out.numel(), result.span().data());
    return result;
  }

  [[nodiscard]] std::shared_ptr<Module> const& module() const noexcept { return state_->module; }

 private:
  struct parameter {
    std::string name;
    torch::Tensor value;
    void const* memory;
    torch::Tensor gradient{};
    bool reported = false;
  };
  struct state {
    state(std::shared_ptr<Module> of, Loss l, torch_model_options const& o)
        : module(std::move(of)), loss(std::move(l)), options(o), buffers(detail::buffers_of(*module)) {
      std::vector<torch::Tensor> trained;
      for (auto const& each : detail::parameters_of(*module)) {
        parameters.push_back({each.name, each.tensor, each.tensor.data_ptr()});
        if (!each.tensor.requires_grad()) continue;
        parameters.back().gradient = torch::zeros_like(each.tensor);
        places.push_back(parameters.size() - 1);
        trained.push_back(each.tensor);
      }
      hooks = std::make_unique<detail::gradient_hooks>(trained, [this](std::size_t nth) { on_gradient(places[nth]); });
    }
    [[nodiscard]] bool casts() const noexcept { return computes == at::kHalf || computes == at::kBFloat16; }
    // Returns f(), called under autocast if the precision needs it.
    template <class F>
    auto cast(F&& f) const {
      if (!casts()) return f();
      interop::autocast const guard(computes);
      return f();
    }
    void on_gradient(std::size_t index) {
      if (!ready) return;  // not a backward of this model
      auto& each = parameters[index];
      auto& found = each.value.mutable_grad();
      if (!found.is_same(each.gradient)) {  // autograd has put another tensor there
        torch::NoGradGuard const guard;
        each.gradient.copy_(found);
        found = each.gradient;
      }
      each.reported = true;
      ready(each);
    }

    std::shared_ptr<Module> module;
    Loss loss;
    torch_model_options options;
    at::ScalarType computes = at::kFloat;
    std::vector<parameter> parameters{};
    std::vector<detail::named_tensor> buffers;
    std::vector<std::size_t> places{};  // index in `parameters` of each trained one
    std::function<void(parameter const&)> ready{};
    torch::Tensor last{};  // the loss that backward starts from
    std::unique_ptr<detail::gradient_hooks> hooks{};
  };

  // Passes a parameter to the visitor if it has elements of type T and the visitor accepts them. The sizes are compared
  // first, because std::invocable compiles the visitor's body, which need not compile for wider types.
  template <class T, class Visit>
  static bool show(Visit& visit, parameter const& each) {
    if constexpr (sizeof(T) <= sizeof(Element)) {
      if constexpr (std::invocable<Visit&, char const*, tensor_view<T>, tensor_view<T>>) {
        if (each.value.scalar_type() != detail::torch_type(dtype_of<T>)) return false;
        auto const gradient = each.gradient.defined() ? detail::view_of<T>(each.gradient) : tensor_view<T>();
        visit(each.name.c_str(), detail::view_of<T>(each.value), gradient);
        return true;
      }
    }
    return false;
  }

  std::shared_ptr<state> state_;
};

/// A torch::nn::Module and a loss as a model for make_trainer. docs/torch.md lists the strategies that are tested with
/// it. All ranks must start from the same values: interop::broadcast(module, world) makes them equal.
///
/// @param module  a torch::nn::ModuleHolder (what TORCH_MODULE makes) or a std::shared_ptr of a module.
/// @param loss    loss(outputs, targets) -> the mean over the batch, as a tensor of one number, or loss_and_count.
///                torch::nn::CrossEntropyLoss and NLLLoss with reduction mean (the default) are averaged over the
///                counted targets of the whole step, however samples are distributed: targets equal to ignore_index
///                are left out, and class weights are applied.
/// @example auto model = interop::torch_model(net, torch::nn::MSELoss());
///          auto trainer = make_trainer(model, optim::adamw{.learning_rate = 1e-3}, world, parallel::zero<1>{});
template <class Element = float, class Module, class Loss>
[[nodiscard]] auto torch_model(Module const& module, Loss loss, torch_model_options const& options = {}) {
  using inner = typename decltype(detail::module_of(module))::element_type;
  return torch_module_model<Element, inner, Loss>(detail::module_of(module), std::move(loss), options);
}

}  // namespace trireme::interop
