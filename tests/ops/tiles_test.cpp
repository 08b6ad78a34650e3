// test-sanitize: address thread
#include "trireme/ops/host/detail/tiles.hpp"

#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "support.hpp"
#include "tile_model.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/host.hpp"

// The bodies of the kernels, and of attention on tiles, with the lanes that every machine has.
#include "trireme/ops/host/attention.ipp"
#include "trireme/ops/host/products.ipp"
#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/attention_tiles.inl"
#undef TRIREME_LEVEL

using namespace trireme;
using ops::activation;
using ops::cpu_level;
using ops::host_products;
using ops::orientation;
namespace kernels = ops::detail;

namespace {

bool has_tiles() { return ops::available() == cpu_level::amx; }

/// Sets the level for a scope.
struct at_level {
  explicit at_level(cpu_level level) { ops::detected(level); }
  ~at_level() { ops::detected(before); }
  cpu_level before = ops::detected();
};

constexpr kernels::product_kernels model_kernels = kernels::tile_product_kernels<tile_model>(
    kernels::baseline::store_sums<float>, kernels::baseline::store_sums<bfloat16>, turn_plainly,
    kernels::panel_plainly);

/// Numbers whose exponents span `exponents` powers of two below 2^top.
std::vector<bfloat16> spread(std::size_t count, std::uint64_t seed, int top, int exponents) {
  std::vector<bfloat16> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto const word = mix(seed * 1000003 + i);
    auto const exponent = static_cast<std::uint16_t>(127 + top - static_cast<int>((word >> 20) % 1000) % exponents);
    numbers[i].bits = static_cast<std::uint16_t>((word & 0x807fU) | static_cast<unsigned>(exponent << 7));
  }
  return numbers;
}

/// Memory whose last byte is followed by an inaccessible page.
template <class T>
class guarded {
 public:
  explicit guarded(std::int64_t count, std::uint64_t seed = 0) : count_(count) {
    auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto const bytes = static_cast<std::size_t>(count) * sizeof(T);
    whole_ = (bytes + page - 1) / page * page + 2 * page;
    block_ = static_cast<char*>(::mmap(nullptr, whole_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(block_ != MAP_FAILED);
    REQUIRE(::mprotect(block_, page, PROT_NONE) == 0);
    REQUIRE(::mprotect(block_ + whole_ - page, page, PROT_NONE) == 0);
    address_ = reinterpret_cast<T*>(block_ + whole_ - page - bytes);
    for (std::int64_t i = 0; i < count; ++i) {
      auto const word = mix(seed * 1000003 + static_cast<std::uint64_t>(i));
      address_[i] =
          static_cast<T>(seed == 0 ? 0.0F : static_cast<float>(static_cast<double>(word >> 11) * 0x1p-52 - 1));
    }
  }
  ~guarded() { ::munmap(block_, whole_); }
  guarded(guarded const&) = delete;
  guarded& operator=(guarded const&) = delete;
  [[nodiscard]] T* get() const { return address_; }
  [[nodiscard]] tensor_view<T, host> view(shape extents) const { return {address_, extents}; }

 private:
  std::int64_t count_;
  std::size_t whole_ = 0;
  char* block_ = nullptr;
  T* address_ = nullptr;
};

struct size {
  std::int64_t m, n, k;
};
// Less than a tile, whole tiles, one more, half a block, a row of 4096 bytes, a sum in parts.
std::vector<size> const sizes{{1, 1, 1},    {16, 16, 32}, {32, 32, 32},   {33, 33, 33},  {48, 17, 64},
                              {31, 65, 31}, {5, 64, 96},  {40, 40, 2048}, {3, 33, 2501}, {70, 20, 63}};

/// y = x w on kernels of tiles, w (k, n) or (n, k).
std::vector<float> product_on(kernels::product_kernels const& on, size of, bool turned, bfloat16 const* x,
                              bfloat16 const* w) {
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(kernels::packed_words<std::uint32_t>(on, of.k, of.n)) + 16,
                                    0xffffffffU);
  // Aligned as packed weights are.
  auto* const right = packed.data() + (64 - reinterpret_cast<std::uintptr_t>(packed.data()) % 64) / 4 % 16;
  kernels::pack_right(on, right, w, turned, of.k, of.n);
  std::vector<bfloat16> y(static_cast<std::size_t>(of.m * of.n));
  kernels::store_rule<bfloat16> rule;
  rule.y = y.data();
  rule.ld = of.n;
  kernels::own_multiply(on, rule, x, static_cast<std::uint32_t const*>(right), of.m, of.n, of.k);
  std::vector<float> out;
  for (auto const element : y) out.push_back(static_cast<float>(element));
  return out;
}

}  // namespace

