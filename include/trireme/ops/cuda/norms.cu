// The bodies of the functions of ops/cuda/norms_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/norms_launch.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/columns.cuh"
#include "trireme/ops/cuda/norms.cuh"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// The most channels of a row that stays in registers.
inline constexpr std::int64_t most_channels_in_registers = 8192;
template <class T>
bool rows_fit_registers(std::int64_t channels) {
  return !std::is_same_v<T, double> && channels <= most_channels_in_registers &&
         channels % device::pack_width<T> == 0;
}
template <class... T>
bool start_at_packs(T const*... tensors) {
  return ((reinterpret_cast<std::uintptr_t>(tensors) % 16 == 0) && ...);
}
std::int64_t blocks_of_rows(std::int64_t rows, std::int64_t rows_at_once, std::int64_t most) {
  auto const wanted = (rows + rows_at_once - 1) / rows_at_once;
  return wanted < most ? wanted : most;
}
/// So many blocks for each multiprocessor; most_blocks() has eight.
std::int64_t blocks_on_processors(int each) { return (device::most_blocks() * each + 7) / 8; }
/// Of any backward kernel, and so the most rows of partial sums.
inline constexpr int backward_blocks_of_processor = 4;

template <int Values, int Threads, int Block>
struct sharing_by {
  static constexpr int values = Values, threads = Threads, block = Block;
};

template <bool Centred, class T>
int norm(char const* name, device::norm_forward<T> const& at, handle stream) {
  constexpr int warp = device::warp_width;
  constexpr int block = device::block_threads;
  if constexpr (!std::is_same_v<T, double>) {
    if (rows_fit_registers<T>(at.channels) && start_at_packs(at.y, at.x, at.gain, Centred ? at.bias : at.gain)) {
      // As many blocks as are on the device at once, or twice as many: `of_processor` is the number for which a
      // multiprocessor has registers, or a multiple of it. So no few blocks are left over at the end.
      auto const launch = [&]<class S>(S, int of_processor) {
        return device::run(name, &device::normalise_rows<Centred, T, S::values, S::threads, S::block>,
                           blocks_of_rows(at.rows, S::block / S::threads, blocks_on_processors(of_processor)), S::block,
                           stream, at);
      };
      if (at.channels <= warp * 8) return launch(sharing_by<8, warp, block>{}, 8);
      if (at.channels <= warp * 24) return launch(sharing_by<24, warp, block>{}, 8);
      if (at.channels <= warp * 32) return launch(sharing_by<32, warp, block>{}, 8);
      if (at.channels <= block * 8) return launch(sharing_by<8, block, block>{}, 6);
      if (at.channels <= block * 16) return launch(sharing_by<16, block, block>{}, 4);
      return launch(sharing_by<32, block, block>{}, 3);
    }
  }
  return device::run(name, &device::normalise_any_rows<Centred, T>, blocks_of_rows(at.rows, 1, device::most_blocks()),
                     block, stream, at);
}

