#pragma once

#include <torch/torch.h>

#include <variant>
#include <vector>

#include "trireme/interop/detail/torch_module.hpp"

namespace trireme::interop::detail {

/// A reference to a module of any kind: derived from torch::nn::Module, an AnyModule or a TorchScript module. The
/// module must outlive it.
class any_module {
 public:
  any_module(torch::nn::Module const& module) : module_(&module) {}
  any_module(torch::nn::AnyModule const& module) : module_(&module) {}
  any_module(torch::jit::Module const& module) : module_(&module) {}

  [[nodiscard]] named_tensors named_parameters() const {
    return std::visit([](auto const* module) { return named_parameters_of(*module); }, module_);
  }
  [[nodiscard]] named_tensors named_buffers() const {
    return std::visit([](auto const* module) { return named_buffers_of(*module); }, module_);
  }
  /// The parameters without names, which takes less time.
  [[nodiscard]] std::vector<torch::Tensor> parameters() const {
    return std::visit([](auto const* module) { return plain_parameters_of(*module); }, module_);
  }
  /// An address that is equal for all handles of one module.
  [[nodiscard]] void const* identity() const {
    return std::visit([](auto const* module) { return identity_of(*module); }, module_);
  }
  /// The tables of embeddings whose gradients are sparse.
  [[nodiscard]] std::vector<torch::Tensor> tables_of_rows() const {
    return std::visit([](auto const* module) { return detail::tables_of_rows(*module); }, module_);
  }

 private:
  std::variant<torch::nn::Module const*, torch::nn::AnyModule const*, torch::jit::Module const*> module_;
};

}  // namespace trireme::interop::detail