#if TRIREME_X86
TEST_CASE("the model of tiles has the bits of the CPU's", "[ops][tiles]") {
  if (!has_tiles()) return;
  int different = 0;
  int compared = 0;
  // Products and sums of similar size; that cancel; that overflow; that become denormal.
  for (auto const& [top, exponents] : {std::pair{0, 1}, {0, 8}, {20, 60}, {127, 20}, {-50, 30}, {-60, 67}}) {
    for (std::uint64_t round = 0; round < 40; ++round) {
      auto const left = spread(16 * 32, 3 * round, top, exponents);
      auto const right = spread(16 * 32, 3 * round + 1, top, exponents);
      auto const start = spread(256, 3 * round + 2, std::max(-126, std::min(127, 2 * top)), exponents);
      std::vector<float> results[2];
      auto const run = [&](auto tiles, std::vector<float>& sums) {
        using Tiles = decltype(tiles);
        for (auto const number : start) sums.push_back(static_cast<float>(number));
        kernels::tile_use<Tiles> const use;
        Tiles::template load<0>(sums.data(), 64);
        Tiles::template load<1>(left.data(), 64);
        Tiles::template load<2>(right.data(), 64);
        Tiles::template multiply<0, 1, 2>();
        Tiles::template multiply<0, 1, 2>();
        Tiles::template store<0>(sums.data(), 64);
      };
      run(kernels::tile_registers{}, results[0]);
      run(tile_model{}, results[1]);
      for (std::size_t i = 0; i < 256; ++i) {
        ++compared;
        bool const both = std::isnan(results[0][i]) && std::isnan(results[1][i]);
        different +=
            !both && std::bit_cast<std::uint32_t>(results[0][i]) != std::bit_cast<std::uint32_t>(results[1][i]);
      }
    }
  }
  INFO(compared << " sums");
  CHECK(different == 0);
}

TEST_CASE("turning columns into rows is the plain loop", "[ops][tiles]") {
  if (ops::available() < cpu_level::avx512) return;
  for (auto const& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {32, 16}, {31, 17}, {33, 32}, {70, 5}}) {
    guarded<bfloat16> const from(rows * columns, 5);
    auto const padded_rows = kernels::divide_up(rows, 32) * 32;
    auto const padded_columns = kernels::divide_up(columns, 16) * 16;
    std::vector<bfloat16> fast(static_cast<std::size_t>(padded_rows * padded_columns), bfloat16(7.0F));
    std::vector<bfloat16> plain = fast;
    kernels::avx512::turn({fast.data(), padded_rows, from.get(), columns, rows, padded_rows, columns, padded_columns});
    turn_plainly({plain.data(), padded_rows, from.get(), columns, rows, padded_rows, columns, padded_columns});
    CHECK(same_bits(std::span<bfloat16 const>(fast), std::span<bfloat16 const>(plain)));
  }
}
#endif

