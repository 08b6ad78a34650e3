#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/squares.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/ops/update_batch.hpp"

namespace trireme::ops {

namespace detail {

/// Whether a kernel updates values of M from gradients of G, with outputs of P.
template <class M, class G, class P>
concept cuda_updates = (std::is_same_v<M, double> && std::is_same_v<G, double> && std::is_same_v<P, double>) ||
                       (std::is_same_v<M, float> && cuda_float<G> && cuda_float<P> && sizeof(G) <= sizeof(M) &&
                        sizeof(P) <= sizeof(M));

template <class Op>
inline constexpr bool combined_by_cuda = false;
template <>
inline constexpr bool combined_by_cuda<reduction::sum> = true;
template <>
inline constexpr bool combined_by_cuda<reduction::mean> = true;
template <>
inline constexpr bool combined_by_cuda<reduction::max> = true;
template <>
inline constexpr bool combined_by_cuda<reduction::min> = true;
template <>
inline constexpr bool combined_by_cuda<reduction::pairwise> = true;
template <class Op>
inline constexpr auto cuda_combination = std::is_same_v<Op, reduction::mean>       ? cuda_kernels::combination::mean
                                         : std::is_same_v<Op, reduction::max>      ? cuda_kernels::combination::max
                                         : std::is_same_v<Op, reduction::min>      ? cuda_kernels::combination::min
                                         : std::is_same_v<Op, reduction::pairwise> ? cuda_kernels::combination::pairwise
                                                                                   : cuda_kernels::combination::sum;

/// Updates of this thread that wait to be queued together.
class adamw_batch {
 public:
  /// That of this thread, or null.
  [[nodiscard]] static adamw_batch*& open() noexcept {
    thread_local adamw_batch* now = nullptr;
    return now;
  }
  void add(dtype value, dtype gradient, dtype output, cuda_kernels::adamw_tensor const& one) {
    if (!all_.empty() && (value != value_ || gradient != gradient_ || output != output_)) finish();
    value_ = value;
    gradient_ = gradient;
    output_ = output;
    all_.push_back(one);
  }
  void finish() {
    if (all_.empty()) return;
    expect_cuda("adamw",
                cuda_kernels::adamw_together(cuda::stream(), value_, gradient_, output_, all_.data(), all_.size()));
    all_.clear();
  }
  void drop() noexcept { all_.clear(); }

 private:
  dtype value_{}, gradient_{}, output_{};
  std::vector<cuda_kernels::adamw_tensor> all_;
};

}  // namespace detail

/// The kernels of CUDA memory that treat all elements alike: the sets of an exchange and of updates (ops/sets), and of
/// the dense set activations, products of elements, dropout, and copies of columns and of blocks.
///
/// Views are checked as on<host> checks them. Work is queued on cuda::stream() of the calling thread, in the order of
/// its calls. These functions wait for it, because they give numbers to the host or read its memory: download, read,
/// hash, finite, sum_of_squares, and upload of more than 4 MiB.
///
/// Shapes   as the sets say; all views of one call have the same number of elements.
/// Numerics the host's bits, as docs/gpus.md says in detail. Initial values are made on the host and uploaded.
/// Bytes    1 KB of device memory and of pinned memory a thread, for the numbers that the host reads.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if sizes differ; config_error for more terms or outputs than one kernel takes;
///          device_error with CUDA's message if work cannot be queued or the device has failed, and, while the stream
///          waits for a collective, what its communicator throws.
struct cuda_elements {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// y[i] = value
  template <class T>
  requires(sizeof(T) <= 8) static void fill(view<T> y, double value) {
    T element;
    if constexpr (storage_float<T>)
      element = T(static_cast<float>(value));
    else
      element = static_cast<T>(value);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &element, sizeof element);
    queued("fill", cuda_kernels::fill(cuda::stream(), raw(y), sizeof(T), bits, y.size()));
  }

  /// y[i] = x[i], converted. The views may be the same, but not overlap otherwise.
  template <class T, class U>
  requires detail::cuda_copies<T, std::remove_const_t<U>>
  static void copy(view<T> y, view<U> x) {
    same("copy", y.size(), x.size());
    copy_elements("copy", raw(y), static_cast<std::remove_const_t<U> const*>(raw(x)), y.size());
  }