template <bool Centred, class T>
int norm_backward(char const* name, device::norm_backward<T> const& at, void* dgain, void* dbias, handle stream) {
  using real = typename device::norm_backward<T>::real;
  constexpr int warp = device::warp_width;
  auto const finish = [&](int queued, std::int64_t blocks) {
    if (queued != device::launch_succeeded) return queued;
    return device::launch_column_sums(name, static_cast<real*>(dgain), static_cast<real*>(dbias), at.channels,
                                      at.partial, blocks, (Centred ? 2 : 1) * at.channels, stream);
  };
  if constexpr (!std::is_same_v<T, double>) {
    if (rows_fit_registers<T>(at.channels) && start_at_packs(at.dx, at.dy, at.x, at.gain)) {
      // As many blocks as are on the device at once, so that all have the same number of rows: the last argument is
      // the number of blocks whose registers a multiprocessor has.
      auto const launch = [&]<int OfProcessor, class S>(S, std::integral_constant<int, OfProcessor>) {
        static_assert(OfProcessor <= backward_blocks_of_processor);
        auto const blocks = blocks_of_rows(at.rows, S::block / S::threads, blocks_on_processors(OfProcessor));
        auto* const kernel =
            &device::normalise_rows_backward<Centred, T, S::values, S::threads, S::block, OfProcessor>;
        return finish(device::run(name, kernel, blocks, S::block, stream, at), blocks);
      };
      using one = std::integral_constant<int, 1>;
      using two = std::integral_constant<int, 2>;
      using three = std::integral_constant<int, 3>;
      using four = std::integral_constant<int, 4>;
      if (at.channels <= warp * 8) return launch(sharing_by<8, warp, 256>{}, four{});
      constexpr bool narrow = sizeof(T) == 2;
      if (at.channels <= warp * 24)
        return launch(sharing_by<24, warp, 128>{}, std::conditional_t<narrow, four, three>{});
      if (at.channels <= warp * 32)
        return launch(sharing_by<32, warp, 128>{}, std::conditional_t<narrow, three, two>{});
      if (at.channels <= 256 * 8) return launch(sharing_by<8, 256, 256>{}, three{});
      if (at.channels <= 256 * 16) return launch(sharing_by<16, 256, 256>{}, two{});
      return launch(sharing_by<16, 512, 512>{}, one{});
    }
  }
  auto const blocks = blocks_of_rows(at.rows, 1, blocks_on_processors(backward_blocks_of_processor));
  return finish(device::run(name, &device::normalise_any_rows_backward<Centred, T>, blocks, device::block_threads,
                            stream, at),
                blocks);
}

template <bool Centred>
int norm_of(char const* name, handle stream, dtype of, void* y, void* mean, void* rstd, void const* x,
            void const* gain, void const* bias, std::int64_t rows, std::int64_t channels, double epsilon) {
  if (rows == 0 || channels == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = typename device::norm_forward<T>::real;
    return norm<Centred, T>(name,
                            {static_cast<T*>(y), static_cast<real*>(mean), static_cast<real*>(rstd),
                             static_cast<T const*>(x), static_cast<T const*>(gain), static_cast<T const*>(bias), rows,
                             channels, real{1} / static_cast<real>(channels), static_cast<real>(epsilon)},
                            stream);
  });
}
template <bool Centred>
int norm_backward_of(char const* name, handle stream, norm_backward_call const& call) {
  if (call.rows == 0 || call.channels == 0) return device::launch_succeeded;
  return device::for_floats(call.of, [&]<class T>(T) {
    using real = typename device::norm_backward<T>::real;
    return norm_backward<Centred, T>(
        name,
        {static_cast<T*>(call.dx), static_cast<T const*>(call.dy), static_cast<T const*>(call.x),
         static_cast<real const*>(call.mean), static_cast<real const*>(call.rstd), static_cast<T const*>(call.gain),
         static_cast<real*>(call.scratch), call.rows, call.channels, real{1} / static_cast<real>(call.channels),
         call.accumulate},
        call.dgain, call.dbias, stream);
  });
}

}  // namespace

int layer_norm(handle stream, dtype of, void* y, void* mean, void* rstd, void const* x, void const* gain,
               void const* bias, std::int64_t rows, std::int64_t channels, double epsilon) {
  return norm_of<true>("layer_norm", stream, of, y, mean, rstd, x, gain, bias, rows, channels, epsilon);
}
int rms_norm(handle stream, dtype of, void* y, void* rstd, void const* x, void const* gain, std::int64_t rows,
             std::int64_t channels, double epsilon) {
  return norm_of<false>("rms_norm", stream, of, y, nullptr, rstd, x, gain, nullptr, rows, channels, epsilon);
}

std::size_t norm_backward_scratch(dtype of, std::int64_t rows, std::int64_t channels) {
  auto const blocks = blocks_of_rows(rows, 1, blocks_on_processors(backward_blocks_of_processor));
  return static_cast<std::size_t>(blocks * 2 * channels) * (of == dtype::f64 ? sizeof(double) : sizeof(float));
}
int layer_norm_backward(handle stream, norm_backward_call const& call) {
  return norm_backward_of<true>("layer_norm_backward", stream, call);
}
int rms_norm_backward(handle stream, norm_backward_call const& call) {
  return norm_backward_of<false>("rms_norm_backward", stream, call);
}

}  // namespace trireme::ops::cuda_kernels