TEST_CASE("products on the model of tiles equal plain sums, on every edge", "[ops][tiles]") {
  for (auto const of : sizes) {
    for (bool const turned : {false, true}) {
      guarded<bfloat16> const x(of.m * of.k, 1);
      guarded<bfloat16> const w(of.k * of.n, 2);
      auto const y = product_on(model_kernels, of, turned, x.get(), w.get());
      int wrong = 0;
      for (std::int64_t i = 0; i < of.m; ++i) {
        for (std::int64_t j = 0; j < of.n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < of.k; ++l) {
            sum += static_cast<double>(static_cast<float>(x.get()[i * of.k + l])) *
                   static_cast<double>(static_cast<float>(w.get()[turned ? j * of.k + l : l * of.n + j]));
          }
          // Sums in float, then one rounding to bfloat16.
          double const bound = 1e-4 + std::abs(sum) * 0x1p-8;
          wrong += !(std::abs(static_cast<double>(y[static_cast<std::size_t>(i * of.n + j)]) - sum) <= bound);
        }
      }
      INFO("m " << of.m << ", n " << of.n << ", k " << of.k << (turned ? ", turned" : ""));
      CHECK(wrong == 0);
      if (has_tiles()) {
        at_level const tiles(cpu_level::amx);
        CHECK(y == product_on(*kernels::own_kernels<bfloat16>(), of, turned, x.get(), w.get()));
      }
    }
  }
}

TEST_CASE("weight gradients on the model of tiles equal plain sums, on every edge", "[ops][tiles]") {
  for (auto const of : sizes) {
    auto const [r, s, m] = of;
    guarded<bfloat16> const u(m * r, 1);
    guarded<bfloat16> const v(m * s, 2);
    guarded<float> const c(r * s, 3);
    guarded<float> const u_sums(r, 4);
    guarded<float> const v_sums(s, 5);
    std::vector<float> const before(c.get(), c.get() + r * s);
    std::vector<float> const u_before(u_sums.get(), u_sums.get() + r);
    std::vector<float> const v_before(v_sums.get(), v_sums.get() + s);
    kernels::tiles_multiply_transposed(model_kernels, c.get(), u.get(), v.get(), m, r, s, u_sums.get(), v_sums.get());
    int wrong = 0;
    auto const at = [](bfloat16 const* x, std::int64_t i) { return static_cast<double>(static_cast<float>(x[i])); };
    auto const far = [](float got, double expected) {
      return !(std::abs(static_cast<double>(got) - expected) <= 2e-4);
    };
    for (std::int64_t i = 0; i < r; ++i) {
      double column = static_cast<double>(u_before[static_cast<std::size_t>(i)]);
      for (std::int64_t l = 0; l < m; ++l) column += at(u.get(), l * r + i);
      wrong += far(u_sums.get()[i], column);
      for (std::int64_t j = 0; j < s; ++j) {
        double sum = static_cast<double>(before[static_cast<std::size_t>(i * s + j)]);
        for (std::int64_t l = 0; l < m; ++l) sum += at(u.get(), l * r + i) * at(v.get(), l * s + j);
        wrong += far(c.get()[i * s + j], sum);
      }
    }
    for (std::int64_t j = 0; j < s; ++j) {
      double column = static_cast<double>(v_before[static_cast<std::size_t>(j)]);
      for (std::int64_t l = 0; l < m; ++l) column += at(v.get(), l * s + j);
      wrong += far(v_sums.get()[j], column);
    }
    INFO("m " << m << ", r " << r << ", s " << s);
    CHECK(wrong == 0);
  }
}