  /// Some columns of each row: y[row, to + c] = x[row, from + c] for c < columns, converted.
  /// Shapes   y (n, ...), x (n, ...): rows along the outermost axis.
  template <class T, class U>
  requires(detail::cuda_float<T>&& detail::cuda_float<std::remove_const_t<U>>) static void copy_columns(
      view<T> y, std::int64_t to, view<U> x, std::int64_t from, std::int64_t columns) {
    auto const rows = y.extent(0);
    same("copy_columns", rows, x.extent(0));
    if (rows == 0 || columns == 0) return;
    queued("copy_columns",
           cuda_kernels::copy_columns(cuda::stream(), dtype_of<T>, raw(y) + to, y.size() / rows,
                                      dtype_of<std::remove_const_t<U>>, raw(x) + from, x.size() / rows, rows, columns));
  }

  /// The same for blocks of rows: y[to: b, r, c] = x[from: b, r, c], converted. Blocks of y may not overlap those of x.
  /// Errors   assertion_error (light) if a block does not lie in its tensor.
  template <class T, class U>
  requires(detail::cuda_copies<T, std::remove_const_t<U>>) static void copy_blocks(view<T> y, block_places const& to,
                                                                                   view<U> x, block_places const& from,
                                                                                   block_extents const& extents) {
    detail::blocks_within("copy_blocks", y.size(), to, extents);
    detail::blocks_within("copy_blocks", x.size(), from, extents);
    queued("copy_blocks", cuda_kernels::copy_blocks(cuda::stream(), dtype_of<T>, raw(y), to,
                                                    dtype_of<std::remove_const_t<U>>, raw(x), from, extents));
  }

  /// Copies runs of elements: y[run.to + i] = x[run.from + i] for i < run.count; one copy is queued for each run.
  template <class T>
  static void copy_runs(view<T> y, input<T> x, std::span<element_run const> runs) {
    for (auto const& run : runs) {
      expects(assertion_level::light, run.to + run.count <= y.size() && run.from + run.count <= x.size(),
              [] { return std::string("trireme::ops::copy_runs: a run does not lie in its tensor"); });
      copy_elements("copy_runs", raw(y) + run.to, raw(x) + run.from, run.count);
    }
  }

  /// y[i] += x[i]
  template <detail::cuda_float T>
  static void add(view<T> y, input<T> x) {
    same("add", y.size(), x.size());
    queued("add", cuda_kernels::accumulate(cuda::stream(), dtype_of<T>, raw(y), dtype_of<T>, raw(x), y.size(), 1.0));
  }

  /// y[i] *= factor
  template <detail::cuda_float T>
  static void scale(view<T> y, double factor) {
    queued("scale", cuda_kernels::scale(cuda::stream(), dtype_of<T>, raw(y), y.size(), factor));
  }

  /// y[i] += weight * x[i]
  template <detail::cuda_float T, class U>
  requires detail::cuda_float<std::remove_const_t<U>>
  static void accumulate(view<T> y, view<U> x, double weight) {
    same("accumulate", y.size(), x.size());
    queued("accumulate", cuda_kernels::accumulate(cuda::stream(), dtype_of<T>, raw(y), dtype_of<std::remove_const_t<U>>,
                                                  raw(x), y.size(), weight));
  }

  /// y[i] = a[i] * b[i]; y may be a or b.
  template <detail::cuda_float T>
  static void elementwise_product(view<T> y, input<T> a, input<T> b) {
    same("elementwise_product", y.size(), a.size());
    same("elementwise_product", y.size(), b.size());
    queued("elementwise_product",
           cuda_kernels::elementwise_product(cuda::stream(), dtype_of<T>, raw(y), raw(a), raw(b), y.size()));
  }

  /// y[i] = act(x[i]); y may be x.
  template <detail::cuda_float T>
  static void activate(view<T> y, input<T> x, activation act) {
    same("activate", y.size(), x.size());
    queued("activate", cuda_kernels::activate(cuda::stream(), dtype_of<T>, raw(y), raw(x), y.size(), act));
  }

  /// dx[i] = dy[i] * act'(x[i]); dx may be dy.
  template <detail::cuda_float T>
  static void activate_backward(view<T> dx, input<T> dy, input<T> x, activation act) {
    same("activate_backward", dx.size(), x.size());
    same("activate_backward", dx.size(), dy.size());
    queued("activate_backward",
           cuda_kernels::activate_backward(cuda::stream(), dtype_of<T>, raw(dx), raw(dy), raw(x), dx.size(), act));
  }

