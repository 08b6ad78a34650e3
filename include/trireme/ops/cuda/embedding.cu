// The bodies of the functions of ops/cuda/embedding_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/embedding_launch.hpp"

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/ops/cuda/columns.cuh"
#include "trireme/ops/cuda/embedding.cuh"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// Calls f(width) with the number of neighbouring elements of T that a thread takes: one if rows of `channels` are not
/// all aligned to 16 bytes.
template <class T, class F>
int for_width_of(std::int64_t channels, bool aligned, F&& f) {
  constexpr int width = device::pack_width<T>;
  if (aligned && channels % width == 0) return f(std::integral_constant<int, width>{});
  return f(std::integral_constant<int, 1>{});
}
bool aligned_to_packs(void const* tensor) { return reinterpret_cast<std::uintptr_t>(tensor) % 16 == 0; }

template <bool Adds, class T>
int look_up(char const* name, handle stream, device::table_lookup<T> const& at) {
  return for_width_of<T>(at.channels, aligned_to_packs(at.y) && aligned_to_packs(at.table) &&
                                          aligned_to_packs(at.positions),
                         [&]<int Width>(std::integral_constant<int, Width>) {
                           return device::run(name, &device::look_up_rows<Width, Adds, T>,
                                              device::blocks_for(at.rows * device::warp_width), device::block_threads,
                                              stream, at);
                         });
}

/// How embed_backward divides its scratch memory.
struct backward_scratch {
  std::int64_t part = 0;   // elements of one part of the list that is sorted
  std::int64_t parts = 0;  // of that list
  std::int64_t samples_at_once = 0;
  std::int64_t sums_of_samples = 0;  // rows of such sums for positions; none if all samples are summed at once
  std::size_t counts = 0, lists[4] = {}, partial = 0, bytes = 0;

  explicit backward_scratch(embed_backward_call const& call) {
    auto const rows = call.rows;
    auto const most = device::most_parts;
    part = (rows + most - 1) / most;
    part = (part + device::block_threads - 1) / device::block_threads * device::block_threads;
    if (part < device::least_part) part = device::least_part;
    parts = (rows + part - 1) / part;
    counts = take(parts * device::digit_values * 4);
    for (auto& each : lists) each = take(rows * 4);
    // Few positions do not fill a device with threads, so the samples are summed in parts.
    constexpr std::int64_t many_elements = std::int64_t{1} << 17;
    auto const samples = rows / call.context;
    samples_at_once = call.context * call.channels >= many_elements ? samples : 64;
    auto const sums = (samples + samples_at_once - 1) / samples_at_once;
    sums_of_samples = call.dpositions == nullptr || sums <= 1 ? 0 : sums;
    auto const of_words = 2 * ((rows + device::piece_rows - 1) / device::piece_rows) * call.channels;
    auto const of_samples = sums_of_samples * call.context * call.channels;
    auto const real = static_cast<std::int64_t>(call.of == dtype::f64 ? sizeof(double) : sizeof(float));
    partial = take((of_words > of_samples ? of_words : of_samples) * real);
  }

 private:
  std::size_t take(std::int64_t size) {
    auto const at = bytes;
    bytes += (static_cast<std::size_t>(size) + 255) / 256 * 256;
    return at;
  }
};

/// Lists the rows by word. Returns the list in `sorted`.
int sort_rows(handle stream, embed_backward_call const& call, backward_scratch const& scratch,
              device::word_list& sorted) {
  auto* const base = static_cast<char*>(call.scratch);
  auto const list_at = [&](int k) {
    return device::word_list{reinterpret_cast<std::uint32_t*>(base + scratch.lists[2 * k]),
                             reinterpret_cast<std::int32_t*>(base + scratch.lists[2 * k + 1])};
  };
  device::sorting_pass pass{reinterpret_cast<std::uint32_t*>(base + scratch.counts), call.rows, scratch.part, 0};
  auto const run_pass = [&](auto const& words, std::int32_t const* rows, device::word_list const& to) {
    using list = std::remove_cvref_t<decltype(words)>;
    if (auto const code = device::run("embed_backward", &device::count_word_digits<list>, scratch.parts,
                                      device::block_threads, stream, pass, words);
        code != device::launch_succeeded)
      return code;
    return device::run("embed_backward", &device::place_by_digits<list>, scratch.parts, device::block_threads, stream,
                       to, pass, words, rows);
  };
  auto const words = static_cast<std::uint32_t>(call.words);
  auto code = run_pass(device::row_words{call.tokens, call.first, words}, nullptr, list_at(0));
  int from = 0;
  auto const bits = static_cast<int>(std::bit_width(words));
  for (pass.shift = device::word_digit_bits; pass.shift < bits && code == device::launch_succeeded;
       pass.shift += device::word_digit_bits, from = 1 - from)
    code = run_pass(static_cast<std::uint32_t const*>(list_at(from).words), list_at(from).rows, list_at(1 - from));
  sorted = list_at(from);
  return code;
}