TEST_CASE("attention on the model of tiles is attention", "[ops][tiles]") {
  struct of_heads {
    std::int64_t context, heads, width;
    ops::attention_mask mask{};
  };
  for (auto const of : {of_heads{33, 2, 8}, of_heads{64, 1, 32}, of_heads{70, 2, 48}, of_heads{1, 1, 5},
                        of_heads{130, 1, 20}, of_heads{70, 1, 20, {.causal = false}},
                        of_heads{130, 1, 8, {.window = 20}}, of_heads{150, 1, 20, {.causal = false, .window = 40}}}) {
    auto const context = of.context;
    auto const heads = of.heads;
    auto const width = of.width;
    for (double const dropped : {0.0, 0.25}) {
      auto const channels = heads * width;
      ops::attention_shape const what{1, context, heads, channels, 0, of.mask};
      auto const qkv = random_tensor<bfloat16>({context, 3 * channels}, 1, 2);
      auto const dy = random_tensor<bfloat16>({context, channels}, 2);
      std::vector<std::int64_t> const samples{5};
      ops::dropout_site const drop{dropped, {1, 2}, 3, samples};
      arena<host> scratch;
      auto y = zeros<bfloat16>({context, channels});
      auto dqkv = zeros<bfloat16>({context, 3 * channels});
      auto lse = zeros<float>({1, heads, context});
      {
        at_level const plain(cpu_level::baseline);
        ops::host_attention::attention(y.view(), lse.view(), qkv, what, scratch, drop);
        ops::host_attention::attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, drop);
      }
      auto tiled_y = zeros<bfloat16>({context, channels});
      auto tiled_dqkv = zeros<bfloat16>({context, 3 * channels});
      auto tiled_lse = zeros<float>({1, heads, context});
      kernels::for_each_head<float>(what, context, context, scratch, drop, false,
                                    [&](auto& head, std::int64_t, float* memory) {
                                      auto const column = head.head * width;
                                      kernels::baseline::attention_tiles_forward<tile_model>(
                                          raw(tiled_y.view()) + column, raw(tiled_lse.view()) + head.head * context,
                                          raw(qkv.view()) + column, head, memory, turn_plainly);
                                    });
      kernels::for_each_head<float>(
          what, context, context, scratch, drop, true, [&](auto& head, std::int64_t, float* memory) {
            auto const column = head.head * width;
            kernels::baseline::attention_tiles_backward<tile_model>(
                raw(tiled_dqkv.view()) + column, raw(dy.view()) + column, raw(tiled_y.view()) + column,
                raw(tiled_lse.view()) + head.head * context, raw(qkv.view()) + column, head, memory, turn_plainly);
          });
      INFO("context " << context << ", heads " << heads << ", width " << width << ", dropped " << dropped);
      CHECK(distance(tiled_y, y) <= 0.02);
      CHECK(distance(tiled_lse, lse) <= 1e-5);
      CHECK(distance(tiled_dqkv, dqkv) <= 0.03);
      CHECK_FALSE(tile_model::state().ready);
    }
  }
}

TEST_CASE("no kernel touches memory beyond its operands, at any CPU level", "[ops][tiles]") {
  at_each_level([] {
    for (auto const [m, n, k] : {size{33, 33, 33}, size{17, 40, 2048}, size{64, 64, 64}, size{3, 5, 7}}) {
      for (auto const way : {orientation::in_out, orientation::out_in}) {
        auto const across = way == orientation::in_out ? shape{k, n} : shape{n, k};
        guarded<bfloat16> const x(m * k, 1);
        guarded<bfloat16> const w(k * n, 2);
        guarded<bfloat16> const y(m * n, 3);
        guarded<bfloat16> const bias(n, 4);
        guarded<bfloat16> const keep(m * n, 5);
        guarded<float> const dw(k * n, 6);
        guarded<float> const db(n, 7);
        ops::weights<bfloat16, host> packed(w.view(across), way);
        host_products::linear(y.view({m, n}), x.view({m, k}), packed,
                              {.bias = bias.view({n}),
                               .act = activation::gelu,
                               .before_activation = keep.view({m, n}),
                               .residual = y.view({m, n})});
        host_products::linear_backward_weight(dw.view(across), db.view({n}), x.view({m, k}), y.view({m, n}), way);
        host_products::linear_backward_input(x.view({m, k}), y.view({m, n}), packed, {.accumulate = true});
      }
    }
    std::int64_t const context = 37;
    std::int64_t const channels = 24;
    guarded<bfloat16> const qkv(context * 3 * channels, 1);
    guarded<bfloat16> const dqkv(context * 3 * channels, 2);
    guarded<bfloat16> const y(context * channels, 3);
    guarded<bfloat16> const dy(context * channels, 4);
    guarded<float> const lse(2 * context, 5);
    arena<host> scratch;
    ops::attention_shape const what{1, context, 2, channels};
    ops::host_attention::attention(y.view({context, channels}), lse.view({1, 2, context}),
                                   qkv.view({context, 3 * channels}), what, scratch, {});
    ops::host_attention::attention_backward(dqkv.view({context, 3 * channels}), dy.view({context, channels}),
                                            y.view({context, channels}), lse.view({1, 2, context}),
                                            qkv.view({context, 3 * channels}), what, scratch, {});
    SUCCEED();
  });
}