  /// Applies dropout in place, as on<host> does.
  template <detail::cuda_float T>
  static void dropout(view<T> y, dropout_site_in<cuda> const& site) {
    if (!site.active() || y.empty()) return;
    auto const samples = site.sample_count();
    auto const whole = site.whole > 0 ? site.whole : y.size();
    expects(assertion_level::light, whole % samples == 0 && site.first + y.size() <= whole, [&] {
      return text("trireme::ops::dropout: ", how_many(y.size(), "element"), " from ", site.first, " on, of ", whole,
                  agreeing(y.size(), ", does", ", do"), " not divide into ", how_many(samples, "sample"));
    });
    queued("dropout",
           cuda_kernels::dropout(cuda::stream(), dropped<T>(site), raw(y), site.first, y.size(), whole / samples));
  }

  /// Dropout of a part of whole samples: of y (rows, fused, columns), as on<host> does.
  template <detail::cuda_float T>
  static void dropout_part(view<T> y, dropout_site_in<cuda> const& site, dropout_cut const& cut) {
    if (!site.active() || y.empty()) return;
    auto const each = cut.fused * cut.columns;
    auto const rows = y.size() / each;
    same("dropout_part", y.size(), rows * each);
    queued("dropout_part", cuda_kernels::dropout_part(cuda::stream(), dropped<T>(site), raw(y), rows, cut));
  }

  /// The initial values of a range of a parameter that begins with its element `first`: made on the host, the same as
  /// there, and uploaded in pieces. Element i of the parameter depends on (seed, name, i) only.
  template <detail::cuda_float T>
  static void initialise(view<T> y, initial const& how, std::uint64_t seed, std::uint64_t name,
                         std::int64_t first = 0) {
    if (how.kind == initial::distribution::zeros) return fill(y, 0.0);
    if (how.kind == initial::distribution::ones) return fill(y, 1.0);
    constexpr std::int64_t piece = std::int64_t{1} << 18;
    std::vector<T> values(static_cast<std::size_t>(std::min(piece, y.size())));
    for (std::int64_t at = 0; at < y.size(); at += piece) {
      auto const count = std::min(piece, y.size() - at);
      auto const made = std::span(values).first(static_cast<std::size_t>(count));
      host_elementwise::initialise(tensor_view<T>(made), how, seed, name, first + at);
      upload(y.flat(at, count), std::span<T const>(made));
    }
  }

