// Tensors of several ranks combined in CUDA memory, by the kernel of communicators, against those of the host.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../../catch.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/reductions.hpp"

using namespace trireme;
using namespace on_device;

namespace {

/// Two outputs; `replaces`: one of them is the first term.
template <class T, class Op>
void check(std::int64_t n, int terms, std::int64_t shift, bool replaces = false) {
  CAPTURE(dtype_of<T>, static_cast<int>(ops::detail::cuda_combination<Op>), n, terms, shift, replaces);
  std::vector<std::vector<T>> from;
  std::vector<shifted<T>> there;
  std::vector<tensor_view<T const, cuda>> on_device_terms;
  std::vector<tensor_view<T const>> host_terms;
  for (int t = 0; t < terms; ++t) {
    from.push_back(mixed_numbers<T>(n, static_cast<std::uint64_t>(t)));
    there.emplace_back(from.back(), shift);
  }
  for (std::size_t t = 0; t < from.size(); ++t) {
    on_device_terms.push_back(there[t].view);
    host_terms.push_back(tensor_view<T const>(from[t]));
  }
  std::vector<T> want(static_cast<std::size_t>(n));
  shifted<T> const first(want, shift), second(want, shift);
  tensor_view<T, cuda> const outputs[] = {first.view, replaces ? there[0].view : second.view};
  tensor_view<T> const host_outputs[] = {tensor_view(want)};
  kernels::reduce(std::span<tensor_view<T, cuda> const>(outputs), on_device_terms, Op{}, terms);
  ops::host_reductions::reduce(std::span<tensor_view<T> const>(host_outputs), host_terms, Op{}, terms);
  CHECK(equal_to_host(first.here(), want));
  CHECK(equal_to_host((replaces ? there[0] : second).here(), want));
}

template <class F>
void for_all_types(F&& f) {
  for_types(f);
  f(std::int64_t{}), f(std::int32_t{}), f(std::int8_t{});
  f(std::uint64_t{}), f(std::uint32_t{}), f(std::uint8_t{});
}

}  // namespace

TEST_CASE("terms combined on a device have the host's bits", "[reduce]") {
  for_all_types([]<class T>(T) {
    for (std::int64_t const n : {0, 1, 37, 4100})
      for (std::int64_t const shift : {0, 1})
        for (int const terms : {1, 3}) {
          check<T, reduction::sum>(n, terms, shift);
          check<T, reduction::max>(n, terms, shift);
          check<T, reduction::min>(n, terms, shift);
          if constexpr (!std::is_integral_v<T>) check<T, reduction::mean>(n, terms, shift);
        }
    check<T, reduction::sum>(37, 3, 0, true);
  });
}

TEST_CASE("pairwise sums on a device have the bits of the host's tree", "[reduce]") {
  for_all_types([]<class T>(T) {
    for (int const terms : {1, 2, 3, 4, 7, 8, 12})
      for (std::int64_t const n : {0, 1, 37, 300})
        for (std::int64_t const shift : {0, 1}) check<T, reduction::pairwise>(n, terms, shift);
    check<T, reduction::pairwise>(4100, 5, 1);
    check<T, reduction::pairwise>(1101, 8, 3, true);
    for (int const terms : {255, 256}) check<T, reduction::pairwise>(21, terms, 0);
  });
}
