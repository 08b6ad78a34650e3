// multiply() of ops/cuda/products_launch.hpp for the stand-in for a GPU: plain loops on the stream, in the place of
// cuBLASLt. A call that cuBLASLt documents as wrong fails here; one that it may have no algorithm for is refused, so
// that what the library does then is tested, too.
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "../../support/simt/threads.hpp"
#include "trireme/ops/cuda/products_launch.hpp"

namespace stand_in {

void queue_kernel(void* stream, std::function<void()> kernel);

}  // namespace stand_in

namespace trireme::ops::cuda_kernels {

namespace {

using state = product_outcome::state;

bool is_half(dtype type) { return type == dtype::bf16 || type == dtype::f16; }
std::int64_t bytes_of(dtype type) { return type == dtype::f64 ? 8 : is_half(type) ? 2 : 4; }
bool is_aligned(void const* address, std::int64_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(to) == 0;
}

/// The rule that the call breaks, or null.
char const* broken_rule(product_call const& call) {
  auto const of = bytes_of(call.of), to = bytes_of(call.to_type);
  if (call.rows < 1 || call.columns < 1 || call.inner < 1) return "a matrix is empty";
  if (call.left == nullptr || call.right == nullptr || call.to == nullptr) return "a matrix has no address";
  if (call.of != call.to_type && !(is_half(call.of) && call.to_type == dtype::f32))
    return "the types of operands and result do not go together";
  if (call.left_row < (call.left_transposed ? call.rows : call.inner) ||
      call.right_row < (call.right_transposed ? call.inner : call.columns) || call.to_row < call.columns)
    return "a leading dimension is less than a row";
  if (!is_aligned(call.left, of) || !is_aligned(call.right, of) || !is_aligned(call.to, to) ||
      !is_aligned(call.added, to) || !is_aligned(call.bias, to))
    return "an address is not aligned for its elements";
  if (call.tf32 && call.of != dtype::f32) return "operands that are not float are to be rounded to TF32";
  bool const has_bias = call.epilogue == product_epilogue::bias || call.epilogue == product_epilogue::gelu_bias;
  if (has_bias != (call.bias != nullptr)) return "a bias without its epilogue, or the reverse";
  bool const sums = call.epilogue == product_epilogue::left_sums || call.epilogue == product_epilogue::right_sums;
  if (sums != (call.sums != nullptr)) return "sums without their epilogue, or the reverse";
  bool const may_keep = !sums && call.epilogue != product_epilogue::none && call.epilogue != product_epilogue::bias;
  if (call.kept != nullptr && !may_keep) return "an auxiliary matrix without its epilogue";
  if (call.epilogue == product_epilogue::gelu_slope && call.kept == nullptr) return "no auxiliary matrix";
  if (call.kept != nullptr && (call.to_row % 8 != 0 || !is_aligned(call.kept, 16)))
    return "the leading dimension or the address of the auxiliary matrix is not aligned";
  if (call.kept != nullptr && call.kept == call.to) return "the auxiliary matrix is the result";
  return nullptr;
}

/// GELU with tanh, and its derivative.
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  auto const t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/// As cvt.rna.tf32.f32 rounds on a GPU: to the nearest number with 10 bits behind the point, of two the larger.
float as_tf32(float x) {
  if (!std::isfinite(x)) return x;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000U) & 0xffff'e000U);
}

template <class T, class G>
void run(product_call const& call) {
  using real = accumulate_t<T>;
  auto const* const left = static_cast<T const*>(call.left);
  auto const* const right = static_cast<T const*>(call.right);
  auto* const to = static_cast<G*>(call.to);
  auto const* const added = static_cast<G const*>(call.added);
  auto const* const bias = static_cast<G const*>(call.bias);
  auto* const kept = static_cast<G*>(call.kept);
  auto* const sums = static_cast<G*>(call.sums);
  auto const left_at = [&](std::int64_t r, std::int64_t i) {
    return static_cast<real>(call.left_transposed ? left[i * call.left_row + r] : left[r * call.left_row + i]);
  };
  auto const right_at = [&](std::int64_t i, std::int64_t c) {
    return static_cast<real>(call.right_transposed ? right[c * call.right_row + i] : right[i * call.right_row + c]);
  };
  auto const operand = [&](real x) {
    if constexpr (std::is_same_v<T, float>) return call.tf32 ? as_tf32(x) : x;
    return x;
  };
  if (sums != nullptr) {
    bool const of_left = call.epilogue == product_epilogue::left_sums;
    for (std::int64_t k = 0; k < (of_left ? call.rows : call.columns); ++k) {
      real sum = 0;
      for (std::int64_t i = 0; i < call.inner; ++i) sum += of_left ? left_at(k, i) : right_at(i, k);
      sums[k] = static_cast<G>(sum);
    }
  }
  for (std::int64_t r = 0; r < call.rows; ++r) {
    for (std::int64_t c = 0; c < call.columns; ++c) {
      real sum = 0;
      for (std::int64_t i = 0; i < call.inner; ++i) sum += operand(left_at(r, i)) * operand(right_at(i, c));
      auto const at = r * call.to_row + c;
      if (added != nullptr) sum += static_cast<real>(added[at]);
      if (bias != nullptr) sum += static_cast<real>(bias[c]);
      if (call.epilogue == product_epilogue::gelu_slope) {
        sum *= static_cast<real>(gelu_slope(static_cast<double>(kept[at])));
      } else if (call.epilogue == product_epilogue::gelu || call.epilogue == product_epilogue::gelu_bias) {
        if (kept != nullptr) kept[at] = static_cast<G>(sum);
        sum = static_cast<real>(gelu(static_cast<double>(sum)));
      }
      to[at] = static_cast<G>(sum);
    }
  }
}

}  // namespace

product_outcome multiply(handle stream, product_call const& call) {
  if (auto const* const rule = broken_rule(call)) return {state::failed, "the stand-in for cuBLASLt", rule};
  // cuBLASLt says little about these.
  bool const has_epilogue = call.epilogue != product_epilogue::none;
  if (has_epilogue && (call.of == dtype::f64 || !is_aligned(call.bias, 16)))
    return {state::unsupported, "the stand-in for cuBLASLt", "not supported"};
  auto const work = [call] {
    bool const widens = call.of != call.to_type;
    switch (call.of) {
      case dtype::f64:
        return run<double, double>(call);
      case dtype::bf16:
        return widens ? run<bfloat16, float>(call) : run<bfloat16, bfloat16>(call);
      case dtype::f16:
        return widens ? run<float16, float>(call) : run<float16, float16>(call);
      default:
        return run<float, float>(call);
    }
  };
  if (stream != nullptr)
    stand_in::queue_kernel(stream, work);
  else
    work();
  return {};
}

double product_microseconds(handle /*stream*/, product_call const& /*call*/) { return 0; }

}  // namespace trireme::ops::cuda_kernels
