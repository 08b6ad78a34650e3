#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "trireme/comm/comm.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/interop/detail/torch_module.hpp"

namespace trireme::interop {

namespace detail {

/// A communicator, of any memory space and with any capabilities.
template <class Comm>
concept some_world = has_rank<Comm> && has_size<Comm>;

/// Checks that a communicator of this space can read and write the tensor's memory.
/// Errors  config_error for a tensor without memory, on another device, or not dense.
template <class Space>
void expect_sendable(char const* call, torch::Tensor const& tensor) {
  if (!tensor.defined()) throw config_error(text("trireme::interop::", call, ": the tensor is undefined"));
  if (tensor.layout() != at::kStrided) {
    throw config_error(text("trireme::interop::", call, ": the tensor is sparse; to_dense() makes it dense"));
  }
  if (tensor.device().type() != torch_space<Space>::device) {
    throw config_error(text("trireme::interop::", call, ": the tensor is one of ", tensor.device().str(),
                            ", but this communicator's ranks share memory of ", torch_space<Space>::here().str(),
                            "; move it with to()"));
  }
}
[[noreturn]] inline void refuse_reduction(torch::Tensor const& tensor, char const* instead) {
  throw config_error(text("trireme::interop::all_reduce: a tensor of ", c10::toString(tensor.scalar_type()),
                          " does not go with this reduction; ", instead));
}

/// Reduces a row of elements of type T.
template <class T, class Comm, class Op>
void reduce_as(Comm& world, torch::Tensor const& row, Op op) {
  using space = typename space_of<Comm>::type;
  tensor_view<T, space> const values(static_cast<T*>(row.data_ptr()), shape{row.numel()});
  if constexpr (std::is_integral_v<T> && std::is_same_v<Op, reduction::mean>) {
    refuse_reduction(row, "convert it to a floating-point type for a mean");
  } else if constexpr (requires { world.all_reduce(values, op); }) {
    world.all_reduce(values, op);
  } else {
    refuse_reduction(row, "this communicator cannot do it: convert the tensor to Float, or use another reduction");
  }
}
template <class Comm, class Op>
void reduce_row(Comm& world, torch::Tensor const& row, Op op) {
  constexpr bool compares = std::is_same_v<Op, reduction::max> || std::is_same_v<Op, reduction::min>;
  switch (row.scalar_type()) {
    case at::kFloat:
      return reduce_as<float>(world, row, op);
    case at::kDouble:
      return reduce_as<double>(world, row, op);
    case at::kBFloat16:
      return reduce_as<bfloat16>(world, row, op);
    case at::kHalf:
      return reduce_as<float16>(world, row, op);
    case at::kLong:
      return reduce_as<std::int64_t>(world, row, op);
    case at::kInt:
      return reduce_as<std::int32_t>(world, row, op);
    case at::kChar:
      return reduce_as<std::int8_t>(world, row, op);
    case at::kByte:
      return reduce_as<std::uint8_t>(world, row, op);
    case at::kBool:
      if (!compares) refuse_reduction(row, "reduction::max is true where any rank has true, min where all have");
      return reduce_as<std::uint8_t>(world, row, op);
    default:
      refuse_reduction(row, "supported are Float, Double, BFloat16, Half, Long, Int, Char, Byte, Bool and complex");
  }
}
/// Calls f with a row-major tensor of the same numbers, and copies what f has written back to `tensor`.
/// Errors  config_error for a tensor whose elements share memory.
template <class F>
void in_rows(char const* call, torch::Tensor const& tensor, F&& f) {
  torch::NoGradGuard const guard;
  auto const rows = tensor.detach();
  bool const is_lazy = rows.is_conj() || rows.is_neg();  // its memory has other numbers than it
  if (rows.is_contiguous() && !is_lazy) return f(rows);
  for (std::int64_t i = 0; i < rows.dim(); ++i) {
    if (rows.stride(i) != 0 || rows.size(i) < 2) continue;
    throw config_error(text("trireme::interop::", call,
                            ": the tensor is expanded, so its elements share memory and cannot be written one by one; "
                            "clone() it first"));
  }
  auto const copied = is_lazy ? rows.resolve_conj().resolve_neg().contiguous() : rows.contiguous();
  f(copied);
  rows.copy_(copied);
}

}  // namespace detail

/// Collective. Sums (or reduces by `op`) a tensor over all ranks, in place; autograd does not record it.
///
/// For numbers on which a loop decides (the mean of a loss, say): every rank then decides alike.
///
/// Shapes   equal on all ranks.
/// Numerics in rank order; the same bits on every rank. Complex numbers are summed as pairs.
/// Errors   config_error for a type that the reduction does not support (Bool has only max and min, integers have no
///          mean); comm_error from the world.
///
/// @returns the tensor.
/// @example auto const mean = interop::all_reduce(world, loss.detach().clone(), reduction::mean{}).item<float>();
template <detail::some_world Comm, class Op = reduction::sum>
torch::Tensor all_reduce(Comm& world, torch::Tensor const& tensor, Op op = {}) {
  using space = typename space_of<Comm>::type;
  detail::expect_sendable<space>("all_reduce", tensor);
  [[maybe_unused]] typename detail::torch_space<space>::in_order const order;
  detail::in_rows("all_reduce", tensor, [&](torch::Tensor const& rows) {
    constexpr bool sums = std::is_same_v<Op, reduction::sum> || std::is_same_v<Op, reduction::mean> ||
                          std::is_same_v<Op, reduction::pairwise>;
    if (rows.is_complex() && !sums) detail::refuse_reduction(rows, "complex numbers have no order");
    detail::reduce_row(world, detail::row_of(rows), op);
  });
  return tensor;
}

/// Collective. Copies `root`'s tensor to every rank, in place. Any type.
///
/// Shapes   and types are equal on all ranks.
/// @returns the tensor.
template <detail::some_world Comm>
torch::Tensor broadcast(Comm& world, torch::Tensor const& tensor, int root = 0) {
  using space = typename space_of<Comm>::type;
  detail::expect_sendable<space>("broadcast", tensor);
  [[maybe_unused]] typename detail::torch_space<space>::in_order const order;
  detail::in_rows("broadcast", tensor,
                  [&](torch::Tensor const& rows) { world.broadcast(detail::bytes_of<space>(rows), root); });
  return tensor;
}

/// Collective. Stacks the tensors of all ranks in rank order: (...) becomes (ranks, ...). Any type.
///
/// Shapes   and types are equal on all ranks.
/// @example auto const losses = interop::all_gather(world, loss.detach());   // of each rank
template <detail::some_world Comm>
[[nodiscard]] torch::Tensor all_gather(Comm& world, torch::Tensor const& tensor) {
  using space = typename space_of<Comm>::type;
  detail::expect_sendable<space>("all_gather", tensor);
  [[maybe_unused]] typename detail::torch_space<space>::in_order const order;
  torch::NoGradGuard const guard;
  auto extents = tensor.sizes().vec();
  extents.insert(extents.begin(), world.size());
  auto all = torch::empty(extents, tensor.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous));
  all[world.rank()].copy_(tensor.detach());
  world.all_gather(detail::bytes_of<space>(all));
  return all;
}

}  // namespace trireme::interop
