// A missing event, wait or barrier is found: the stand-in leaves it out, and in one of the orders that streams and
// threads allow the result is another one. Nothing left out, the result is the same in every order.
#include "../../support/simt/threads.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../catch.hpp"
#include "../../comm/stand_in/ranks.hpp"
#include "../../watchdog.hpp"
#include "codec_tensors.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/low_rank.hpp"

using namespace trireme;
using kind = simt::omission::kind;

namespace {

/// The order and what is left out, until its end.
struct chosen {
  explicit chosen(int order, simt::omission const& without = {}) {
    simt::order() = order;
    simt::left_out().set(without);
  }
  chosen(chosen const&) = delete;
  chosen& operator=(chosen const&) = delete;
  ~chosen() {
    simt::order() = 0;
    simt::left_out().set({});
  }
};

enum class seen { nothing_left_out, same, other };

/// What `is_right()` says without something, in all of the orders: `other` if it is false or an error in one of them.
seen without(simt::omission const& it, std::function<bool()> const& is_right) {
  auto all = seen::nothing_left_out;
  // Several times: of two ranks' threads, on a busy machine, one may be so late that nothing is wrong.
  for (int attempt = 0; attempt < 16; ++attempt) {
    chosen const now(attempt % 4, it);
    bool right = true;
    try {
      right = is_right();
    } catch (simt::error const&) {
      right = false;
    }
    if (simt::left_out().count() == 0) return seen::nothing_left_out;
    if (!right) return seen::other;
    all = seen::same;
  }
  return all;
}
/// The first call without which all orders are right, and how many there are. (0: there is none.)
struct outcome {
  int first_same, calls;
  friend bool operator==(outcome const&, outcome const&) = default;
};
outcome leave_out_each(kind what, std::string const& kernel, std::function<bool()> const& is_right) {
  outcome found{0, 0};
  for (int number = 1;; ++number) {
    auto const got = without({.what = what, .number = number, .kernel = kernel}, is_right);
    if (got == seen::nothing_left_out) return found;
    if (got == seen::same && found.first_same == 0) found.first_same = number;
    found.calls = number;
  }
}

/// In a thread of its own, whose streams are its first ones: one stream writes, the other one reads.
bool reader_sees_writer(bool with_event) {
  int got = 0;
  std::thread([&] {
    int const written = 7;
    void* between = nullptr;
    cudaStream_t writer = nullptr, reader = nullptr;
    cudaEvent_t event = nullptr;
    (void)cudaMalloc(&between, sizeof written);
    (void)cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    (void)cudaMemcpyAsync(between, &written, sizeof written, cudaMemcpyHostToDevice, writer);
    (void)cudaEventRecord(event, writer);
    if (with_event) (void)cudaStreamWaitEvent(reader, event, 0);
    (void)cudaMemcpyAsync(&got, between, sizeof got, cudaMemcpyDeviceToHost, reader);
    (void)cudaStreamSynchronize(reader);
    (void)cudaDeviceSynchronize();
    (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(writer);
    (void)cudaStreamDestroy(reader);
    (void)cudaFree(between);
  }).join();
  return got == 7;
}

/// What a rank of two does: it writes 1 or 2 on its stream, adds both ranks' numbers, and copies the sum twice.
template <class World>
bool sums_are_right(World& world) {
  constexpr std::size_t n = 300;
  std::vector<float> const own(n, static_cast<float>(world.rank() + 1));
  std::vector<float> got(n), later(n);
  tensor<float, cuda> values({n}), copy({n});
  ops::on<cuda>::upload(values.view(), own);
  world.all_reduce(values.view());
  ops::on<cuda>::copy(copy.view(), values.view());
  world.all_reduce(values.view());
  ops::on<cuda>::download(std::span<float>(got), copy.view());
  ops::on<cuda>::download(std::span<float>(later), values.view());
  return got == std::vector<float>(n, 3) && later == std::vector<float>(n, 6);
}
bool sums_of_nccl(comm::sum_order order) {
  std::vector<char> right(2);
  stand_in::on_ranks(2, {.deadline = std::chrono::seconds(30), .order = order}, [&](comm::nccl_world& world) {
    right[static_cast<std::size_t>(world.rank())] = sums_are_right(world);
  });
  return right[0] && right[1];
}
bool sums_of_threads() {
  std::vector<char> right(2);
  launch(comm::threads{.ranks = 2, .deadline = std::chrono::seconds(30)}, [&](auto& threads) {
    auto world = comm::in_space<cuda>(threads);
    right[static_cast<std::size_t>(world.rank())] = sums_are_right(world);
  });
  return right[0] && right[1];
}

/// Three batches, from the same pinned memory to the same memory of the device, each of which a kernel copies
/// elsewhere.
bool batches_are_right() {
  constexpr std::int64_t n = 300;
  constexpr std::size_t bytes = n * sizeof(float);
  auto const pinned = [](float* block) { cuda::staging::deallocate(block, bytes); };
  std::unique_ptr<float, decltype(pinned)> const batch(static_cast<float*>(cuda::staging::allocate(bytes)), pinned);
  tensor<float, cuda> landed({n}), kept({3, n});
  using queue = ops::batch_queue<cuda>;
  queue copies;
  queue::event copied, computed;
  for (int k = 0; k < 3; ++k) {
    queue::finish(copied);  // or the loader would write what is still to be copied
    std::fill_n(batch.get(), n, static_cast<float>(k + 1));
    copies.follow(computed);
    copies.copy(landed.view().address(), batch.get(), bytes);
    copies.copied(copied);
    queue::order(copied);
    ops::on<cuda>::copy(kept.view().flat(k * n, n), landed.view());
    queue::computed(computed);
  }
  queue::finish(copied);
  std::vector<float> got(3 * n), wanted;
  ops::on<cuda>::download(std::span<float>(got), kept.view().flat());
  for (int k = 0; k < 3; ++k) wanted.insert(wanted.end(), n, static_cast<float>(k + 1));
  return got == wanted;
}

/// Kernels with barriers, on the same numbers as the host.
bool product_is_the_hosts() {
  using codec_tensors::there;
  constexpr std::int64_t m = 70, n = 9, k = 100;
  auto const a = codec_tensors::numbers<float>(m * k, 1), b = codec_tensors::numbers<float>(k * n, 2);
  std::vector<float> y(m * n);
  there<float> const on_a(a), on_b(b), on_y(y);
  constexpr auto no = ops::transposed::no;
  ops::on<cuda>::small_product(on_y.view().reshaped({m, n}), on_a.constant().reshaped({m, k}), no,
                               on_b.constant().reshaped({k, n}), no);
  ops::host_low_rank::small_product(tensor_view(y).reshaped({m, n}), tensor_view<float const>(a).reshaped({m, k}), no,
                                    tensor_view<float const>(b).reshaped({k, n}), no);
  return codec_tensors::same_bits(on_y.back(), y);
}
bool columns_are_the_hosts() {
  constexpr std::int64_t n = 600, r = 2;
  auto x = codec_tensors::numbers<double>(n * r, 3);
  codec_tensors::there<double> const on_x(x);
  ops::on<cuda>::orthonormalise(on_x.view().reshaped({n, r}));
  ops::host_low_rank::orthonormalise(tensor_view(x).reshaped({n, r}));
  auto const got = on_x.back();
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!(std::abs(got[i] - x[i]) <= 1e-13)) return false;
  return true;
}

}  // namespace