template <class G, class T>
int sum_words(handle stream, embed_backward_call const& call, backward_scratch const& scratch) {
  using real = typename device::word_sums<G, T>::real;
  device::word_list sorted{};
  if (auto const code = sort_rows(stream, call, scratch, sorted); code != device::launch_succeeded) return code;
  device::word_sums<G, T> const at{static_cast<G*>(call.dtable),
                                   static_cast<T const*>(call.dy),
                                   reinterpret_cast<real*>(static_cast<char*>(call.scratch) + scratch.partial),
                                   sorted.words,
                                   sorted.rows,
                                   call.rows,
                                   call.channels,
                                   static_cast<std::uint32_t>(call.words)};
  auto const pieces = for_width_of<T>(
      call.channels, aligned_to_packs(call.dtable) && aligned_to_packs(call.dy),
      [&]<int Width>(std::integral_constant<int, Width>) {
        constexpr auto columns = device::piece_columns<Width, G, T>::count;
        auto const tasks = (call.rows + device::places_of_warp - 1) / device::places_of_warp *
                           ((call.channels + columns - 1) / columns);
        constexpr int warps = device::block_threads / device::warp_width;
        // A block for each task of its warps, because some take longer than others.
        return device::run("embed_backward", &device::add_pieces<Width, G, T>, (tasks + warps - 1) / warps,
                           device::block_threads, stream, at);
      });
  if (pieces != device::launch_succeeded) return pieces;
  auto const columns = device::warp_width * device::columns_of_lane;
  auto const blocks = (call.rows + device::block_threads - 1) / device::block_threads *
                      ((call.channels + columns - 1) / columns);
  return device::run("embed_backward", &device::add_cut_words<G, T>, blocks, device::block_threads, stream, at);
}

template <class G, class T>
int sum_positions(handle stream, embed_backward_call const& call, backward_scratch const& scratch) {
  using real = typename device::word_sums<G, T>::real;
  auto* const partial = reinterpret_cast<real*>(static_cast<char*>(call.scratch) + scratch.partial);
  auto const columns = call.context * call.channels;
  auto* const dpositions = static_cast<G*>(call.dpositions);
  auto const sums = for_width_of<T>(
      call.channels, aligned_to_packs(call.dpositions) && aligned_to_packs(call.dy),
      [&]<int Width>(std::integral_constant<int, Width>) {
        auto const tasks = columns / Width * (scratch.sums_of_samples > 0 ? scratch.sums_of_samples : 1);
        return device::run("embed_backward", &device::sum_over_samples<Width, G, T>, device::blocks_for(tasks),
                           device::block_threads, stream, dpositions, partial, static_cast<T const*>(call.dy),
                           call.rows / call.context, columns, scratch.samples_at_once);
      });
  if (sums != device::launch_succeeded || scratch.sums_of_samples == 0) return sums;
  return device::launch_column_sums<G, real>("embed_backward", dpositions, nullptr, columns, partial,
                                             scratch.sums_of_samples, columns, stream);
}

}  // namespace

int embed(handle stream, dtype of, void* y, std::int32_t const* tokens, void const* table, void const* positions,
          std::int64_t rows, std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  if (rows == 0 || channels == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    return look_up<false, T>("embed", stream,
                             {static_cast<T*>(y), tokens, static_cast<T const*>(table),
                              static_cast<T const*>(positions), rows, context, channels, first, words});
  });
}
int add_embedded(handle stream, dtype of, void* y, std::int32_t const* tokens, void const* table, std::int64_t rows,
                 std::int64_t channels, std::int64_t words) {
  if (rows == 0 || channels == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    return look_up<true, T>(
        "embed_segments", stream,
        {static_cast<T*>(y), tokens, static_cast<T const*>(table), nullptr, rows, rows, channels, 0, words});
  });
}
int count_separators(handle stream, std::int32_t* segments, std::int32_t const* tokens, std::int64_t samples,
                     std::int64_t context, std::int32_t separator, std::int32_t last) {
  if (samples == 0 || context == 0) return device::launch_succeeded;
  return device::run("embed_segments", &device::count_separators<std::int32_t>,
                     device::blocks_for(samples * device::warp_width), device::block_threads, stream, segments, tokens,
                     samples, context, separator, last);
}

std::size_t embed_backward_scratch(embed_backward_call const& call) {
  return call.rows == 0 ? 0 : backward_scratch(call).bytes;
}
int embed_backward(handle stream, embed_backward_call const& call) {
  if (call.rows == 0 || call.channels == 0) return device::launch_succeeded;
  if (call.rows > std::numeric_limits<std::int32_t>::max() || call.words > std::numeric_limits<std::int32_t>::max())
    return device::launch_refused;
  backward_scratch const scratch(call);
  return device::for_floats(call.of, [&]<class T>(T) {
    auto const add = [&]<class G>(G) {
      if (auto const code = sum_words<G, T>(stream, call, scratch); code != device::launch_succeeded) return code;
      if (call.dpositions == nullptr) return device::launch_succeeded;
      return sum_positions<G, T>(stream, call, scratch);
    };
    if (call.of_gradients == call.of) return add(T{});
    if constexpr (storage_float<T>)
      if (call.of_gradients == dtype::f32) return add(float{});
    return device::launch_refused;
  });
}

}  // namespace trireme::ops::cuda_kernels
