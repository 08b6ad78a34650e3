#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/own_start.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/interop/torch_autocast.hpp"
#include "trireme/interop/torch_loss.hpp"

// torch::nn::Sequential as a staged model: parameters are gathered for each child (parallel::zero<3>), and children are
// distributed over the stages of a pipeline.

namespace trireme::interop {

namespace detail {

/// While it exists, the parameters of a module use the memory in which an exchange keeps their values; afterwards they
/// have no memory.
///
/// A tensor keeps its storage object; only the address in it changes, also for all views that autograd has saved. So a
/// backward pass reads the memory that the parameter has at that time.
class lent_memory {
 public:
  lent_memory() = default;
  lent_memory(lent_memory const&) = delete;
  lent_memory& operator=(lent_memory const&) = delete;
  ~lent_memory() {
    for (auto const& each : storages_) each.set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  }
  void lend(torch::Tensor const& parameter, void* address) {
    storages_.push_back(parameter.storage());
    storages_.back().set_data_ptr_noswap(at::DataPtr(address, at::kCPU));
  }

 private:
  std::vector<c10::Storage> storages_;
};

[[nodiscard]] inline bool has_memory(torch::Tensor const& parameter) {
  return parameter.numel() == 0 || parameter.storage().data_ptr().get() != nullptr;
}

/// Children [first, last) of a sequence, with their parameters and buffers. The first child has parameters, except
/// perhaps in the first unit.
struct sequence_stage {
  std::size_t first = 0;
  std::size_t last = 0;
  std::vector<named_tensor> parameters{};
  std::vector<named_tensor> buffers{};
};

/// A sequence, a loss, and the units into which they are split.
struct sequence {
  using loss_function = std::function<loss_and_count(torch::Tensor const&, torch::Tensor const&)>;

  sequence(std::shared_ptr<torch::nn::SequentialImpl> of, loss_function l)
      : module(std::move(of)), loss(std::move(l)), children(module->begin(), module->end()) {
    auto const all = parameters_of(*module);
    auto const buffers = buffers_of(*module);
    for (std::size_t child = 0; child < children.size(); ++child) {
      auto const own = children[child].ptr()->parameters();
      if (parts.empty() || (!own.empty() && !parts.back().parameters.empty())) parts.push_back({child, child});
      parts.back().last = child + 1;
      for (auto const& each : own) add(parts.back(), each, all);
      for (auto const& each : children[child].ptr()->buffers()) add_buffer(each, buffers);
    }
    if (all.empty()) {
      throw config_error(
          "trireme::interop::torch_sequential: the module has no parameters, so there is nothing to train");
    }
  }
  [[nodiscard]] named_tensor const& named(std::string_view name) const {
    for (auto const& part : parts) {
      for (auto const& each : part.parameters) {
        if (each.name == name) return each;
      }
    }
    throw config_error(text("trireme::interop::torch_sequential: there is no parameter \"", name, "\""));
  }

  std::shared_ptr<torch::nn::SequentialImpl> module;
  loss_function loss;
  std::vector<torch::nn::AnyModule> children;
  std::vector<sequence_stage> parts{};

 private:
  void add_buffer(torch::Tensor const& tensor, std::vector<named_tensor> const& all) {
    if (!tensor.defined()) return;  // a batch normalisation without running statistics has such buffers
    auto const is_it = [&](auto const& each) { return each.tensor.is_same(tensor); };
    auto const& own = parts.back().buffers;
    if (std::any_of(own.begin(), own.end(), is_it)) return;
    auto const& buffer = *std::find_if(all.begin(), all.end(), is_it);
    for (auto const& part : parts) {
      if (std::none_of(part.buffers.begin(), part.buffers.end(), is_it)) continue;
      throw config_error(text("trireme::interop::torch_sequential: buffer \"", buffer.name,
                              "\" belongs to several units, which may lie on different ranks; give each layer its "
                              "own, or use torch_model"));
    }
    show_buffer("torch_sequential", buffer, [](auto const&, auto const&) {});  // throws what it refuses
    parts.back().buffers.push_back(buffer);
  }
  // A tensor of several children is listed in each under the first of its names.
  static void add(sequence_stage& part, torch::Tensor const& tensor, std::vector<named_tensor> const& all) {
    auto const at = std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.tensor.is_same(tensor); });
    auto const again = [&](auto const& each) { return each.tensor.is_same(tensor); };
    if (std::any_of(part.parameters.begin(), part.parameters.end(), again)) return;
    if (tensor.dim() > shape::max_rank || tensor.storage_offset() != 0 ||
        tensor.storage().nbytes() != tensor.nbytes()) {
      throw config_error(text("trireme::interop::torch_sequential: parameter \"", at->name,
                              "\" shares its memory with another tensor, or has more than ", shape::max_rank,
                              " dimensions; give it memory of its own, as clone() does"));
    }
    part.parameters.push_back(*at);
  }
};