TEST_CASE("two streams without an event between them are wrong in some order, with it in none", "[streams]") {
  int wrong = 0;
  for (int order = 0; order < 12; ++order) {
    chosen const now(order);
    INFO("order " << order);
    CHECK(reader_sees_writer(true));
    wrong += reader_sees_writer(false) ? 0 : 1;
  }
  CHECK(wrong > 3);
  CHECK(wrong < 12);
  chosen const lazy(0);
  CHECK_FALSE(reader_sees_writer(false));
  chosen const eager(3);
  CHECK(reader_sees_writer(false));
}

TEST_CASE("collectives are right in every order, and wrong in one without one of their waits", "[streams]") {
  watchdog const guard("collectives without a wait");
  using enum comm::sum_order;
  for (int order = 0; order < 8; ++order) {
    chosen const now(order);
    INFO("order " << order);
    CHECK(sums_of_nccl(any));
    CHECK(sums_of_nccl(ranks));
    CHECK(sums_of_threads());
  }
  // For each of two collectives its stream waits for the rank's, and the rank's for its result.
  CHECK(leave_out_each(kind::wait, "", [] { return sums_of_nccl(any); }) == outcome{0, 4});
  CHECK(leave_out_each(kind::wait, "", [] { return sums_of_nccl(ranks); }) == outcome{0, 4});
  CHECK(without({.what = kind::query, .number = 1}, [] { return sums_of_threads(); }) == seen::other);
}

TEST_CASE("batches that are copied beside kernels are right in every order, and wrong without the host's wait",
          "[streams]") {
  watchdog const guard("batches without a wait");
  for (int order = 0; order < 8; ++order) {
    chosen const now(order);
    INFO("order " << order);
    CHECK(batches_are_right());
  }
  // What the other waits are for, tests/recording/batches_test.cpp shows: here the host's waits hide most of them.
  CHECK(without({.what = kind::query, .number = 1}, [] { return batches_are_right(); }) == seen::other);
}

TEST_CASE("a kernel without one of its barriers has other bits, or is named", "[streams]") {
  for (int order = 0; order < 4; ++order) {
    chosen const now(order);
    INFO("order " << order);
    CHECK(product_is_the_hosts());
    CHECK(columns_are_the_hosts());
  }
  auto const product = leave_out_each(kind::barrier, "small_product", [] { return product_is_the_hosts(); });
  CHECK(product.calls >= 4);
  CHECK(product.first_same == product.calls);  // the last one, behind which nothing is written
  auto const columns = leave_out_each(kind::barrier, "orthonormalise", [] { return columns_are_the_hosts(); });
  CHECK(columns.calls > 10);
  CHECK(columns.first_same == 1);  // the first one, before which nothing was read
}
