// The bodies of the functions of ops/cuda/codes_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/codes_launch.hpp"

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/codes.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// Calls f(std::integral_constant<int, bits>{}, G{}) with the type of a gradient.
template <class F>
int for_codes(int bits, dtype of, F&& f) {
  auto const with_bits = [&]<class G>(G g) {
    switch (bits) {
      case 8:
        return f(std::integral_constant<int, 8>{}, g);
      case 4:
        return f(std::integral_constant<int, 4>{}, g);
      case 2:
        return f(std::integral_constant<int, 2>{}, g);
      default:
        return f(std::integral_constant<int, 1>{}, g);
    }
  };
  if (of == dtype::f32) return with_bits(float{});
  if (of == dtype::f64) return with_bits(double{});
  return device::launch_refused;
}
/// Calls f(T{}, G{}) with the types of values and of a gradient.
template <class F>
int for_drawn(dtype values, dtype gradient, F&& f) {
  auto const with_gradient = [&]<class G>(G g) {
    switch (values) {
      case dtype::f64:
        return f(double{}, g);
      case dtype::f32:
        return f(float{}, g);
      case dtype::bf16:
        return f(bfloat16{}, g);
      case dtype::f16:
        return f(float16{}, g);
      default:
        return device::launch_refused;
    }
  };
  if (gradient == dtype::f32) return with_gradient(float{});
  if (gradient == dtype::f64) return with_gradient(double{});
  return device::launch_refused;
}
bool aligned_words(std::uint8_t const* codes) { return reinterpret_cast<std::uintptr_t>(codes) % 4 == 0; }

}  // namespace

int encode_codes(void* stream, float* scales, std::uint8_t* codes, dtype of, void const* x, std::int64_t n,
                 code_form const& form, random_stream const* rounding) {
  if (n == 0) return device::launch_succeeded;
  return for_codes(form.bits, of, [&]<class Bits, class G>(Bits, G) {
    auto const most = device::most_blocks() * 4;  // they are small
    auto const blocks = form.scales(n);
    return device::run("encode_codes", &device::encode_codes<Bits::value, G>, blocks < most ? blocks : most,
                       device::encoding_threads, stream, scales, codes, aligned_words(codes), static_cast<G const*>(x),
                       n, form.block, rounding != nullptr, rounding == nullptr ? random_stream{} : *rounding);
  });
}
int decode_codes(void* stream, dtype of, void* y, float const* scales, std::uint8_t const* codes, std::int64_t n,
                 code_form const& form, bool add) {
  if (n == 0) return device::launch_succeeded;
  return for_codes(form.bits, of, [&]<class Bits, class G>(Bits, G) {
    device::decoding<Bits::value, G> const work{static_cast<G*>(y),   scales, codes, n, form.block,
                                                aligned_words(codes), add};
    return device::launch_elements("decode_codes", work, {}, form.code_bytes(n) / 4, stream);
  });
}
int gather_drawn(void* stream, dtype to, void* values, std::int64_t k, dtype of, void const* x, std::int64_t n,
                 random_stream const& drawn, bool weighted) {
  return for_drawn(to, of, [&]<class T, class G>(T, G) {
    device::gathering_drawn<T, G> const work{static_cast<T*>(values), static_cast<G const*>(x), k, n, drawn, weighted};
    return device::launch_elements("gather_drawn", work, {}, (k + 3) / 4, stream);
  });
}
int scatter_drawn(void* stream, dtype of, void* y, std::int64_t n, dtype from, void const* values, std::int64_t k,
                  random_stream const& drawn) {
  return for_drawn(from, of, [&]<class T, class G>(T, G) {
    device::scattering_drawn<G, T> const work{static_cast<G*>(y), static_cast<T const*>(values), k, n, drawn};
    return device::launch_elements("scatter_drawn", work, {}, (k + 3) / 4, stream);
  });
}

}  // namespace trireme::ops::cuda_kernels
