// The bodies of the functions of ops/cuda/whole_tensors_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/whole_tensors_launch.hpp"

#include <cstddef>
#include <cstdint>

#include "trireme/ops/cuda/whole_tensors.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// Calls f(M{}) with float or double.
template <class F>
int for_whole_tensors(dtype of, F&& f) {
  if (of == dtype::f32) return f(float{});
  if (of == dtype::f64) return f(double{});
  return device::launch_refused;
}
std::int64_t summed_chunks_of(std::int64_t n) { return (n + device::summed_chunk - 1) / device::summed_chunk; }
std::int64_t summing_blocks(std::int64_t n) { return device::blocks_for(summed_chunks_of(n) * device::block_threads); }
device::whole_tensor_results* whole_results_in(void* scratch) {
  return static_cast<device::whole_tensor_results*>(scratch);
}
/// Two sums for each chunk, behind the results.
double* whole_sums_in(void* scratch) { return reinterpret_cast<double*>(whole_results_in(scratch) + 1); }
std::int64_t adafactor_slices(adafactor_call const& call, adafactor_numbers const& how) {
  return call.matrices * ((how.rows + device::rows_of_slice - 1) / device::rows_of_slice);
}

template <int Width, class... T>
device::pack_start start_of_packs(T const*... tensors) {
  device::pack_start start;
  ((tensors == nullptr ? void() : start.of<Width>(tensors)), ...);
  return start;
}
/// Several launches, of which the first that fails is reported.
struct update_launches {
  void* stream;
  int code = device::launch_succeeded;
  template <class... Parameters, class... Arguments>
  void add(char const* name, void (*kernel)(Parameters...), std::int64_t blocks, Arguments const&... arguments) {
    if (code == device::launch_succeeded)
      code = device::run(name, kernel, blocks, device::block_threads, stream, static_cast<Parameters>(arguments)...);
  }
  template <class Work>
  int last(char const* name, Work const& work, device::pack_start const& start, std::int64_t n) {
    return code != device::launch_succeeded ? code : device::launch_elements(name, work, start, n, stream);
  }
};

}  // namespace

std::size_t whole_tensor_bytes(std::int64_t n) {
  return sizeof(device::whole_tensor_results) + static_cast<std::size_t>(summed_chunks_of(n)) * 2 * sizeof(double);
}

int lamb(void* stream, void* scratch, dtype of, void* value, void* first, void* second, void const* gradient,
         std::int64_t n, lamb_numbers const& how) {
  if (n == 0) return device::launch_succeeded;
  return for_whole_tensors(of, [&]<class M>(M) {
    device::lamb_constants<M> const constants{
        static_cast<M>(how.correction1),  static_cast<M>(how.correction2), static_cast<M>(how.beta1),
        static_cast<M>(how.beta2),        static_cast<M>(1 - how.beta1),   static_cast<M>(1 - how.beta2),
        static_cast<M>(how.weight_decay), static_cast<M>(how.scale),       static_cast<M>(how.epsilon)};
    auto* const w = static_cast<M*>(value);
    auto* const m = static_cast<M*>(first);
    auto* const v = static_cast<M*>(second);
    update_launches queue{stream};
    queue.add("lamb_moments", &device::lamb_moments<M>, summing_blocks(n), w, m, v, static_cast<M const*>(gradient), n,
              constants, whole_sums_in(scratch));
    queue.add("lamb_rate", &device::lamb_rate<M>, 1, whole_results_in(scratch), whole_sums_in(scratch), n,
              how.learning_rate);
    device::moving_by_lamb<M> const work{w, m, v, constants, whole_results_in(scratch)};
    return queue.last("lamb", work, start_of_packs<work.width>(w, m, v), n);
  });
}