  /// Copies elements from and to memory of this process. The memory of both may be used again at once: what is uploaded
  /// is copied to pinned memory first, unless it has more than 4 MiB, and download waits for the stream.
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    same("upload", y.size(), static_cast<std::int64_t>(x.size()));
    if (y.empty()) return;
    if (y.bytes() > detail::pinned_slots::most_bytes)
      return copy_and_wait("upload", raw(y), x.data(), y.bytes(), cudaMemcpyHostToDevice);
    detail::pinned_slots::of_thread().upload(raw(y), x.data(), y.bytes());
  }
  template <class T>
  static void download(std::span<T> y, input<T> x) {
    same("download", static_cast<std::int64_t>(y.size()), x.size());
    copy_and_wait("download", y.data(), raw(x), x.bytes(), cudaMemcpyDeviceToHost);
  }
  /// One element, as a number in this process.
  template <class T>
  [[nodiscard]] static std::remove_const_t<T> read(view<T> x, std::int64_t index) {
    std::remove_const_t<T> one;
    copy_and_wait("read", &one, raw(x) + index, sizeof one, cudaMemcpyDeviceToHost);
    return one;
  }

  /// The wrapping sum of hash_element(name, first_index + i, bits of element i).
  template <class T>
  requires(sizeof(T) <= 8) [[nodiscard]] static std::uint64_t
      hash(view<T> x, std::uint64_t name, std::int64_t first_index) {
    if (x.empty()) return 0;
    return detail::cuda_result<unsigned long long, 1>("hash", [&](unsigned long long* total) {
      return cuda_kernels::hash(cuda::stream(), sizeof(T), raw(x), x.size(), name,
                                static_cast<std::uint64_t>(first_index), total);
    })[0];
  }

  /// Whether no element is infinite or NaN.
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  [[nodiscard]] static bool finite(view<T> x) {
    if (x.empty()) return true;
    return detail::cuda_result<unsigned, 1>("finite", [&](unsigned* flag) {
             return cuda_kernels::find_non_finite(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(x), x.size(),
                                                  flag);
           })[0] == 0;
  }

  /// Adds the sum of squares of each block of 1024 elements to the total; the first block starts at the view's first
  /// element. Float and double.
  template <class T>
  requires(std::is_floating_point_v<T>&& detail::cuda_float<std::remove_const_t<T>>) static void sum_of_squares(
      view<T> x, exact_sum& total) {
    if (x.empty()) return;
    auto const more =
        detail::cuda_result<std::int64_t, exact_sum::limbs + 1>("sum_of_squares", [&](std::int64_t* sums) {
          return cuda_kernels::sum_of_squares(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(x), x.size(), sums);
        });
    auto const state = total.state();
    for (std::size_t i = 0; i < more.size(); ++i) state[i] += more[i];
  }

  /// outputs[...][i] = terms[0][i] op terms[1][i] op ..., in this order (reduction::pairwise: in the fixed tree over
  /// the terms); a mean is then divided by `divisor`. An output may be one of the terms.
  /// Errors   config_error for more than 256 terms, or outputs.
  template <class T, class Op = reduction::sum>
  requires(
      detail::combined_by_cuda<Op> &&
      (detail::cuda_float<T> ||
       !std::is_same_v<Op, reduction::mean>)) static void reduce(std::span<view<T> const> outputs,
                                                                 std::type_identity_t<std::span<view<T const> const>>
                                                                     terms,
                                                                 Op = {}, int divisor = 1) {
    if (outputs.empty() || terms.empty()) return;
    all_same("reduce", outputs[0].size(), outputs);
    all_same("reduce", outputs[0].size(), terms);
    detail::expect_fits("reduce", terms.size(), cuda_kernels::most_terms, "terms");
    detail::expect_fits("reduce", outputs.size(), cuda_kernels::most_terms, "outputs");
    std::array<void*, cuda_kernels::most_terms> to;
    std::array<void const*, cuda_kernels::most_terms> from;
    std::ranges::transform(outputs, to.begin(), [](auto const& each) { return raw(each); });
    std::ranges::transform(terms, from.begin(), [](auto const& each) { return raw(each); });
    queued("reduce", cuda_kernels::combine(cuda::stream(), dtype_of<T>, detail::cuda_combination<Op>, to.data(),
                                           static_cast<int>(outputs.size()), from.data(),
                                           static_cast<int>(terms.size()), outputs[0].size(), divisor));
  }

  /// One step of AdamW [Loshchilov, Hutter, 2019].
  /// Errors   config_error for a gradient of more than 256 terms.
  template <class M, class G, class P>
  requires detail::cuda_updates<M, G, P>
  static void adamw(view<M> value, output<M> first, output<M> second, gradient_terms<G, cuda> const& gradient,
                    std::span<view<P> const> outputs, adamw_numbers const& numbers) {
    same("adamw", value.size(), first.size());
    same("adamw", value.size(), second.size());
    if (auto* const batch = detail::adamw_batch::open();
        batch != nullptr && gradient.terms.size() == 1 && outputs.size() <= 1) {
      same("adamw", value.size(), gradient.terms[0].size());
      if (!outputs.empty()) same("adamw", value.size(), outputs[0].size());
      return batch->add(dtype_of<M>, dtype_of<G>, dtype_of<P>,
                        {raw(value), raw(first), raw(second), raw(gradient.terms[0]),
                         outputs.empty() ? nullptr : raw(outputs[0]), value.size(), gradient.scale, numbers});
    }
    update("adamw", value, gradient, outputs, [&](cuda_kernels::update_call const& call) {
      return cuda_kernels::adamw(cuda::stream(), call, raw(first), raw(second), numbers);
    });
  }

  /// One step of SGD. Without momentum the velocity is not touched and may be empty.
  /// Errors   config_error for a gradient of more than 256 terms.
  template <class M, class G, class P>
  requires detail::cuda_updates<M, G, P>
  static void sgd(view<M> value, output<M> velocity, gradient_terms<G, cuda> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    if (!exactly_equal(numbers.momentum, 0)) same("sgd", value.size(), velocity.size());
    update("sgd", value, gradient, outputs, [&](cuda_kernels::update_call const& call) {
      return cuda_kernels::sgd(cuda::stream(), call, raw(velocity), numbers);
    });
  }

  /// value[i] -= by * (-1, 0 or 1: the sign of measured[i]).
  template <class M, class G>
  requires(std::is_floating_point_v<M>&& detail::cuda_float<std::remove_const_t<G>>) static void step_against_sign(
      view<M> value, view<G> measured, double by) {
    same("step_against_sign", value.size(), measured.size());
    queued("step_against_sign",
           cuda_kernels::step_against_sign(cuda::stream(), dtype_of<M>, raw(value), dtype_of<std::remove_const_t<G>>,
                                           raw(measured), value.size(), by));
  }

 private:
  static void same(char const* who, std::int64_t a, std::int64_t b) { detail::same_size(who, a, b); }
  static void all_same(char const* who, std::int64_t n, auto const& views) {
    for (auto const& each : views) same(who, n, each.size());
  }
  static void queued(char const* who, int code) { detail::expect_cuda(who, code); }

  template <class T>
  static cuda_kernels::dropout_call dropped(dropout_site_in<cuda> const& site) {
    return {dtype_of<T>, site.probability, site.key, site.site, raw(site.samples)};
  }

  template <class T, class U>
  static void copy_elements(char const* who, T* y, U const* x, std::int64_t n) {
    if constexpr (std::is_same_v<T, U>) {
      if (n == 0 || y == x) return;
      expects(assertion_level::light, y + n <= x || x + n <= y, [&] {
        return text("trireme::ops::", who, ": the views overlap, which a copy within CUDA memory does not support");
      });
      queued(who, ::cudaMemcpyAsync(y, x, static_cast<std::size_t>(n) * sizeof(T), cudaMemcpyDeviceToDevice,
                                    cuda::stream()));
    } else {
      queued(who, cuda_kernels::copy(cuda::stream(), dtype_of<T>, y, dtype_of<U>, x, n));
    }
  }
  // CUDA may wait for the stream when it copies from or to pageable memory, and without a deadline. So this waits
  // before the copy as well.
  static void copy_and_wait(char const* who, void* to, void const* from, std::size_t bytes, ::cudaMemcpyKind way) {
    if (bytes == 0) return;
    cuda::finish();
    queued(who, ::cudaMemcpyAsync(to, from, bytes, way, cuda::stream()));
    cuda::finish();
  }
  // A kernel writes a limited number of outputs; any further ones are copied from the values.
  template <class M, class G, class P, class Launch>
  static void update(char const* who, view<M> value, gradient_terms<G, cuda> const& gradient,
                     std::span<view<P> const> outputs, Launch&& launch) {
    all_same(who, value.size(), gradient.terms);
    all_same(who, value.size(), outputs);
    detail::expect_fits(who, gradient.terms.size(), cuda_kernels::most_gradient_terms, "terms of a gradient");
    std::array<void const*, cuda_kernels::most_gradient_terms> from;
    std::array<void*, cuda_kernels::most_update_outputs> to;
    std::ranges::transform(gradient.terms, from.begin(), [](auto const& each) { return raw(each); });
    auto const at_once = outputs.first(std::min(outputs.size(), to.size()));
    std::ranges::transform(at_once, to.begin(), [](auto const& each) { return raw(each); });
    queued(who, launch(cuda_kernels::update_call{dtype_of<M>, raw(value), value.size(), dtype_of<G>, from.data(),
                                                 static_cast<int>(gradient.terms.size()), gradient.scale, dtype_of<P>,
                                                 to.data(), static_cast<int>(at_once.size())}));
    for (auto const& output : outputs.subspan(at_once.size())) copy(output, value);
  }
};

