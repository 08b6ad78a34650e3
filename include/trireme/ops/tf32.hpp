#pragma once

#include <utility>

namespace trireme::ops {

template <class Space>
struct on;

/// While it lives, products of float that the calling thread queues in CUDA memory may round their operands to TF32.
///
/// Why      tensor cores multiply float in no other format, and without them a GPU takes several times as long. Nothing
///          in the library rounds so unless a program names it: here, or by precision::fp32{.tf32_products = true}.
/// Numerics TF32 has float's exponents and 10 bits behind the point in place of 23, so an operand changes by at most
///          2^-10 of itself. Products and sums are float. Products of double and of 16 bits stay as they are, as do
///          products in host memory.
/// Threads  changes the calling thread's products only; scopes end in the reverse order of their beginning.
class tf32_products {
 public:
  /// @param allowed  false: products of float are strict within this scope.
  explicit tf32_products(bool allowed = true) noexcept : before_(std::exchange(of_thread(), allowed)) {}
  tf32_products(tf32_products const&) = delete;
  tf32_products& operator=(tf32_products const&) = delete;
  ~tf32_products() { of_thread() = before_; }

  /// Whether the calling thread is within such a scope.
  [[nodiscard]] static bool allowed() noexcept { return of_thread(); }

 private:
  [[nodiscard]] static bool& of_thread() noexcept {
    thread_local bool is_allowed = false;
    return is_allowed;
  }
  bool before_;
};

/// Whether products of this space can round to TF32.
template <class Space>
concept has_tf32_products = requires {
  requires on<Space>::rounds_to_tf32;
};

}  // namespace trireme::ops