/// A unit of a sequence: a child with parameters and the children without parameters that follow it; the last unit has
/// the loss as well.
///
/// Bytes    autograd's graph of each micro-batch in flight: the tensors that torch saves for backward, the unit's
///          output included. Parameters use the exchange's memory while the unit runs, and have no memory otherwise.
struct sequence_unit {
  std::shared_ptr<sequence const> of;
  std::size_t part = 0;

  template <class Env>
  class instance;
};

template <class Env>
class sequence_unit::instance {
  using number = typename Env::compute;
  using view = tensor_view<number, typename Env::space>;
  static_assert(std::is_same_v<typename Env::space, host>,
                "trireme::interop::torch_sequential: torch's modules compute in host memory, so there is no plan of "
                "them on paper, and no communicator of device memory");

 public:
  /// The tensors of a micro-batch from which backward starts.
  struct saved {
    torch::Tensor x{}, y{}, dx{}, dy{};
    double count = -1;  // of the targets in the loss, if this is the last unit; < 0: the loss is a mean
  };

  explicit instance(sequence_unit const& what) : of_(what.of), part_(of_->parts[what.part]) {
    is_first_ = what.part == 0;
    is_last_ = what.part + 1 == of_->parts.size();
    auto const wanted = torch_type(dtype_of<typename Env::param>);
    for (auto const& [name, tensor] : part_.parameters) {
      if (tensor.scalar_type() != wanted) {
        throw config_error(text("trireme::interop::torch_sequential: parameter \"", name, "\" has elements of ",
                                c10::toString(tensor.scalar_type()), ", but this trainer keeps ", c10::toString(wanted),
                                "; convert it with to() before, and choose a precision to compute in another type"));
      }
      parameter_info info{.name = name, .extents = shape_of(tensor)};
      info.frozen = !tensor.requires_grad();
      parameters_.push_back({std::move(info), {}, {}});
    }
  }

  template <class F>
  void visit(F&& f) {
    for (auto& each : parameters_) f(each);
  }

  view forward(pass<Env>& pass, saved& kept, view x) {
    lent_memory values;
    lend(values);
    torch::AutoGradMode const mode(pass.training());
    kept = {};
    kept.x = is_first_ ? tensor_of(pass.batch.inputs) : tensor_of(x);
    if (!is_first_ && pass.training()) kept.x.requires_grad_(true);
    kept.y = cast([&] { return run(kept, pass); });
    if (!is_last_) return shown(kept.y);
    if (pass.purpose == purpose::predict) return shown(kept.y, {kept.y.size(0), -1});
    auto const count = pass.batch.count();
    auto const loss = kept.y.template item<double>();
    pass.loss += kept.count < 0 ? loss_sum{loss * static_cast<double>(count), count}
                                : trireme::sum_of({loss, kept.count}, count);
    return {};
  }
  view backward(pass<Env>& pass, saved& kept, view dy) {
    lent_memory values;
    lend(values);
    auto inputs = trained();
    auto const own = inputs.size();
    if (!is_first_) inputs.push_back(kept.x);
    auto const found = gradients(kept.y, inputs, slope(pass, kept, dy), false);
    add({found.begin(), found.begin() + static_cast<std::ptrdiff_t>(own)});
    if (!is_first_) kept.dx = found.back();
    return end(kept);
  }
  view backward_input(pass<Env>& pass, saved& kept, view dy) {
    kept.dy = slope(pass, kept, dy).clone();  // dy is overwritten before the other half runs
    if (is_first_) return {};
    lent_memory values;
    lend(values);
    kept.dx = gradients(kept.y, {kept.x}, kept.dy, true).front();
    return dx_of(kept);
  }
  void backward_weight(pass<Env>&, saved& kept) {
    lent_memory values;
    lend(values);
    add(gradients(kept.y, trained(), kept.dy, false));
    static_cast<void>(end(kept));
  }

