#pragma once

// The kernels of a small network, as a program with CUDA code of its own has them: plain functions around kernels that
// another compiler has compiled. y = w2 . bent(w1 x + b1) + b2, where bent(a) is a for a > 0, else a tenth of a.
namespace network {

inline constexpr int hidden = 37;

/// Addresses of w1, b1 and w2 (hidden) and of b2 (1).
struct numbers {
  float* w1;
  float* b1;
  float* w2;
  float* b2;
};
struct batch {
  numbers values;
  numbers gradients;
  float const* x;  ///< (n)
  float const* y;  ///< (n)
  float* bent;     ///< (n, hidden)
  float* errors;   ///< (n) of the outputs
  int n;
};

/// Writes `bent` and `errors`. In memory of the host, or queued on a stream (a cudaStream_t).
void forward(batch const& all);
[[nodiscard]] int forward_on(void* stream, batch const& all);
/// Writes the gradients of the mean of errors^2.
void backward(batch const& all);
[[nodiscard]] int backward_on(void* stream, batch const& all);

}  // namespace network
