// Dropout, copies of blocks and pairwise sums in CUDA memory, against those of the host.
#include <array>
#include <cstdint>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "site_there.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace on_device;

namespace {

using on_host = ops::host_elementwise;
template <class Precision>
constexpr bool has_elements =
    ops::detail::activates<kernels, ops::detail::set_views<cuda, environment<Precision, cuda>>, cuda>;
static_assert(has_elements<precision::fp32> && has_elements<precision::fp64> && has_elements<precision::bf16> &&
              has_elements<precision::fp16>);

std::vector<std::int64_t> samples_of(std::int64_t n) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i * 123456789012ULL + 5);
  return all;
}

}  // namespace

TEST_CASE("dropout on a device drops the host's numbers of all samples, and of a range of them", "[elements]") {
  for_types([]<class T>(T) {
    for (auto const& [count, each] :
         {std::array<std::int64_t, 2>{1, 37}, {3, 96}, {3, 41}, {300, 8}, {300, 5}, {2, large ? 8000000 : 4000}}) {
      auto const samples = samples_of(count);
      dropout_site site{0.3, {42, 7}, 5, samples};
      auto const all = count * each;
      for (auto const& [first, n] :
           {std::array<std::int64_t, 2>{0, all}, {3, all - 5}, {8, 8}, {all - 9, 9}, {8, all / 16 * 8}}) {
        for (std::int64_t const shift : {0, 1}) {
          CAPTURE(count, each, first, n, shift, sizeof(T));
          if (first + n > all || first < 0) continue;
          site.first = first;
          site.whole = all;
          auto y = numbers<T>(n, 1);
          shifted<T> const there(y, shift);
          kernels::dropout(there.view, site_there(site)());
          on_host::dropout(tensor_view(y), site);
          CHECK(same(there.here(), y));
        }
      }
    }
  });
  auto const samples = samples_of(3);
  shifted<float> const there(numbers<float>(10, 1));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::dropout(there.view, site_there({0.3, {42, 7}, 5, samples})());
        }) == "trireme::ops::dropout: 10 elements from 0 on, of 10, do not divide into 3 samples");
}

TEST_CASE("dropout of parts of samples on a device drops the host's numbers", "[elements]") {
  for_types([]<class T>(T) {
    for (auto const& cut : {
             ops::dropout_cut{0, 6, 6, {0, 0}, 20, 1, 0, 20},   // whole rows
             ops::dropout_cut{2, 6, 4, {8, 30}, 20, 1, 0, 20},  // positions in two stretches
             ops::dropout_cut{1, 6, 4, {8, 30}, 21, 3, 2, 3},   // some columns of each of three matrices
             ops::dropout_cut{0, 6, 3, {0, 3}, 32, 1, 8, 16},
             ops::dropout_cut{3, 1, 1, {2, 0}, 10, 2, 1, 4},  // a row a sample
         }) {
      auto const samples = samples_of(400);
      dropout_site const site{0.4, {42, 9}, 3, samples};
      auto const rows = cut.context == 1 ? 390 : 22;
      auto y = numbers<T>(rows * cut.fused * cut.columns, 1);
      shifted<T> const there(y);
      kernels::dropout_part(there.view, site_there(site)(), cut);
      on_host::dropout_part(tensor_view(y), site, cut);
      CHECK(same(there.here(), y));
    }
  });
}

TEST_CASE("pairwise sums on a device have the bits of the host's tree", "[elements]") {
  auto const check = []<class T>(T) {
    for (std::int64_t const count : {1, 2, 3, 4, 7, 8})
      for (auto const& [size, shift] : {std::array<std::int64_t, 2>{0, 0}, {1, 3}, {77, 0}, {1101, 1}}) {
        CAPTURE(dtype_of<T>, count, size, shift);
        std::vector<std::vector<T>> x;
        std::vector<shifted<T>> there;
        std::vector<tensor_view<T const, cuda>> terms;
        std::vector<tensor_view<T const>> host_terms;
        for (std::int64_t i = 0; i < count; ++i) {
          auto& own = x.emplace_back(static_cast<std::size_t>(size));
          if constexpr (std::is_integral_v<T>)  // sums wrap
            for (std::size_t at = 0; at < own.size(); ++at)
              own[at] = static_cast<T>(mix(at + static_cast<std::size_t>(i) * 9973));
          else
            own = numbers<T>(size, static_cast<std::uint64_t>(i));
          there.emplace_back(own, shift);
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
          terms.push_back(there[i].view);
          host_terms.push_back(tensor_view<T const>(x[i]));
        }
        std::vector<T> sums(static_cast<std::size_t>(size));
        shifted<T> const to(sums, shift);
        tensor_view<T, cuda> const outputs[] = {to.view, there[0].view};  // one is a term
        tensor_view<T> const host_outputs[] = {tensor_view(sums)};
        kernels::reduce(std::span<tensor_view<T, cuda> const>(outputs), terms, reduction::pairwise{});
        ops::host_reductions::reduce(std::span<tensor_view<T> const>(host_outputs), host_terms, reduction::pairwise{});
        CHECK(to.here() == sums);
        CHECK(there[0].here() == sums);
      }
  };
  for_types(check);
  check(std::int64_t{}), check(std::uint64_t{}), check(std::int32_t{}), check(std::uint32_t{});
  check(std::int8_t{}), check(std::uint8_t{});
}

TEST_CASE("blocks of rows are copied on a device as on the host", "[elements]") {
  struct copy {
    ops::block_places to, from;
    ops::block_extents extents;
  };
  for_types([&]<class T>(T) {
    for_types([&]<class U>(U) {
      for (auto const& each : {
               copy{{0, 64, 16}, {8, 128, 32}, {4, 3, 16}},  // packs
               copy{{3, 50, 11}, {1, 70, 13}, {3, 4, 7}},
               copy{{0, 40, 8}, {0, 40, 8}, {5, 5, 8}},  // rows side by side
               copy{{0, 8, 8}, {0, 16, 8}, {2, 0, 8}},   // nothing
               copy{{5, 0, 0}, {7, 0, 0}, {1, 1, 90}},
           }) {
        auto y = numbers<T>(600, 1);
        auto const x = numbers<U>(700, 2);
        shifted<T> const there(y);
        shifted<U> const from(x);
        tensor_view<U const, cuda> const source = from.view;
        kernels::copy_blocks(there.view, each.to, source, each.from, each.extents);
        on_host::copy_blocks(tensor_view(y), each.to, tensor_view(x), each.from, each.extents);
        CHECK(same(there.here(), y));
      }
    });
  });
  shifted<float> const there(numbers<float>(20, 1));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::copy_blocks(there.view, {0, 0, 5}, there.view, {2, 0, 5}, {1, 4, 5});
        }) == "trireme::ops::copy_blocks: blocks of elements 2 to 22 of a tensor of 20");
}