 private:
  using tensors = torch::autograd::variable_list;

  void lend(lent_memory& values) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      values.lend(part_.parameters[i].tensor, parameters_[i].value.address());
  }
  torch::Tensor run(saved& kept, pass<Env> const& pass) {
    auto h = kept.x;
    for (auto child = part_.first; child < part_.last; ++child) {
      auto any = of_->children[child];
      if (any.ptr()->is_training() != pass.training()) any.ptr()->train(pass.training());
      h = any.forward(h);
    }
    if (!is_last_ || pass.purpose == purpose::predict) return h;
    auto const loss = of_->loss(h, interop::detail::tensor_of(pass.batch.targets));
    kept.count = loss.count;
    return loss.sum;
  }
  template <class F>
  static torch::Tensor cast(F&& f) {
    constexpr auto type = torch_type(dtype_of<casts_to<typename Env::precision>>);
    if constexpr (type == torch_type(dtype_of<number>)) {
      return f();
    } else {
      autocast const guard(type);
      return f();
    }
  }

  static torch::Tensor tensor_of(view values) { return interop::detail::tensor_of(erase_type(values)); }
  static torch::Tensor tensor_of(any_view<> const& values) { return interop::detail::tensor_of(values); }
  // y as the next unit reads it, in y's memory.
  static view shown(torch::Tensor& y) { return shown(y, y.sizes()); }
  static view shown(torch::Tensor& y, at::IntArrayRef sizes) {
    if (y.dim() > shape::max_rank) {
      throw config_error(text("trireme::interop::torch_sequential: an output has ", y.dim(), " dimensions; up to ",
                              shape::max_rank, " pass between units"));
    }
    y = y.to(torch_type(dtype_of<number>)).reshape(sizes).contiguous();
    return view_of<number>(y);
  }

  // The gradient of y: that of the next unit, or the weight of this micro-batch in the loss of the step.
  torch::Tensor slope(pass<Env> const& pass, saved const& kept, view dy) const {
    if (!is_last_) return tensor_of(dy);
    return torch::full_like(kept.y,
                            kept.count < 0 ? pass.weight * static_cast<double>(pass.batch.count()) : pass.weight);
  }
  [[nodiscard]] tensors trained() const {
    tensors list;
    for (auto const& each : part_.parameters) {
      if (each.tensor.requires_grad()) list.push_back(each.tensor);
    }
    return list;
  }
  // A gradient is undefined if y does not depend on that input.
  static tensors gradients(torch::Tensor const& y, tensors const& inputs, torch::Tensor const& dy, bool again) {
    if (inputs.empty() || !y.requires_grad()) return tensors(inputs.size());
    return torch::autograd::grad({y}, inputs, {dy}, again, false, true);
  }
  void add(tensors const& found) {
    auto next = found.begin();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!part_.parameters[i].tensor.requires_grad()) continue;
      auto const& gradient = *next++;
      if (gradient.defined()) tensor_of(parameters_[i].gradient).add_(gradient);
    }
  }
  view dx_of(saved& kept) const {
    if (is_first_) return {};
    if (!kept.dx.defined()) kept.dx = torch::zeros_like(kept.x);
    kept.dx = kept.dx.contiguous();
    return view_of<number>(kept.dx);
  }
  // Releases the graph. dx is kept until the previous unit has read it.
  view end(saved& kept) const {
    auto const dx = dx_of(kept);
    kept.x = kept.y = kept.dy = torch::Tensor();
    return dx;
  }

  std::shared_ptr<sequence const> of_;
  sequence_stage const& part_;
  bool is_first_ = false;
  bool is_last_ = false;
  std::vector<parameter<Env>> parameters_{};
};

}  // namespace detail

