#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/ops/host.hpp"

namespace trireme::interop::detail {

/// The kernels of an exchange of gradients (parallel::data without a compressor), made of torch's operations, for a
/// memory space that has a torch_space: derive ops::on<Space> from it. They are queued on the space's stream, if it has
/// one.
///
/// Numerics the squares of float and double are summed in double in blocks of 1024, whose sums are added exactly.
template <class Space>
struct torch_kernels {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = tensor_view<std::type_identity_t<T> const, Space>;

  template <class T>
  static void fill(view<T> y, double value) {
    queued(y, [&](auto const& to) { to.fill_(value); });
  }
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    queued(y, [&](auto const& to) { to.copy_(tensor_over(x)); });
  }
  template <class T>
  static void add(view<T> y, input<T> x) {
    queued(y, [&](auto const& to) { to.add_(tensor_over(x)); });
  }
  template <class T>
  static void scale(view<T> y, double factor) {
    queued(y, [&](auto const& to) { to.mul_(factor); });
  }
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double weight) {
    queued(y, [&](auto const& to) { to.add_(tensor_over(x), weight); });
  }
  /// Each output = the sum of the terms, in their order.
  template <class T>
  static void reduce(std::span<view<T> const> outputs, std::span<view<T const> const> terms, reduction::sum) {
    queued(terms[0], [&](auto const& first) {
      auto sum = first.clone();
      for (auto const& each : terms.subspan(1)) sum.add_(tensor_over(each));
      for (auto const& each : outputs) tensor_over(each).copy_(sum);
    });
  }
  template <class G>
  static void sum_of_squares(view<G> x, exact_sum& total) {
    queued(x, [&](auto const& from) {
      constexpr std::int64_t block = 1024;
      auto const squares = from.to(at::kDouble).square();
      auto const whole = squares.numel() / block * block;
      auto const sums =
          torch::cat({squares.slice(0, 0, whole).view({-1, block}).sum(1), squares.slice(0, whole).sum().reshape({1})})
              .cpu();
      for (std::int64_t i = 0; i < sums.numel(); ++i) total.add(sums.template data_ptr<double>()[i]);
    });
  }
  template <class T>
  [[nodiscard]] static bool finite(view<T> x) {
    bool all = true;
    queued(x, [&](auto const& from) { all = torch::isfinite(from).all().template item<bool>(); });
    return all;
  }
  /// Copies from the space to the host, and back: for checks and state.
  template <class T>
  static void download(std::span<T> to, view<T const> from) {
    queued(from, [&](auto const& there) {
      auto const copied = there.cpu();
      std::memcpy(to.data(), copied.data_ptr(), to.size_bytes());
    });
  }
  template <class T>
  static void upload(view<T> to, std::span<T const> from) {
    queued(to, [&](auto const& there) {
      auto const options = at::TensorOptions().dtype(torch_type(dtype_of<T>));
      there.copy_(torch::from_blob(const_cast<T*>(from.data()), {static_cast<std::int64_t>(from.size())}, options));
    });
  }
  /// Start values of the elements from index `first` on, computed on the host.
  template <class T>
  static void initialise(view<T> y, initial start, std::uint64_t seed, std::uint64_t name, std::int64_t first) {
    std::vector<T> values(static_cast<std::size_t>(y.size()));
    ops::on<host>::initialise(tensor_view<T>(values), start, seed, name, first);
    upload(y, std::span<T const>(values));
  }
  /// Computed on the host from a copy; used for checks at the start.
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t first_index) {
    std::uint64_t sum = 0;
    queued(x, [&](auto const& from) {
      auto const copied = from.cpu();
      tensor_view<T const> const here(static_cast<T const*>(copied.data_ptr()), shape{copied.numel()});
      sum = ops::on<host>::hash(here, name, first_index);
    });
    return sum;
  }

 private:
  template <class T>
  static torch::Tensor tensor_over(view<T> x) {
    using element = std::remove_const_t<T>;
    auto const options = at::TensorOptions().device(torch_space<Space>::device).dtype(torch_type(dtype_of<element>));
    return torch::from_blob(const_cast<element*>(x.address()), {x.size()}, options);
  }
  template <class T, class F>
  static void queued(view<T> x, F&& f) {
    if (x.empty()) return;
    [[maybe_unused]] typename torch_space<Space>::on_stream const guard;
    torch::NoGradGuard const no_grad;
    f(tensor_over(x));
  }
};

}  // namespace trireme::interop::detail
