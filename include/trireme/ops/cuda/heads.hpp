#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/heads_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/heads.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// The tables of rotations that a thread has used last, on each device: layers ask for the same ones again and again.
/// They are made on the host, so that they have its bits.
class cuda_rotations {
 public:
  struct wanted {
    std::int64_t positions = 0, first = 0, width = 0;
    double base = 0;
    rotary_scaling scaling{};
    std::size_t bytes_of_number = 0;
    int device = 0;
    TRIREME_EXACT_BEGIN
    friend bool operator==(wanted const&, wanted const&) = default;
    TRIREME_EXACT_END
  };

  cuda_rotations() = default;
  cuda_rotations(cuda_rotations const&) = delete;
  cuda_rotations& operator=(cuda_rotations const&) = delete;
  [[nodiscard]] static cuda_rotations& of_thread() {
    (void)cuda::stream();  // made first, so it ends after the memory that it copies from
    thread_local cuda_rotations all;
    return all;
  }

  template <class A>
  [[nodiscard]] A const* find(wanted const& what) {
    for (auto const& each : tables_)
      if (each.memory.address() != nullptr && each.of == what) return static_cast<A const*>(each.memory.address());
    auto& oldest = tables_[next_];
    next_ = (next_ + 1) % tables_.size();
    auto const made = values<A>(what);
    auto const bytes = made.size() * sizeof(A);
    bool const fits = bytes <= oldest.memory.bytes() && oldest.of.device == what.device;
    oldest.of = {.device = what.device};  // until it is filled
    if (!fits) oldest.memory.replace("trireme::ops: a table of rotations in CUDA memory", bytes);
    auto* const to = static_cast<A*>(oldest.memory.address());
    cuda_elements::upload(tensor_view<A, cuda>(to, shape{static_cast<std::int64_t>(made.size())}), made);
    oldest.of = what;
    return to;
  }
  template <class A>
  [[nodiscard]] static std::vector<A> values(wanted const& what) {
    std::vector<A> made(static_cast<std::size_t>(what.positions * what.width));
    rotation_table(made.data(), what.positions, what.first, what.width, what.base, what.scaling);
    return made;
  }

 private:
  struct kept {
    wanted of{};
    trireme::detail::cuda_stream_memory memory;
  };
  std::array<kept, 8> tables_{};
  std::size_t next_ = 0;
};

}  // namespace detail

/// Heads in the order that attention needs, and their norms, in CUDA memory: see host_heads, whose shapes and checks
/// these functions have.
///
/// Numerics the host's bits for rotations and arrange_heads in float, bfloat16 and float16; sums of a norm, and of the
///          gradients of its gains, have an order of their own that depends on the shapes alone.
/// Bytes    the 8 tables of rotations that a thread has used last; scratch memory of normalise_heads_backward: 8 D
///          bytes (16 D for double) for each 32 rows, and at least for each of up to 1024 rows.
struct cuda_heads {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// Waits for the stream only if a table of more than 4 MiB is not among those that are kept.
  template <class A>
  requires std::is_floating_point_v<A>
  static void rotations(view<A> table, std::int64_t first, double base, rotary_scaling const& scaling = {}) {
    detail::same_size("rotations", table.extent(1) % 2, 0);
    if (table.empty()) return;
    detail::cuda_rotations::wanted what{table.extent(0), first, table.extent(1), base, scaling, sizeof(A)};
    // A generated word has a position of its own, which no later pass asks for.
    if (table.size() <= 4096) return cuda_elements::upload(table, detail::cuda_rotations::values<A>(what));
    detail::expect_cuda("rotations", ::cudaGetDevice(&what.device));
    auto const* const made = detail::cuda_rotations::of_thread().find<A>(what);
    detail::expect_cuda("rotations",
                        ::cudaMemcpyAsync(raw(table), made, table.bytes(), cudaMemcpyDeviceToDevice, cuda::stream()));
  }

  /// qkv may be x if there are as many keys as queries.
  template <detail::cuda_float T>
  static void arrange_heads(view<T> qkv, input<T> x, input<accumulate_t<T>> table, head_layout const& how) {
    auto const n = arranged("arrange_heads", how, x.size(), qkv.size(), table.size());
    detail::expect_cuda("arrange_heads", cuda_kernels::arrange_heads(cuda::stream(), dtype_of<T>, raw(qkv), raw(x),
                                                                     table.empty() ? nullptr : raw(table), how, n));
  }
  /// dx is written, and may be dqkv if there are as many keys as queries.
  template <detail::cuda_float T>
  static void arrange_heads_backward(view<T> dx, input<T> dqkv, input<accumulate_t<T>> table, head_layout const& how) {
    auto const n = arranged("arrange_heads_backward", how, dx.size(), dqkv.size(), table.size());
    detail::expect_cuda("arrange_heads_backward",
                        cuda_kernels::arrange_heads_backward(cuda::stream(), dtype_of<T>, raw(dx), raw(dqkv),
                                                             table.empty() ? nullptr : raw(table), how, n));
  }

