// The bodies of the functions of ops/cuda/selection_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/selection_launch.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/selection.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// Calls f(G{}) with float or double.
template <class F>
int for_selected(dtype of, F&& f) {
  if (of == dtype::f32) return f(float{});
  if (of == dtype::f64) return f(double{});
  return device::launch_refused;
}

std::int64_t candidates_of(std::int64_t n, std::int64_t k) { return n < 4 * k + 64 ? n : 4 * k + 64; }

/// The parts of the scratch memory, one after the other.
struct selection_scratch {
  device::selection_state* state;
  device::selection_count* total;
  unsigned* histogram;
  device::selection_count* counts;
  void* sample;
  void* candidates;
  std::int32_t* places;
  std::size_t bytes = 0;

  selection_scratch(void* memory, std::size_t element, std::int64_t n, std::int64_t k, std::int64_t samples) {
    auto const part = [&](auto*& address, std::int64_t count, std::size_t each) {
      using type = std::remove_reference_t<decltype(address)>;
      address = memory == nullptr ? nullptr : reinterpret_cast<type>(static_cast<std::byte*>(memory) + bytes);
      bytes += (static_cast<std::size_t>(count) * each + 15) / 16 * 16;
    };
    auto const most = samples == 0 ? 0 : candidates_of(n, k);
    part(state, 1, sizeof *state);
    part(total, 1, sizeof *total);
    part(histogram, device::selection_bins, sizeof *histogram);
    part(counts, (n + device::selection_chunk - 1) / device::selection_chunk, sizeof *counts);
    part(sample, samples, element);
    part(candidates, most, element);
    part(places, most, sizeof *places);
  }
};

/// Several launches, of which the first that fails is reported.
struct selection_launches {
  void* stream;
  int code = device::launch_succeeded;
  template <class... Parameters, class... Arguments>
  void add(char const* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
           Arguments const&... arguments) {
    if (code == device::launch_succeeded)
      code = device::run(name, kernel, blocks, threads, stream, static_cast<Parameters>(arguments)...);
  }
};

/// Finds the magnitude that the state looks for among at most n elements.
template <class G>
void find_threshold(selection_launches& queue, selection_scratch const& scratch, G const* x, std::int64_t n) {
  for (int rest = device::magnitude_width<G>; rest > 0;) {
    auto const bits = rest < device::selection_bits ? rest : device::selection_bits;
    rest -= bits;
    queue.add("count_magnitudes", &device::count_magnitudes<G>, device::blocks_for((n + 15) / 16),
              device::block_threads, x, scratch.state, scratch.histogram, rest, bits);
    queue.add("choose_magnitude", &device::choose_magnitude<>, 1, device::block_threads, scratch.state,
              scratch.histogram, bits);
  }
}
/// Writes the elements that reach the threshold of the state.
template <class G>
void write_selected(selection_launches& queue, selection_scratch const& scratch, G const* x, std::int64_t n,
                    std::int32_t const* places, std::int32_t* indices, G* values, std::int64_t most) {
  auto const chunks = (n + device::selection_chunk - 1) / device::selection_chunk;
  auto const blocks = device::blocks_for(chunks * device::warp_width);
  queue.add("count_selected", &device::count_selected<G>, blocks, device::block_threads, x, scratch.state,
            scratch.counts);
  queue.add("add_counts", &device::add_counts<>, 1, device::block_threads, scratch.state, scratch.counts,
            scratch.total);
  queue.add("write_selected", &device::write_selected<G>, blocks, device::block_threads, x, scratch.state,
            scratch.counts, places, indices, values, most);
}

}  // namespace

std::size_t selection_bytes(dtype of, std::int64_t n, std::int64_t k, std::int64_t samples) {
  return selection_scratch(nullptr, of == dtype::f64 ? 8 : 4, n, k, samples).bytes;
}

int select_largest(void* stream, void* memory, dtype of, void const* x, std::int64_t n, std::int32_t* indices,
                   void* values, std::int64_t k) {
  return for_selected(of, [&]<class G>(G) {
    selection_scratch const scratch(memory, sizeof(G), n, k, 0);
    auto const* const from = static_cast<G const*>(x);
    selection_launches queue{stream};
    queue.add("clear_counts", &device::clear_counts<>, 1, device::block_threads, scratch.histogram,
              device::selection_bins);
    queue.add("begin_selection", &device::begin_selection<>, 1, 1, scratch.state, n, k);
    find_threshold(queue, scratch, from, n);
    write_selected(queue, scratch, from, n, nullptr, indices, static_cast<G*>(values), k);
    return queue.code;
  });
}

int select_sampled(void* stream, void* memory, dtype of, void const* x, std::int64_t n, std::int64_t samples,
                   std::int64_t wanted, std::int32_t* indices, void* values, std::int64_t k) {
  return for_selected(of, [&]<class G>(G) {
    selection_scratch const scratch(memory, sizeof(G), n, k, samples);
    auto const* const from = static_cast<G const*>(x);
    auto* const sample = static_cast<G*>(scratch.sample);
    auto* const candidates = static_cast<G*>(scratch.candidates);
    auto const most = candidates_of(n, k);
    selection_launches queue{stream};
    queue.add("clear_counts", &device::clear_counts<>, 1, device::block_threads, scratch.histogram,
              device::selection_bins);
    queue.add("take_sample", &device::take_sample<G>, device::blocks_for(samples), device::block_threads, sample,
              samples, from, n);
    queue.add("begin_selection", &device::begin_selection<>, 1, 1, scratch.state, samples, wanted + 1);
    find_threshold(queue, scratch, sample, samples);
    queue.add("take_all_from", &device::take_all_from<>, 1, 1, scratch.state, n);
    write_selected(queue, scratch, from, n, nullptr, scratch.places, candidates, most);
    queue.add("begin_among", &device::begin_among<>, 1, 1, scratch.state, scratch.total, most, k);
    find_threshold<G>(queue, scratch, candidates, most);
    write_selected<G>(queue, scratch, candidates, most, scratch.places, indices, static_cast<G*>(values), k);
    return queue.code;
  });
}

int scatter(void* stream, dtype of, void* y, std::int64_t n, std::int32_t const* indices, void const* values,
            std::int64_t k, bool add, unsigned* flag) {
  if (k == 0) return device::launch_succeeded;
  return for_selected(of, [&]<class G>(G) {
    selection_launches queue{stream};
    queue.add("clear_counts", &device::clear_counts<>, 1, device::block_threads, flag, 1);
    queue.add("find_descent", &device::find_descent<>, device::blocks_for(k), device::block_threads, indices, k, flag);
    queue.add("scatter", &device::scatter_chosen<G>, device::blocks_for(k), device::block_threads, static_cast<G*>(y),
              n, indices, static_cast<G const*>(values), k, add, flag);
    return queue.code;
  });
}

}  // namespace trireme::ops::cuda_kernels
