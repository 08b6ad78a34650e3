// Steps of optimizers on single tensors in CUDA memory, against those of the host.
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/updates.hpp"

using namespace trireme;
using namespace on_device;

namespace {

/// Values of M, `terms` gradients of G, an output of P.
template <class M, class G, class P>
void check_updates(std::int64_t n, int terms) {
  CAPTURE(dtype_of<M>, dtype_of<G>, dtype_of<P>, n, terms);
  std::vector<std::vector<G>> gradients;
  std::vector<shifted<G>> gradients_there;
  std::vector<tensor_view<G const>> host_terms;
  std::vector<tensor_view<G const, cuda>> device_terms;
  for (int t = 0; t < terms; ++t) {
    gradients.push_back(mixed_numbers<G>(n, 20 + static_cast<std::uint64_t>(t), true));
    gradients_there.emplace_back(gradients.back());
  }
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    host_terms.push_back(tensor_view<G const>(gradients[t]));
    device_terms.push_back(gradients_there[t].view);
  }
  auto value = mixed_numbers<M>(n, 30, true), first = mixed_numbers<M>(n, 31, true),
       second = mixed_numbers<M>(n, 32, true);
  for (auto& each : second) each = std::abs(each);
  auto output = mixed_numbers<P>(n, 33);
  shifted<M> const value_there(value), first_there(first), second_there(second);
  shifted<P> const output_there(output);
  tensor_view<P> const outputs[] = {tensor_view(output)};
  tensor_view<P, cuda> const outputs_there[] = {output_there.view};
  std::span<tensor_view<P> const> const to(outputs);
  std::span<tensor_view<P, cuda> const> const to_there(outputs_there);
  gradient_terms<G, host> const gradient{host_terms, 0.37};
  gradient_terms<G, cuda> const gradient_there{device_terms, 0.37};
  bool const nearly = std::is_same_v<M, double>;  // the host's double has no FMA at its baseline

  ops::adamw_numbers const how{.learning_rate = 0.01, .weight_decay = 0.1, .correction1 = 0.19, .correction2 = 0.002};
  kernels::adamw(value_there.view, first_there.view, second_there.view, gradient_there, to_there, how);
  ops::host_updates::adamw(tensor_view(value), tensor_view(first), tensor_view(second), gradient, to, how);
  CHECK(equal_to_host(value_there.here(), value, nearly));
  CHECK(equal_to_host(first_there.here(), first, nearly));
  CHECK(equal_to_host(second_there.here(), second, nearly));
  CHECK(equal_to_host(output_there.here(), output, nearly));
  for (bool const nesterov : {false, true})
    for (double const momentum : {0.0, 0.9}) {
      CAPTURE(nesterov, momentum);
      ops::sgd_numbers const step{0.1, momentum, nesterov, 0.01};
      kernels::sgd(value_there.view, first_there.view, gradient_there, to_there, step);
      ops::host_updates::sgd(tensor_view(value), tensor_view(first), gradient, to, step);
      CHECK(equal_to_host(value_there.here(), value, nearly));
      CHECK(equal_to_host(first_there.here(), first, nearly));
      CHECK(equal_to_host(output_there.here(), output, nearly));
    }
}

}  // namespace

TEST_CASE("adamw and sgd on a device have the host's bits", "[updates]") {
  for (std::int64_t const n : {0, 1, 37, 2050})
    for (int const terms : {1, 3}) {
      check_updates<float, float, float>(n, terms);
      check_updates<float, float, bfloat16>(n, terms);
      check_updates<double, double, double>(n, terms);
    }
}