/// A torch::nn::Sequential and a loss as a staged model: made by torch_sequential().
class torch_sequential_model {
 public:
  using policy_category = slot::model;
  /// Under precision::bf16 and fp16 each unit runs under torch's autocast.
  static constexpr bool casts_inside = true;

  explicit torch_sequential_model(std::shared_ptr<detail::sequence const> of) : of_(std::move(of)) {}

  template <class Emit>
  void units(Emit&& put) const {
    for (std::size_t part = 0; part < of_->parts.size(); ++part) put(detail::sequence_unit{of_, part});
  }
  /// The weights by which pipelines are cut if parallel::pipeline{.cuts} is empty: numbers of parameter elements.
  [[nodiscard]] std::vector<double> unit_costs() const {
    std::vector<double> costs;
    for (auto const& part : of_->parts) {
      double sum = 0;
      for (auto const& each : part.parameters) sum += static_cast<double>(each.tensor.numel());
      costs.push_back(sum);
    }
    return costs;
  }

  /// Buffers (running statistics, for example) lie in the module's own memory; every rank has all of them.
  template <class Visit>
  void visit_buffers(Visit&& visit) const {
    for (std::size_t part = 0; part < of_->parts.size(); ++part) {
      for (auto const& each : of_->parts[part].buffers) {
        detail::show_buffer("torch_sequential", each, [&](char const* name, auto values) {
          visit(name, values, static_cast<std::int64_t>(part));
        });
      }
    }
  }

  template <class T>
  void start(parameter_info const& info, std::int64_t first, std::span<T> values) const {
    auto const& [name, tensor] = of_->named(info.name);
    expect_memory(name, tensor);
    auto const n = static_cast<std::int64_t>(values.size());
    auto const part = tensor.detach().flatten().slice(0, first, first + n);
    torch::from_blob(values.data(), {n}, at::TensorOptions().dtype(detail::torch_type(dtype_of<T>))).copy_(part);
  }
  [[nodiscard]] std::uint64_t start_hash() const {
    std::uint64_t sum = 0;
    for (auto const& part : of_->parts) {
      for (auto const& [name, tensor] : part.parameters) {
        expect_memory(name, tensor);
        sum = mix(sum ^ (tensor.requires_grad() ? 1U : 0U));
        sum = mix(sum ^ hash_name({static_cast<char const*>(tensor.data_ptr()), tensor.nbytes()}));
      }
      for (auto const& [name, tensor] : part.buffers)
        sum = mix(sum ^ hash_name({static_cast<char const*>(tensor.data_ptr()), tensor.nbytes()}));
    }
    return sum;
  }
  [[nodiscard]] std::shared_ptr<torch::nn::SequentialImpl> const& module() const noexcept { return of_->module; }

  /// Lists the children, and the parameters of each unit with their shapes.
  friend std::string to_string(torch_sequential_model const& model) {
    std::string out = "interop::torch_sequential(";
    for (auto const& part : model.of_->parts) {
      for (auto child = part.first; child < part.last; ++child)
        out += text(child == 0 ? "" : ", ", model.of_->children[child].ptr()->name());
      for (auto const& each : part.parameters) out += text(" ", each.name, to_string(detail::shape_of(each.tensor)));
    }
    return out + ")";
  }

 private:
  static void expect_memory(std::string const& name, torch::Tensor const& tensor) {
    if (detail::has_memory(tensor)) return;
    throw config_error(text("trireme::interop::torch_sequential: parameter \"", name,
                            "\" has no memory, because a trainer has its values; take_values(trainer, module) gives "
                            "them back"));
  }

  std::shared_ptr<detail::sequence const> of_;
};

