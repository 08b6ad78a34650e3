#pragma once

// An optimizer as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/trireme.hpp>

namespace user {

using namespace trireme;

/// Steps along gradients whose rows are made independent of each other: a running mean C of G G^T, a matrix for each
/// tensor, is factored as L L^T, and the step is L^-1 G. A vector is a matrix of one row.
struct whitened {
  using policy_category = slot::optimizer;
  double learning_rate = 0.01;
  double memory = 0.9;  // of the running mean
  double clip = 0;
  friend bool operator==(whitened const&, whitened const&) = default;

  static constexpr bool whole_tensors = true;
  static constexpr std::array<std::string_view, 1> moment_names{"covariance"};
  static std::int64_t rows_of(parameter_info const& info) { return info.extents.rank() > 1 ? info.extents[0] : 1; }
  static shape moment_shape(std::size_t, parameter_info const& info) { return {rows_of(info), rows_of(info)}; }
  double rate_at(std::int64_t) const { return learning_rate; }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    using kernels = ops::on<typename Env::space>;
    using number = typename Env::master;
    auto const n = static_cast<std::size_t>(rows_of(tensor.info));
    kernels::with_values(
        [&](auto value, auto covariance, auto gradient) {
          auto const m = value.size() / n;
          std::vector<double> g(value.size());
          for (std::size_t i = 0; i < g.size(); ++i) g[i] = tensor.scale * static_cast<double>(gradient[i]);
          // The mean starts at zero: what it lacks after the first steps is made up for.
          double const grown = 1 - std::pow(memory, static_cast<double>(step + 1));
          std::vector<double> lower(n * n);
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = 0; j <= i; ++j) {
              double sum = 0;
              for (std::size_t k = 0; k < m; ++k) sum += g[i * m + k] * g[j * m + k] / static_cast<double>(m);
              auto const mean = memory * static_cast<double>(covariance[i * n + j]) + (1 - memory) * sum;
              covariance[i * n + j] = covariance[j * n + i] = static_cast<number>(mean);
              lower[i * n + j] = mean / grown;
            }
          }
          double trace = 1e-12;
          for (std::size_t i = 0; i < n; ++i) trace += lower[i * n + i] / static_cast<double>(n);
          for (std::size_t i = 0; i < n; ++i) lower[i * n + i] += 0.1 * trace;
          factor(lower, n);
          for (std::size_t i = 0; i < n; ++i) {  // L x = g, row by row
            for (std::size_t k = 0; k < m; ++k) {
              double sum = g[i * m + k];
              for (std::size_t j = 0; j < i; ++j) sum -= lower[i * n + j] * g[j * m + k];
              g[i * m + k] = sum / lower[i * n + i];
              value[i * m + k] -= static_cast<number>(learning_rate * g[i * m + k]);
            }
          }
        },
        tensor.value, tensor.moments[0], tensor.gradient);
    for (auto const& output : tensor.outputs)
      kernels::copy(output, tensor_view<number const, typename Env::space>(tensor.value));
  }

 private:
  // Cholesky, in place: the lower triangle of a matrix becomes L.
  static void factor(std::vector<double>& a, std::size_t n) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < j; ++k)
        for (std::size_t i = j; i < n; ++i) a[i * n + j] -= a[i * n + k] * a[j * n + k];
      double const root = std::sqrt(a[j * n + j]);
      for (std::size_t i = j; i < n; ++i) a[i * n + j] /= root;
    }
  }
};

inline std::string to_string(whitened const& o) {
  return text("user::whitened{.learning_rate = ", o.learning_rate, ", .memory = ", o.memory, "}");
}

}  // namespace user