  /// y may be x.
  template <detail::cuda_float T>
  static void normalise_heads(view<T> y, output<accumulate_t<T>> rstd, input<T> x, input<T> query_gain,
                              input<T> key_gain, head_layout const& how, double epsilon) {
    auto const norms = normalised<T>("normalise_heads", how, y.size(), rstd, x, query_gain, key_gain);
    detail::expect_cuda("normalise_heads", cuda_kernels::normalise_heads(cuda::stream(), norms, raw(y), epsilon));
  }
  /// dx is written, and may be dy; the gradients of the gains are added to.
  template <detail::cuda_float T>
  static void normalise_heads_backward(view<T> dx, output<accumulate_t<T>> dquery_gain,
                                       output<accumulate_t<T>> dkey_gain, input<T> dy, input<T> x,
                                       input<accumulate_t<T>> rstd, input<T> query_gain, input<T> key_gain,
                                       head_layout const& how) {
    constexpr auto who = "normalise_heads_backward";
    view<accumulate_t<T>> const read_only(const_cast<accumulate_t<T>*>(raw(rstd)), rstd.extents());  // as the call says
    auto const norms = normalised<T>(who, how, dx.size(), read_only, x, query_gain, key_gain);
    detail::same_size(who, dy.size(), x.size());
    for (auto const size : {dquery_gain.size(), dkey_gain.size()}) detail::same_size(who, size, how.width);
    if (norms.rows == 0) return;
    auto* const scratch = detail::cuda_scratch(who, static_cast<std::size_t>(cuda_kernels::bytes_of_head_gains(norms)));
    detail::expect_cuda(who, cuda_kernels::normalise_heads_backward(cuda::stream(), norms, raw(dx), raw(dy),
                                                                    raw(dquery_gain), raw(dkey_gain), scratch));
  }

  /// The keys that each position may attend to: see host_visible_keys. Waits for the stream if there is a padding
  /// token, because padding between words is an error.
  static void visible_keys(view<std::int32_t> seen, view<std::int32_t const> tokens, token_mask const& how) {
    detail::same_size("visible_keys", seen.size(), 2 * tokens.size());
    if (tokens.empty()) return;
    auto const context = tokens.extent(1);
    auto const launch = [&](unsigned long long* first_refused) {
      return cuda_kernels::visible_keys(cuda::stream(), raw(seen), raw(tokens), tokens.extent(0), context, how,
                                        first_refused);
    };
    if (how.padding < 0) return detail::expect_cuda("visible_keys", launch(nullptr));
    auto const refused = detail::cuda_result<unsigned long long, 1>("visible_keys", launch)[0];
    if (refused == 0) return;
    auto const at = static_cast<std::int64_t>(~refused);
    throw config_error(text("trireme::nn::attend: sample ", at / context, " of a micro-batch has the padding token ",
                            how.padding, " at position ", at % context,
                            ", between words; pad samples at their ends only"));
  }

 private:
  static std::int64_t arranged(char const* who, head_layout const& how, std::int64_t x, std::int64_t qkv,
                               std::int64_t table) {
    auto const rows = x / how.columns();
    detail::same_size(who, x, rows * how.columns());
    detail::same_size(who, qkv, rows * 3 * how.heads * how.width);
    if (table != 0) detail::same_size(who, table, how.context * how.width);
    return rows;
  }
  template <class T>
  static cuda_kernels::head_norms normalised(char const* who, head_layout const& how, std::int64_t y,
                                             view<accumulate_t<T>> rstd, view<T const> x, view<T const> query_gain,
                                             view<T const> key_gain) {
    auto const rows = x.size() / how.columns();
    detail::same_size(who, x.size(), rows * how.columns());
    detail::same_size(who, y, x.size());
    detail::same_size(who, rstd.size(), rows * (how.heads + how.key_heads));
    for (auto const size : {query_gain.size(), key_gain.size()}) detail::same_size(who, size, how.width);
    return {dtype_of<T>, how, rows, raw(x), raw(query_gain), raw(key_gain), raw(rstd)};
  }
};

}  // namespace trireme::ops
