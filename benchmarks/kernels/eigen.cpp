// Products by Eigen as its users write them, in a separate library: kernels_products links two of them, one compiled
// with plain flags and one for this CPU, whose functions of the same name must not be mixed.
#include <Eigen/Core>
#include <cstdint>

namespace {

template <class T, int Order>
using matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order> const>;

template <class T, class Left, class Right>
void multiply(void* to, bool add, Left const& left, Right const& right) {
  using Eigen::Dynamic;
  if (add) {
    Eigen::Map<Eigen::Matrix<float, Dynamic, Dynamic, Eigen::RowMajor>> sums(static_cast<float*>(to), left.rows(),
                                                                             right.cols());
    sums.noalias() += left.template cast<float>() * right.template cast<float>();
  } else {
    Eigen::Map<Eigen::Matrix<T, Dynamic, Dynamic, Eigen::RowMajor>> result(static_cast<T*>(to), left.rows(),
                                                                           right.cols());
    result.noalias() = left * right;
  }
}

template <class T>
void multiply(void* to, bool add, void const* left, bool left_turned, void const* right, bool right_turned,
              std::int64_t m, std::int64_t n, std::int64_t k) {
  auto const* const a = static_cast<T const*>(left);
  auto const* const b = static_cast<T const*>(right);
  auto const from = [&](auto const& x) {
    right_turned ? multiply<T>(to, add, x, matrix<T, Eigen::ColMajor>(b, k, n))
                 : multiply<T>(to, add, x, matrix<T, Eigen::RowMajor>(b, k, n));
  };
  left_turned ? from(matrix<T, Eigen::ColMajor>(a, m, k)) : from(matrix<T, Eigen::RowMajor>(a, m, k));
}

}  // namespace

/// to (m, n) = left (m, k) right (k, n) in float or bfloat16; with `add` the product is added to floats.
extern "C" __attribute__((visibility("default"))) void TRIREME_EIGEN(bool bf16, void* to, bool add, void const* left,
                                                                     bool left_turned, void const* right,
                                                                     bool right_turned, std::int64_t m, std::int64_t n,
                                                                     std::int64_t k) {
  bf16 ? multiply<Eigen::bfloat16>(to, add, left, left_turned, right, right_turned, m, n, k)
       : multiply<float>(to, add, left, left_turned, right, right_turned, m, n, k);
}
