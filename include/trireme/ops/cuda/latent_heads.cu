// The bodies of the functions of ops/cuda/latent_heads_launch.hpp, a part of trireme::cuda.
#include "trireme/ops/cuda/latent_heads_launch.hpp"

#include <cstdint>
#include <numeric>

#include "trireme/ops/cuda/latent_heads.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

int arrange_latent_heads(void* stream, dtype of, void* qkv, void const* queries, void const* pairs, void const* key,
                         void const* table, latent_widths const& how) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const to = static_cast<T*>(qkv);
    auto const* const q = static_cast<T const*>(queries);
    auto const* const p = static_cast<T const*>(pairs);
    auto const* const k = static_cast<T const*>(key);
    return device::with_pack_width<device::pack_width<T>>(
        std::gcd(std::gcd(how.plain, how.rotary), std::gcd(how.values, how.width)),
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::arranging_heads<T, Width> const work{
              to, q, p, k, static_cast<device::sum_type<T> const*>(table), how};
          return device::launch_elements("arrange_latent_heads", work, {},
                                         how.rows * 3 * how.heads * how.width / Width, stream);
        },
        to, q, p, k);
  });
}
int arrange_latent_heads_backward(void* stream, dtype of, void* dqueries, void* dpairs, void* dkey, void const* dqkv,
                                  void const* table, latent_widths const& how) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const q = static_cast<T*>(dqueries);
    auto* const p = static_cast<T*>(dpairs);
    auto* const k = static_cast<T*>(dkey);
    auto const* const from = static_cast<T const*>(dqkv);
    return device::with_pack_width<device::pack_width<T>>(
        std::gcd(std::gcd(how.plain, how.rotary), std::gcd(how.values, how.width)),
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::arranging_heads_backward<T, Width> const work{
              q, p, k, from, static_cast<device::sum_type<T> const*>(table), how};
          return device::launch_elements("arrange_latent_heads_backward", work, {}, work.tasks(), stream);
        },
        q, p, k, from);
  });
}

}  // namespace trireme::ops::cuda_kernels