/// In CUDA memory the squares of all tensors are added on the device, and finish() waits once for their sum.
///
/// Threads  one at a time in each thread.
template <>
class squares_total<cuda> {
 public:
  explicit squares_total(exact_sum& into) : into_(into), place_(detail::cuda_results::of_thread("squares_total")) {
    waiting().clear();
    detail::expect_cuda("squares_total", ::cudaMemsetAsync(on_device(), 0, bytes, cuda::stream()));
  }

  template <class T>
  void add(tensor_view<T, cuda> x) {
    constexpr auto of = dtype_of<std::remove_const_t<T>>;
    if (of != type_) queue_all();
    type_ = of;
    waiting().push_back({raw(x), x.size()});
  }
  template <class T>
  void expect_finite(tensor_view<T, cuda> x) {
    // The last number of the state counts what is not finite; that it is not 0 is all that matters.
    auto* const flag = reinterpret_cast<unsigned*>(on_device() + exact_sum::limbs);
    detail::expect_cuda("finite", cuda_kernels::find_non_finite(cuda::stream(), dtype_of<std::remove_const_t<T>>,
                                                                raw(x), x.size(), flag));
  }
  void finish() {
    queue_all();
    auto* const on_host = static_cast<std::int64_t*>(place_.on_host()) + detail::cuda_results::bytes / 8;
    detail::expect_cuda("squares_total",
                        ::cudaMemcpyAsync(on_host, on_device(), bytes, cudaMemcpyDeviceToHost, cuda::stream()));
    cuda::finish();
    auto const state = into_.state();
    for (std::size_t i = 0; i < state.size(); ++i) state[i] += on_host[i];
  }

