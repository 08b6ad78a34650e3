// The bodies of the functions of ops/cuda/images_launch.hpp, a part of trireme::cuda.
#include "trireme/ops/cuda/images_launch.hpp"

#include <cstdint>

#include "trireme/ops/cuda/images.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

int patches(void* stream, dtype of, void* y, void const* x, image_window const& at, std::int64_t images,
            std::int64_t gap) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(y);
    auto const* const from = static_cast<T const*>(x);
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          auto const numbers = images * (gap + at.rows * at.columns) * at.kernel * at.kernel * at.channels;
          return device::launch_elements("patches", device::extracting_patches<T, Width>{to, from, at, gap}, {},
                                         numbers / Width, stream);
        },
        to, from);
  });
}
int patches_backward(void* stream, dtype of, void* dx, void const* dy, image_window const& at, std::int64_t images,
                     std::int64_t gap) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(dx);
    auto const* const from = static_cast<T const*>(dy);
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          auto const numbers = images * at.height * at.width * at.channels;
          return device::launch_elements("patches_backward", device::gathering_patches<T, Width>{to, from, at, gap},
                                         {}, numbers / Width, stream);
        },
        to, from);
  });
}

int add_positions(void* stream, dtype of, void* y, void const* x, void const* table, void const* token,
                  std::int64_t rows, std::int64_t width, std::int64_t positions, std::int64_t first) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(y);
    auto const* const from = static_cast<T const*>(x);
    auto const* const added = static_cast<T const*>(table);
    auto const* const special = static_cast<T const*>(token);
    return device::with_pack_width<device::pack_width<T>>(
        width,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::adding_positions<T, Width> const work{to, from, added, special, width / Width, positions, first};
          return device::launch_elements("add_positions", work, {}, rows * width / Width, stream);
        },
        to, from, added, special);
  });
}
int add_positions_backward(void* stream, dtype of, void* dx, void const* dy, void* dtable, void* dtoken,
                           std::int64_t rows, std::int64_t width, std::int64_t positions, std::int64_t first,
                           bool accumulate) {
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto* const to = static_cast<T*>(dx);
    auto const* const from = static_cast<T const*>(dy);
    auto* const of_table = static_cast<real*>(dtable);
    auto* const of_token = static_cast<real*>(dtoken);
    return device::with_pack_width<device::pack_width<T, real>>(
        width,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::adding_positions_backward<T, Width> const work{
              to, from, of_table, of_token, rows, width / Width, positions, first, accumulate};
          return device::launch_elements("add_positions_backward", work, {}, positions * width / Width, stream);
        },
        to, from, of_table, of_token);
  });
}

int max_pool(void* stream, dtype of, void* y, void const* x, image_window const& at, std::int64_t images) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(y);
    auto const* const from = static_cast<T const*>(x);
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          return device::launch_elements("max_pool", device::taking_maximum<T, Width>{to, from, at}, {},
                                         images * at.rows * at.columns * at.channels / Width, stream);
        },
        to, from);
  });
}
int max_pool_backward(void* stream, dtype of, void* dx, void const* dy, void const* x, image_window const& at,
                      std::int64_t images) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(dx);
    auto const* const from = static_cast<T const*>(dy);
    auto const* const before = static_cast<T const*>(x);
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          return device::launch_elements("max_pool_backward",
                                         device::gathering_maximum<T, Width>{to, from, before, at}, {},
                                         images * at.height * at.width * at.channels / Width, stream);
        },
        to, from, before);
  });
}

int average_pool(void* stream, dtype of, void* y, void const* x, image_window const& at, std::int64_t images) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(y);
    auto const* const from = static_cast<T const*>(x);
    auto const each = device::sum_type<T>(1) / static_cast<device::sum_type<T>>(at.kernel * at.kernel);
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          return device::launch_elements("average_pool", device::taking_average<T, Width>{to, from, at, each}, {},
                                         images * at.rows * at.columns * at.channels / Width, stream);
        },
        to, from);
  });
}
int average_pool_backward(void* stream, dtype of, void* dx, void const* dy, image_window const& at,
                          std::int64_t images) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(dx);
    auto const* const from = static_cast<T const*>(dy);
    auto const each = device::sum_type<T>(1) / static_cast<device::sum_type<T>>(at.kernel * at.kernel);
    auto window = at;
    window.padding = 0;
    return device::with_pack_width<device::pack_width<T>>(
        at.channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          return device::launch_elements("average_pool_backward",
                                         device::gathering_average<T, Width>{to, from, window, each}, {},
                                         images * at.height * at.width * at.channels / Width, stream);
        },
        to, from);
  });
}

}  // namespace trireme::ops::cuda_kernels