/// A torch::nn::Sequential and a loss as a model for make_trainer whose children are units. Besides the strategies of
/// torch_model it supports parallel::zero<3> (the parameters of a child are gathered before its forward and before its
/// backward, and released after each) and pipelines (children are distributed over the stages).
///
/// Children a unit is a child with parameters and the children without parameters that follow it (those before the
///          first such child belong to its unit); the last unit also has the loss. Each child has forward(Tensor) ->
///          Tensor. A tensor of several children (tied weights) is one parameter.
/// Shapes   the first child gets inputs in the dataset's shape, (n, ...). Tensors between units have up to 6
///          dimensions. predict() returns (rows of the last output, the rest).
/// Bytes    the trainer copies the values. From its first pass on the module's parameters have memory only while their
///          unit runs; take_values() restores them. Activations are the tensors that autograd saves; nothing is
///          computed twice, because a saved view of a parameter reads the memory that the parameter has in backward.
/// Ranks    every rank makes the whole module, with the same values (interop::broadcast makes them equal; otherwise it
///          is a config_error).
/// Numerics parameters are float, or double with precision::fp64. Under bf16 and fp16 children and loss run under
///          torch's autocast, and tensors between units are float. Parameters that a batch does not use have gradients
///          of zeros. As for other models of units: with one micro-batch a rank, and without tied tensors, zero<3> has
///          the bits of data; a pipeline has the bits of one rank with equally many micro-batches if its schedule adds
///          them in their order; otherwise the order of sums differs.
/// Buffers  (running statistics) stay in the module, and each rank changes those of its units, once a micro-batch. They
///          are in checkpoints and hashes. Where several ranks have a unit, those of the first of them are copied to
///          the others before the trainer evaluates, saves or hashes, and at the end of fit().
/// Threads  one owner; ranks that are threads have a module each.
/// Errors   config_error for parameters of another type or that share memory, for a buffer that belongs to several
///          units or is not float, double, int64 or int32, and for a loss that is not one number; the errors of
///          make_trainer.
///
/// @param loss  as for torch_model.
/// @example auto trainer = make_trainer(interop::torch_sequential(net, torch::nn::MSELoss()), optim::adamw{}, world,
///                                      parallel::zero<3>{});
template <class Loss>
[[nodiscard]] torch_sequential_model torch_sequential(torch::nn::Sequential const& module, Loss loss) {
  auto counted = [loss = std::move(loss)](torch::Tensor const& outputs, torch::Tensor const& targets) mutable {
    return detail::loss_of(loss, outputs, targets, "torch_sequential");
  };
  return torch_sequential_model(std::make_shared<detail::sequence const>(module.ptr(), std::move(counted)));
}

/// Collective. Copies the values and buffers of a trainer of torch_sequential() into a module with the same parameters:
/// into the trainer's own module, whose parameters then have memory until the trainer's next pass, or into another one.
/// Use it to save the module, or to continue without the trainer.
///
/// Bytes    one tensor at a time in addition to the module.
/// Errors   config_error if a parameter or a buffer is missing; comm_error.
template <class Trainer>
void take_values(Trainer& trainer, torch::nn::Sequential const& module) {
  using master = typename Trainer::master;
  torch::NoGradGuard const guard;
  auto const all = detail::parameters_of(*module);
  trainer.for_each_parameter([&](std::string const& name, shape const& extents, std::span<master const> values) {
    auto const at = std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.name == name; });
    if (at == all.end() || detail::shape_of(at->tensor) != extents) {
      throw config_error(
          text("trireme::interop::take_values: the module has no parameter \"", name, "\"", to_string(extents)));
    }
    auto tensor = at->tensor;
    if (!detail::has_memory(tensor)) tensor.set_data(torch::empty(tensor.sizes(), tensor.options()));
    tensor.copy_(torch::from_blob(const_cast<master*>(values.data()), tensor.sizes(),
                                  at::TensorOptions().dtype(detail::torch_type(dtype_of<master>))));
  });
  trainer.synchronise_buffers();
  auto const buffers = detail::buffers_of(*module);
  for (auto const& each : detail::buffers_of(*trainer.described_model().module())) {
    auto const at = std::find_if(buffers.begin(), buffers.end(), [&](auto const& it) { return it.name == each.name; });
    if (at == buffers.end() || at->tensor.sizes() != each.tensor.sizes()) {
      throw config_error(text("trireme::interop::take_values: the module has no buffer \"", each.name, "\"",
                              to_string(detail::shape_of(each.tensor))));
    }
    auto tensor = at->tensor;
    if (!tensor.is_same(each.tensor)) tensor.copy_(each.tensor);
  }
}

}  // namespace trireme::interop