 private:
  // Tensors of type_ whose squares are not queued yet; kept so that a step allocates nothing.
  [[nodiscard]] static std::vector<cuda_kernels::squared_tensor>& waiting() {
    thread_local std::vector<cuda_kernels::squared_tensor> all;
    return all;
  }
  void queue_all() {
    auto& all = waiting();
    if (all.empty()) return;
    auto const code = cuda_kernels::squares_together(cuda::stream(), type_, all.data(), all.size(), on_device());
    all.clear();
    detail::expect_cuda("sum_of_squares", code);
  }
  static constexpr std::size_t bytes = (exact_sum::limbs + 1) * sizeof(std::int64_t);
  static_assert(bytes <= detail::cuda_results::bytes);
  [[nodiscard]] std::int64_t* on_device() const {
    return static_cast<std::int64_t*>(place_.on_device()) + detail::cuda_results::bytes / 8;
  }

  exact_sum& into_;
  detail::mirrored_memory const& place_;
  dtype type_{};
};

template <>
class nonfinite_flag<cuda> {
 public:
  void clear() {
    if (looked_) detail::expect_cuda("finite", ::cudaMemsetAsync(memory_->on_device(), 0, bytes, cuda::stream()));
    looked_ = false;
  }
  template <class T>
  void look_at(tensor_view<T, cuda> x) {
    if (memory_ == nullptr) {
      (void)cuda::stream();  // made first, so it ends after the memory that its kernels write
      memory_ = std::make_unique<detail::mirrored_memory>("finite", bytes);
      detail::expect_cuda("finite", ::cudaMemsetAsync(memory_->on_device(), 0, bytes, cuda::stream()));
    }
    looked_ = true;
    detail::expect_cuda(
        "finite", cuda_kernels::find_non_finite(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(x), x.size(),
                                                static_cast<unsigned*>(memory_->on_device())));
  }
  void fetch() {
    if (looked_)
      detail::expect_cuda("finite", ::cudaMemcpyAsync(memory_->on_host(), memory_->on_device(), bytes,
                                                      cudaMemcpyDeviceToHost, cuda::stream()));
  }
  /// After the host has waited for this thread's stream.
  [[nodiscard]] bool found() const noexcept {
    return looked_ && *static_cast<unsigned const*>(memory_->on_host()) != 0;
  }

 private:
  static constexpr std::size_t bytes = sizeof(unsigned);
  std::unique_ptr<detail::mirrored_memory> memory_;
  bool looked_ = false;
};

/// In CUDA memory the updates of AdamW with one term of a gradient, and at most one output, are queued together.
template <>
class update_batch<cuda> {
 public:
  update_batch() noexcept {
    mine().drop();
    detail::adamw_batch::open() = &mine();
  }
  update_batch(update_batch const&) = delete;
  update_batch& operator=(update_batch const&) = delete;
  ~update_batch() { detail::adamw_batch::open() = nullptr; }
  void finish() { mine().finish(); }

 private:
  // Kept so that a step allocates nothing.
  [[nodiscard]] static detail::adamw_batch& mine() {
    thread_local detail::adamw_batch batch;
    return batch;
  }
};

}  // namespace trireme::ops
