// Indices beyond 2^31: kernels that read and write a few elements of tensors with more elements than an int counts. In
// the simulator their memory is only reserved, and holds zeros until something is written there.
#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "../../catch.hpp"
#include "site_there.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/cuda/paged_attention.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/losses.hpp"
#include "trireme/ops/host/reductions.hpp"

using namespace trireme;
using namespace on_device;

namespace {

constexpr std::int64_t beyond = (std::int64_t{1} << 31) + 24;

/// So many zeros.
template <class T>
class sparse {
 public:
  explicit sparse(shape const& extents) : extents_(extents) {
#if defined(TRIREME_TEST_ON_GPU)
    memory_ = tensor<T, cuda>(extents);
    REQUIRE(cudaMemset(memory_.view().address(), 0, bytes()) == cudaSuccess);
    first_ = memory_.view().address();
#else
    auto* const place =
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(place != MAP_FAILED);
    first_ = static_cast<T*>(place);
#endif
  }
  sparse(sparse const&) = delete;
  sparse& operator=(sparse const&) = delete;
  ~sparse() {
    cuda::finish();
#if !defined(TRIREME_TEST_ON_GPU)
    ::munmap(first_, bytes());
#endif
  }
  [[nodiscard]] tensor_view<T, cuda> view() const { return {first_, extents_}; }
  [[nodiscard]] tensor_view<T, cuda> part(std::int64_t first, std::int64_t n) const { return view().flat(first, n); }
  void set(std::int64_t first, std::vector<T> const& all) const {
    kernels::upload(part(first, static_cast<std::int64_t>(all.size())), all);
  }
  [[nodiscard]] std::vector<T> get(std::int64_t first, std::int64_t n) const {
    std::vector<T> all(static_cast<std::size_t>(n));
    kernels::download(std::span<T>(all), part(first, n));
    return all;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(extents_.size()) * sizeof(T); }
  shape extents_;
  T* first_ = nullptr;
#if defined(TRIREME_TEST_ON_GPU)
  tensor<T, cuda> memory_;
#endif
};
template <class T>
tensor_view<T const, cuda> fixed(tensor_view<T, cuda> it) {
  return it;
}

}  // namespace

TEST_CASE("columns and blocks that lie beyond 2^31 elements are copied", "[large_indices]") {
  sparse<bfloat16> const x({2, beyond}), y({2, beyond + 8});
  auto const first = numbers<bfloat16>(7, 1), second = numbers<bfloat16>(7, 2);
  x.set(beyond - 11, first);
  x.set(2 * beyond - 11, second);
  kernels::copy_columns(y.view(), beyond - 5, fixed(x.view()), beyond - 11, 7);
  CHECK(same(y.get(beyond - 5, 7), first));
  CHECK(same(y.get(2 * beyond + 3, 7), second));
  kernels::copy_blocks(y.view(), {5, beyond, 0}, fixed(x.view()), {beyond - 11, beyond, 0}, {2, 1, 7});
  CHECK(same(y.get(5, 7), first));
  CHECK(same(y.get(beyond + 5, 7), second));
}

TEST_CASE("words of a table of more than 2^31 numbers have their rows", "[large_indices]") {
  constexpr std::int64_t channels = 1032, words = beyond / channels + 2;
  sparse<bfloat16> const table({words, channels});
  sparse<float> const dtable({words, channels});
  auto const row = numbers<bfloat16>(channels, 3);
  table.set((words - 1) * channels, row);
  shifted<std::int32_t> const tokens({0, static_cast<std::int32_t>(words - 1), 1});
  tensor<bfloat16, cuda> y({3, channels});
  auto const ids = fixed(tokens.view).reshaped({1, 3});
  kernels::embed(y.view(), ids, fixed(table.view()), tensor_view<bfloat16 const, cuda>{});
  std::vector<bfloat16> got(row.size());
  kernels::download(std::span<bfloat16>(got), y.view().flat(channels, channels));
  CHECK(same(got, row));
  kernels::embed_backward(dtable.view(), tensor_view<float, cuda>{}, fixed(y.view()), ids);
  auto const gradient = dtable.get((words - 1) * channels, channels);
  for (std::size_t c = 0; c < row.size(); ++c) REQUIRE(gradient[c] == static_cast<float>(row[c]));
}

TEST_CASE("rows of logits that begin beyond 2^31 elements have their losses", "[large_indices]") {
  constexpr std::int64_t classes = 1003, row = beyond / 2;
  sparse<bfloat16> const logits({3, row});
  auto all = numbers<bfloat16>(3 * classes, 4);
  for (std::int64_t i = 0; i < 3; ++i)
    logits.set(i * row, {all.begin() + i * classes, all.begin() + (i + 1) * classes});
  std::vector<std::int32_t> const targets{7, 0, 1002};
  shifted<std::int32_t> const there(targets);
  auto const got = kernels::cross_entropy(logits.view(), fixed(there.view), 1.0, false, {}, classes).read();
  auto const want = ops::host_losses::cross_entropy(tensor_view(all), tensor_view(targets), 1.0, false);
  CHECK(got.sum == Approx(want.sum).epsilon(2e-6));
}

TEST_CASE("pages beyond 2^31 kept numbers are attended to", "[large_indices]") {
  ops::paged_heads const how{.heads = 2, .key_heads = 2, .width = 16};
  std::int64_t const pages = beyond / how.page_size() + 3, count = 20;
  sparse<float> const kept({pages, how.page_size()});
  auto qkv = numbers<float>(count * 3 * how.channels(), 5);
  std::vector<float> small(static_cast<std::size_t>(2 * how.page_size()));
  std::vector<paged_rows::place> places;
  for (std::int64_t position = 0; position < count; ++position) places.push_back({position, 0});
  std::vector<std::int32_t> const here{1, 0}, last{static_cast<std::int32_t>(pages - 1), 1};
  std::vector<float> want(static_cast<std::size_t>(count * how.channels()));
  shifted<float> const there(qkv), y(want);
  arena<host> scratch;
  arena<cuda> scratch_there;
  ops::paged_attention_on<host>::attend_paged(tensor_view(want), tensor_view(small), tensor_view<float const>(qkv),
                                              {places, here, 2, {}}, how, scratch);
  ops::paged_attention_on<cuda>::attend_paged(y.view, kept.view(), fixed(there.view), {places, last, pages, {}}, how,
                                              scratch_there);
  CHECK(close(y.here(), want, 1e-5, 1e-5));
}

TEST_CASE("numbers of dropout and hashes count beyond 2^32", "[large_indices]") {
  std::vector<std::int64_t> const samples{77};
  auto y = numbers<float>(300, 9);
  shifted<float> const there(y);
  dropout_site site{0.4, {42, 7}, 5, samples};
  site.first = 2 * beyond + 3;
  site.whole = 2 * beyond + 303;
  kernels::dropout(there.view, site_there(site)());
  ops::host_elementwise::dropout(tensor_view(y), site);
  CHECK(same(there.here(), y));
  auto const name = std::uint64_t{99}, first = std::uint64_t{1} << 40U;
  CHECK(kernels::hash(fixed(there.view), name, first) ==
        ops::host_reductions::hash(tensor_view<float const>(y), name, first));
}

TEST_CASE("an element beyond 2^31 others is looked at", "[large_indices]") {
  if (!sanitizer().empty()) return;  // for a minute
  sparse<bfloat16> const x({beyond});
  CHECK(kernels::finite(fixed(x.view())));
  x.set(beyond - 1, {bfloat16(std::numeric_limits<float>::infinity())});
  CHECK_FALSE(kernels::finite(fixed(x.view())));
}