// Behind the results and sums: the sums of columns, then the factors of rows, of which each takes a double at most.
std::size_t adafactor_bytes(adafactor_call const& call, adafactor_numbers const& how) {
  auto const more = adafactor_slices(call, how) * how.columns + call.matrices * how.rows;
  return whole_tensor_bytes(call.n) + static_cast<std::size_t>(more) * sizeof(double);
}
int adafactor(void* stream, void* scratch, dtype of, adafactor_call const& call, adafactor_numbers const& how) {
  if (call.n == 0) return device::launch_succeeded;
  return for_whole_tensors(of, [&]<class M>(M) {
    device::adafactor_constants const constants{how.rows,    how.columns,   how.learning_rate, how.keep,
                                                how.epsilon, how.threshold, how.least_scale,   how.weight_decay,
                                                how.scale,   how.scaled};
    auto* const w = static_cast<M*>(call.value);
    auto* const u = static_cast<M*>(call.direction);
    auto* const first = static_cast<M*>(call.first);
    auto const* const gradient = static_cast<M const*>(call.gradient);
    auto* const sums = whole_sums_in(scratch);
    update_launches queue{stream};
    if (call.second != nullptr) {
      queue.add("adafactor_vector", &device::adafactor_vector<M>, summing_blocks(call.n), u,
                static_cast<M*>(call.second), gradient, w, call.n, constants, sums);
    } else {
      auto* const row_means = static_cast<M*>(call.row_means);
      auto* const column_means = static_cast<M*>(call.column_means);
      auto* const column_sums = sums + 2 * summed_chunks_of(call.n);
      auto* const factors = reinterpret_cast<M*>(column_sums + adafactor_slices(call, how) * how.columns);
      auto const rows = call.matrices * how.rows;
      queue.add("adafactor_rows", &device::adafactor_rows<M>, device::blocks_for(rows * device::warp_width), row_means,
                gradient, rows, constants);
      queue.add("adafactor_column_sums", &device::adafactor_column_sums<M>,
                device::blocks_for(adafactor_slices(call, how) * how.columns), column_sums, gradient, call.matrices,
                constants);
      queue.add("adafactor_columns", &device::adafactor_columns<M>, device::blocks_for(call.matrices * how.columns),
                column_means, column_sums, call.matrices, constants);
      queue.add("adafactor_row_factors", &device::adafactor_row_factors<M>,
                device::blocks_for(call.matrices * device::block_threads), factors, row_means, call.matrices,
                constants);
      queue.add("adafactor_direction", &device::adafactor_direction<M>, summing_blocks(call.n), u, gradient, factors,
                column_means, w, call.n, constants, sums);
    }
    queue.add("adafactor_rate", &device::adafactor_rate<M>, 1, whole_results_in(scratch), sums, call.n, constants);
    device::moving_by_adafactor<M> const work{w, u, first, static_cast<M>(1 - how.momentum), whole_results_in(scratch)};
    return queue.last("adafactor", work, start_of_packs<work.width>(w, u, first), call.n);
  });
}

int muon_momentum(void* stream, dtype of, void* velocity, void* direction, void const* gradient, std::int64_t n,
                  double momentum, double scale, bool nesterov) {
  return for_whole_tensors(of, [&]<class M>(M) {
    auto const keep = static_cast<M>(momentum);
    device::gathering_momentum<M> const work{static_cast<M*>(velocity),
                                             static_cast<M*>(direction),
                                             static_cast<M const*>(gradient),
                                             keep,
                                             1 - keep,
                                             static_cast<M>(scale),
                                             nesterov};
    auto const start = start_of_packs<work.width>(work.velocity, work.direction, work.gradient);
    return device::launch_elements("muon_momentum", work, start, n, stream);
  });
}
int muon_normalise(void* stream, void* scratch, dtype of, void* x, std::int64_t n) {
  if (n == 0) return device::launch_succeeded;
  return for_whole_tensors(of, [&]<class M>(M) {
    update_launches queue{stream};
    queue.add("sum_all_squares", &device::sum_all_squares<M>, summing_blocks(n), static_cast<M const*>(x), n,
              whole_sums_in(scratch));
    queue.add("length_to_one", &device::length_to_one<M>, 1, whole_results_in(scratch), whole_sums_in(scratch), n);
    device::scaling_by_result<M> const work{static_cast<M*>(x), whole_results_in(scratch)};
    return queue.last("muon_normalise", work, start_of_packs<work.width>(work.x), n);
  });
}
int muon_mix(void* stream, dtype of, void* y, void const* x, std::int64_t n, double of_x, double of_y) {
  return for_whole_tensors(of, [&]<class M>(M) {
    device::muon_mixing<M> const work{static_cast<M*>(y), static_cast<M const*>(x), static_cast<M>(of_x),
                                      static_cast<M>(of_y)};
    return device::launch_elements("muon_mix", work, start_of_packs<work.width>(work.y, work.x), n, stream);
  });
}
int muon_step(void* stream, dtype of, void* value, void const* direction, std::int64_t n, double keep, double by) {
  return for_whole_tensors(of, [&]<class M>(M) {
    device::muon_stepping<M> const work{static_cast<M*>(value), static_cast<M const*>(direction), static_cast<M>(keep),
                                        static_cast<M>(by)};
    auto const start = start_of_packs<work.width>(work.value, work.direction);
    return device::launch_elements("muon_step", work, start, n, stream);
  });
}

}  // namespace trireme::ops::cuda_kernels