TEST_CASE("NaN stays in its row", "[ops][tiles]") {
  at_each_level([] {
    std::int64_t const m = 40;
    std::int64_t const n = 40;
    std::int64_t const k = 40;
    auto x = random_tensor<bfloat16>({m, k}, 1);
    auto const w = random_tensor<bfloat16>({k, n}, 2);
    x[5 * k + 39] = bfloat16(std::numeric_limits<float>::quiet_NaN());
    x[9 * k] = bfloat16(std::numeric_limits<float>::infinity());
    auto y = zeros<bfloat16>({m, n});
    ops::weights<bfloat16, host> packed(w, orientation::in_out);
    host_products::linear(y.view(), x, packed);
    for (std::int64_t i = 0; i < m; ++i) {
      auto const value = static_cast<float>(y[i * n + 3]);
      CHECK(std::isfinite(value) == (i != 5 && i != 9));
    }
  });
}

#if TRIREME_X86
TEST_CASE("tiles are used beside others on a thread, in signal handlers and after fork", "[ops][tiles]") {
  if (!has_tiles()) return;
  at_level const tiles(cpu_level::amx);
  auto const x = random_tensor<bfloat16>({64, 256}, 1);
  auto const w = random_tensor<bfloat16>({256, 96}, 2);
  auto expected = zeros<bfloat16>({64, 96});
  auto y = zeros<bfloat16>({64, 96});
  ops::weights<bfloat16, host> packed(w, orientation::in_out);
  host_products::linear(expected.view(), x, packed);

  // Another library has left its own tile configuration.
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t unused[14] = {};
    std::uint16_t row_bytes[16] = {8, 8, 8, 8, 8, 8, 8, 8};
    std::uint8_t rows[16] = {2, 2, 2, 2, 2, 2, 2, 2};
  } static const foreign;
  asm volatile("ldtilecfg %0" : : "m"(foreign) : "memory");
  host_products::linear(y.view(), x, packed);
  CHECK(same_bits(std::span<bfloat16 const>(y.span()), std::span<bfloat16 const>(expected.span())));

#if !defined(__SANITIZE_THREAD__)
  // A signal handler uses the registers in the middle of a product: the system saves and restores them. (The thread
  // sanitizer itself calls handlers, from the next function that it intercepts, and so nothing is saved.)
  struct sigaction action {};
  struct sigaction former {};
  action.sa_handler = [](int) {
    kernels::tile_registers::begin();
    kernels::tile_registers::zero<0>();
    kernels::tile_registers::zero<4>();
    kernels::tile_registers::end();
  };
  REQUIRE(::sigaction(SIGALRM, &action, &former) == 0);
  itimerval const often{{0, 500}, {0, 500}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  int different = 0;
  for (int round = 0; round < 2000; ++round) {
    host_products::linear(y.view(), x, packed);
    different += !same_bits(std::span<bfloat16 const>(y.span()), std::span<bfloat16 const>(expected.span()));
  }
  itimerval const never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &former, nullptr);
  CHECK(different == 0);
#endif

  // A child process has the permission too, and threads of its own.
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    host_products::linear(y.view(), x, packed);
    bool const same = same_bits(std::span<bfloat16 const>(y.span()), std::span<bfloat16 const>(expected.span()));
    ::_exit(same ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));

  std::thread([&] {
    ops::weights<bfloat16, host> own(w, orientation::in_out);
    host_products::linear(y.view(), x, own);
  }).join();
  CHECK(same_bits(std::span<bfloat16 const>(y.span()), std::span<bfloat16 const>(expected.span())));
}
#endif

TEST_CASE("a CPU level is set by name, and unsupported levels are not used", "[ops][tiles]") {
  CHECK(ops::name_of(cpu_level::amx) == "amx");
  CHECK(ops::quickest() <= ops::available());
  // The choice must not change from call to call, since the bits would.
  CHECK(ops::quickest() == ops::quickest());
  at_each_level([] { CHECK(ops::detected() <= ops::available()); });
}
