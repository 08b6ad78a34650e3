#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/interop/detail/torch_module.hpp"

namespace trireme::interop {

/// The ranks over which a module's layers are split: a communicator whose type the module need not name.
///
/// Ranks    construction is collective: it duplicates the communicator, so that these messages may be mixed with others
///          (data_parallel's buckets) in a different order on each rank. Copies share the duplicate: make one
///          rank_group for all layers.
/// Threads  one caller at a time; all ranks make their calls in the same order, so all of them run the same graph.
/// Errors   comm_error from the communicator.
class rank_group {
 public:
  rank_group() = default;  ///< one rank
  template <class Comm>
  requires communicator<Comm>
  explicit rank_group(Comm& world) : inner_(c10::make_intrusive<inner_of<Comm>>(world.duplicate())) {}

  [[nodiscard]] int rank() const { return inner_ ? inner_->rank() : 0; }
  [[nodiscard]] int size() const { return inner_ ? inner_->size() : 1; }

  /// Collective. Sums a tensor over the ranks, in place and in rank order; Half and BFloat16 are summed in float.
  /// Errors  config_error unless it is a dense CPU tensor of one of these types, float or double.
  void add_up(torch::Tensor const& numbers) const {
    if (size() == 1) return;
    auto const type = numbers.scalar_type();
    if (!numbers.is_contiguous() || !numbers.device().is_cpu() || !numbers.is_floating_point()) {
      throw config_error(text(
          "trireme::interop::rank_group: a tensor of ", c10::toString(type), " with ", numbers.dim(),
          " dimensions is not a dense one of floating-point numbers of the CPU; contiguous() and to() make it one"));
    }
    if (type == at::kDouble) return inner_->add_up(detail::view_of<double>(numbers).flat());
    if (type == at::kFloat) return inner_->add_up(detail::view_of<float>(numbers).flat());
    auto const wide = numbers.to(at::kFloat);
    inner_->add_up(detail::view_of<float>(wide).flat());
    numbers.copy_(wide);
  }

  /// Conversions for torch::autograd::AutogradContext::saved_data.
  [[nodiscard]] c10::IValue packed() const { return c10::IValue::make_capsule(inner_ ? inner_ : alone()); }
  [[nodiscard]] static rank_group unpacked(c10::IValue const& value) {
    return rank_group(c10::static_intrusive_pointer_cast<inner>(value.toCapsule()));
  }

 private:
  struct inner : torch::CustomClassHolder {
    [[nodiscard]] virtual int rank() const { return 0; }
    [[nodiscard]] virtual int size() const { return 1; }
    virtual void add_up(tensor_view<float>) {}
    virtual void add_up(tensor_view<double>) {}
  };
  template <class Comm>
  struct inner_of final : inner {
    explicit inner_of(Comm own) : world(std::move(own)) {}
    int rank() const override { return world.rank(); }
    int size() const override { return world.size(); }
    void add_up(tensor_view<float> numbers) override { world.all_reduce(numbers, reduction::sum{}); }
    void add_up(tensor_view<double> numbers) override { world.all_reduce(numbers, reduction::sum{}); }
    Comm world;
  };
  explicit rank_group(c10::intrusive_ptr<inner> of) : inner_(std::move(of)) {}
  [[nodiscard]] static c10::intrusive_ptr<inner> alone() { return c10::make_intrusive<inner>(); }

  c10::intrusive_ptr<inner> inner_;
};

}  // namespace trireme::interop
