// The calls of cuDNN's attention, as the library makes them, against the host's attention. In the simulator a stand-in
// answers them (cudnn_stand_in.cpp); on a GPU it is cuDNN.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../../catch.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/cuda/cudnn_launch.hpp"
#include "trireme/ops/host.hpp"

using namespace trireme;

namespace {

namespace launch = ops::cuda_kernels;
using kernels = ops::on<cuda>;

/// Sets TRIREME_ATTENTION, and puts back what it was.
class attention_wish {
 public:
  explicit attention_wish(char const* value) {
    if (char const* const before = std::getenv(name)) before_ = before, had_ = true;
    setenv(name, value, 1);
  }
  attention_wish(attention_wish const&) = delete;
  attention_wish& operator=(attention_wish const&) = delete;
  ~attention_wish() {
    if (had_) {
      setenv(name, before_.c_str(), 1);
    } else {
      unsetenv(name);
    }
  }

 private:
  static constexpr char const* name = "TRIREME_ATTENTION";
  std::string before_;
  bool had_ = false;
};

template <class T>
std::vector<T> normal(std::int64_t n, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> number;
  std::vector<T> made(static_cast<std::size_t>(n));
  for (auto& each : made) each = T(number(bits));
  return made;
}
/// ||a - b|| / ||b||
template <class T>
double distance(std::vector<T> const& a, std::vector<T> const& b) {
  double off = 0, all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto const by = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    off += by * by;
    all += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(off / all);
}

template <class T>
struct operands {
  std::vector<T> qkv, y, dy, dqkv;
  std::vector<float> lse;
  explicit operands(ops::attention_shape const& of)
      : qkv(normal<T>(of.batch * of.context * 3 * of.channels, 1)),
        y(static_cast<std::size_t>(of.batch * of.context * of.channels)),
        dy(normal<T>(of.batch * of.context * of.channels, 2)),
        dqkv(qkv.size()),
        lse(static_cast<std::size_t>(of.batch * of.heads * of.context)) {}
};

template <class T>
void computed_on_host(operands<T>& all, ops::attention_shape const& of) {
  using on_host = ops::on<host>;
  arena<host> scratch;
  tensor_view const y(all.y);
  tensor_view const lse(all.lse);
  on_host::attention(y, lse, tensor_view(all.qkv), of, scratch, {});
  on_host::attention_backward(tensor_view(all.dqkv), tensor_view(all.dy), y, lse, tensor_view(all.qkv), of, scratch,
                              {});
}

/// On the device; false if cuDNN does not take it.
template <class T>
bool computed_on_device(operands<T>& all, ops::attention_shape const& of) {
  auto const there = [](auto const& from) {
    tensor<typename std::remove_cvref_t<decltype(from)>::value_type, cuda> made(
        shape{static_cast<std::int64_t>(from.size())});
    kernels::upload(made.view(), from);
    return made;
  };
  auto const here = [](auto& to, auto const& from) { kernels::download(std::span(to), from); };
  auto const qkv = there(all.qkv), dy = there(all.dy);
  auto y = there(all.y), dqkv = there(all.dqkv);
  auto lse = there(all.lse);
  launch::attention_call const call{.stream = cuda::stream(),
                                    .of = dtype_of<T>,
                                    .batch = of.batch,
                                    .context = of.context,
                                    .heads = of.heads,
                                    .width = of.head_channels(),
                                    .causal = of.mask.causal,
                                    .window = of.mask.window,
                                    .scale = 1 / std::sqrt(static_cast<double>(of.head_channels())),
                                    .qkv = qkv.view().address(),
                                    .y = y.view().address(),
                                    .lse = static_cast<float*>(lse.view().address()),
                                    .dy = dy.view().address(),
                                    .dqkv = dqkv.view().address()};
  if (!launch::cudnn_takes(call)) return false;
  for (bool const backward : {false, true}) {
    tensor<std::uint8_t, cuda> workspace(
        shape{static_cast<std::int64_t>(launch::cudnn_workspace(call, backward)) + 16});
    auto* const memory = workspace.view().address();
    REQUIRE((backward ? launch::cudnn_attention_backward(call, memory) : launch::cudnn_attention(call, memory)) == 0);
    cuda::finish();
  }
  here(all.y, y);
  here(all.lse, lse);
  here(all.dqkv, dqkv);
  return true;
}

template <class T>
void check(ops::attention_shape const& of) {
  CAPTURE(of.batch, of.context, of.heads, of.channels, of.mask.causal, of.mask.window);
  operands<T> on_device(of), on_host(of);
  if (!computed_on_device(on_device, of)) {
    WARN("cuDNN takes none of this: " << launch::cudnn_refusal());
    return;
  }
  computed_on_host(on_host, of);
  CHECK(distance(on_device.y, on_host.y) < 0.01);
  CHECK(distance(on_device.lse, on_host.lse) < 1e-3);
  CHECK(distance(on_device.dqkv, on_host.dqkv) < 0.015);
}

}  // namespace

TEST_CASE("attention through the calls of cuDNN is the host's", "[cudnn]") {
  attention_wish const wish("cudnn");
  check<bfloat16>({.batch = 2, .context = 64, .heads = 2, .channels = 32});
  check<float16>({.batch = 1, .context = 128, .heads = 1, .channels = 16});
  check<bfloat16>({.batch = 1, .context = 64, .heads = 2, .channels = 16, .mask = {.causal = true, .window = 9}});
  check<bfloat16>({.batch = 1, .context = 64, .heads = 3, .channels = 24, .mask = {.causal = false}});
#ifdef TRIREME_TEST_ON_GPU
  check<bfloat16>({.batch = 4, .context = 1024, .heads = 12, .channels = 768});
  check<bfloat16>({.batch = 2, .context = 192, .heads = 4, .channels = 512});
#endif
}

TEST_CASE("cuDNN is not asked for what it does not compute, nor when it is turned off", "[cudnn]") {
  launch::attention_call call{.of = dtype::bf16, .batch = 1, .context = 64, .heads = 2, .width = 64, .scale = 0.125};
  {
    attention_wish const wish("own");
    CHECK_FALSE(launch::cudnn_takes(call));
  }
  attention_wish const wish("cudnn");
  auto const refused = [&](auto change) {
    auto other = call;
    change(other);
    return !launch::cudnn_takes(other);
  };
  CHECK(refused([](auto& it) { it.of = dtype::f32; }));
  CHECK(refused([](auto& it) { it.batch = 0; }));
  CHECK(refused([](auto& it) { it.context = 63; }));
  CHECK(refused([](auto& it) { it.context = 100; }));
  CHECK(refused([](auto& it) { it.width = 60; }));
  CHECK(refused([](auto& it) { it.width = 264; }));
  CHECK(refused([](auto& it) { it.window = 8, it.causal = false; }));
  alignas(16) static std::uint16_t some[16];
  CHECK(refused([](auto& it) { it.qkv = some + 1; }));
}
