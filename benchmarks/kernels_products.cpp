// Matrix products of two models on one core, compared with Eigen, oneDNN and OpenBLAS. Prints one JSON object per row:
//   kernels_products [rounds = 9] [only rows that contain this text]
// Providers alternate; a row reports the median. Weights are packed before the clock starts, if the provider can. This
// library has a row for each available CPU level with its own kernels for the precision. "eigen" is compiled with plain
// flags, "eigen native" for this CPU; a provider that takes longer than half a second has one round. "limit" is
// measured at the start: products in registers (at the row's level for this library, at the highest for the others),
// and memory.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "limits.hpp"
#include "trireme/ops/host/products.hpp"

#if TRIREME_HAS_DNNL
#include <dnnl.hpp>
#endif
#if TRIREME_HAS_OPENBLAS
#include <cblas.h>
#endif

using namespace trireme;
using ops::host_products;
using ops::orientation;

namespace {

enum class pass { forward, input, weight };

struct product {
  char const* model;
  pass which;
  std::int64_t rows, inputs, outputs;
  orientation way = orientation::in_out;
};

struct contestant {
  std::string provider;
  double limit;
  std::function<void()> run;
  std::vector<double> seconds;
};

using ops::cpu_level;
constexpr cpu_level all_levels[] = {cpu_level::baseline, cpu_level::avx2, cpu_level::avx512, cpu_level::avx512_bf16,
                                    cpu_level::amx};

/// Available levels with their own kernels for the precision.
std::vector<cpu_level> levels_of(bool bf16) {
  std::vector<cpu_level> levels;
  for (auto const level : all_levels) {
    if (level <= (bf16 ? ops::available() : std::min(ops::available(), cpu_level::avx512))) levels.push_back(level);
  }
  return levels;
}

/// Measured once.
double limit_of(cpu_level level, bool bf16) {
  static std::map<std::pair<cpu_level, bool>, double> limits;
  bf16 = bf16 && level >= cpu_level::avx512_bf16;  // lower levels multiply floats
  auto const found = limits.find({level, bf16});
  if (found != limits.end()) return found->second;
  return limits[{level, bf16}] = product_limit(level, bf16);
}

template <class T>
tensor<T> random(shape extents, std::uint32_t seed) {
  tensor<T> made(extents);
  for (std::int64_t i = 0; i < made.size(); ++i) {
    seed = seed * 1664525U + 1013904223U;
    made[i] = static_cast<T>(static_cast<float>(seed >> 8) * 0x1p-23F - 1);
  }
  return made;
}

extern "C" {
#define TRIREME_EIGEN_PRODUCT(name)                                                                                  \
  void name(bool bf16, void* to, bool add, void const* left, bool left_turned, void const* right, bool right_turned, \
            std::int64_t m, std::int64_t n, std::int64_t k)
TRIREME_EIGEN_PRODUCT(eigen_plain);
TRIREME_EIGEN_PRODUCT(eigen_native);
}

#if TRIREME_HAS_DNNL
// The result (m, n) = or += left (m, k) right (k, n), each operand possibly transposed in memory.
template <class T>
std::function<void()> onednn(float* sums, T* result, T* left, bool left_turned, T* right, bool right_turned,
                             std::int64_t m, std::int64_t n, std::int64_t k, bool prepack) {
  using namespace dnnl;
  using type = memory::data_type;
  static engine const core(engine::kind::cpu, 0);
  static stream queue(core);
  auto const kind = std::is_same_v<T, float> ? type::f32 : type::bf16;
  auto const by = [](bool turned) { return turned ? memory::format_tag::ba : memory::format_tag::ab; };
  memory::desc const a({m, k}, kind, by(left_turned));
  memory::desc const b({k, n}, kind, by(right_turned));
  memory::desc const b_any({k, n}, kind, memory::format_tag::any);
  memory::desc const c({m, n}, sums != nullptr ? type::f32 : kind, memory::format_tag::ab);
  primitive_attr attributes;
  if (sums != nullptr) {
    post_ops add;
    add.append_sum(1);
    attributes.set_post_ops(add);
  }
  matmul::primitive_desc const chosen({a, prepack ? b_any : b, c}, attributes, core);
  memory plain(b, core, right);
  memory packed = plain;
  if (prepack && chosen.weights_desc() != b) {
    packed = memory(chosen.weights_desc(), core);
    reorder(plain, packed).execute(queue, plain, packed);
  }
  matmul const primitive(chosen);
  std::unordered_map<int, memory> const arguments{
      {DNNL_ARG_SRC, memory(a, core, left)},
      {DNNL_ARG_WEIGHTS, packed},
      {DNNL_ARG_DST, memory(c, core, sums != nullptr ? static_cast<void*>(sums) : result)}};
  return [primitive, arguments] {
    primitive.execute(queue, arguments);
    queue.wait();
  };
}
#endif

template <class T>
void measure(product const& of, int rounds, std::string const& only) {
  auto const [model, which, rows, inputs, outputs, way] = of;
  bool const turned = way == orientation::out_in;
  // The product as stated: result (m, n) from sums of length k.
  auto const m = which != pass::weight ? rows : turned ? outputs : inputs;
  auto const n = which == pass::forward ? outputs : which == pass::input ? inputs : turned ? inputs : outputs;
  auto const k = which == pass::forward ? inputs : which == pass::input ? outputs : rows;
  char const* const name = which == pass::forward ? "forward" : which == pass::input ? "input" : "weight";
  char const* const precision = std::is_same_v<T, float> ? "fp32" : "bf16";
  std::string const title = text("{\"kernel\":\"product\",\"model\":\"", model, "\",\"pass\":\"", name, "\",\"m\":", m,
                                 ",\"n\":", n, ",\"k\":", k, ",\"precision\":\"", precision, "\"");
  if (title.find(only) == std::string::npos) return;

  auto x = random<T>({rows, inputs}, 1);
  auto y = random<T>({rows, outputs}, 2);
  auto w = random<T>(turned ? shape{outputs, inputs} : shape{inputs, outputs}, 3);
  auto dw = random<float>(w.extents(), 4);
  constexpr bool bf16 = !std::is_same_v<T, float>;
  auto const levels = levels_of(bf16);
  double const highest = limit_of(levels.back(), bf16);
  std::vector<ops::weights<T, host>> packed(levels.size());
  std::vector<contestant> all;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    packed[i].bind(w, way);
    auto const own = [&, i] {
      ops::detected(levels[i]);
      if (which == pass::forward) host_products::linear(y.view(), x, packed[i]);
      if (which == pass::input) host_products::linear_backward_input(x.view(), y, packed[i]);
      if (which == pass::weight) host_products::linear_backward_weight(dw.view(), {}, x.view(), y, way);
    };
    all.push_back({text("own ", name_of(levels[i])), limit_of(levels[i], bf16), own, {}});
  }
  for (auto const& [who, eigen] : {std::pair{"eigen", &eigen_plain}, std::pair{"eigen native", &eigen_native}}) {
    auto const run = [&, eigen = eigen] {
      void* const in = raw(x.view());
      void* const out = raw(y.view());
      void* const of_w = raw(w.view());
      if (which == pass::forward) eigen(bf16, out, false, in, false, of_w, turned, m, n, k);
      if (which == pass::input) eigen(bf16, in, false, out, false, of_w, !turned, m, n, k);
      if (which == pass::weight) {
        eigen(bf16, raw(dw.view()), true, turned ? out : in, true, turned ? in : out, false, m, n, k);
      }
    };
    all.push_back({who, highest, run, {}});
  }
#if TRIREME_HAS_DNNL
  T* const in = raw(x.view());
  T* const out = raw(y.view());
  if (which == pass::forward) {
    all.push_back({"onednn", highest, onednn<T>(nullptr, out, in, false, raw(w.view()), turned, m, n, k, true), {}});
  } else if (which == pass::input) {
    all.push_back({"onednn", highest, onednn<T>(nullptr, in, out, false, raw(w.view()), !turned, m, n, k, true), {}});
  } else {
    all.push_back(
        {"onednn",
         highest,
         onednn<T>(raw(dw.view()), nullptr, turned ? out : in, true, turned ? in : out, false, m, n, k, false),
         {}});
  }
#endif
#if TRIREME_HAS_OPENBLAS
  if constexpr (std::is_same_v<T, float>) {
    auto const size = [](std::int64_t value) { return static_cast<blasint>(value); };
    auto const blas = [=](CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, float const* a, float const* b, float beta,
                          float* c) {
      cblas_sgemm(CblasRowMajor, ta, tb, size(m), size(n), size(k), 1, a, size(ta == CblasTrans ? m : k), b,
                  size(tb == CblasTrans ? k : n), beta, c, size(n));
    };
    all.push_back(
        {"openblas",
         highest,
         [&, blas] {
           if (which == pass::forward) {
             blas(CblasNoTrans, turned ? CblasTrans : CblasNoTrans, raw(x.view()), raw(w.view()), 0, raw(y.view()));
           } else if (which == pass::input) {
             blas(CblasNoTrans, turned ? CblasNoTrans : CblasTrans, raw(y.view()), raw(w.view()), 0, raw(x.view()));
           } else {
             blas(CblasTrans, CblasNoTrans, raw(turned ? y.view() : x.view()), raw(turned ? x.view() : y.view()), 1,
                  raw(dw.view()));
           }
         },
         {}});
  }
#endif
  for (int round = -1; round < rounds; ++round) {
    for (auto& each : all) {
      if (!each.seconds.empty() && each.seconds.back() > 0.5) continue;  // too slow for more than one round
      auto const start = std::chrono::steady_clock::now();
      each.run();
      std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
      if (round >= 0 || took.count() > 0.5) each.seconds.push_back(took.count());
    }
  }
  double const flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  for (auto& each : all) {
    std::sort(each.seconds.begin(), each.seconds.end());
    auto const gflops = [&](double seconds) { return flops / seconds * 1e-9; };
    std::printf("%s,\"provider\":\"%s\",\"gflops\":%.1f,\"best\":%.1f,\"limit\":%.0f}\n", title.c_str(),
                each.provider.c_str(), gflops(each.seconds[each.seconds.size() / 2]), gflops(each.seconds.front()),
                each.limit);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  // The other libraries read these variables when they are loaded, so the program restarts itself with them.
  if (std::getenv("OMP_NUM_THREADS") == nullptr || std::getenv("OPENBLAS_NUM_THREADS") == nullptr) {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
    ::execv("/proc/self/exe", argv);
  }
  int const rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  std::string const only = argc > 2 ? argv[2] : "";
  std::vector<product> all;
  for (auto const which : {pass::forward, pass::input, pass::weight}) {
    all.push_back({"a", which, 2048, 384, 1152});
    all.push_back({"a", which, 2048, 384, 384});
    all.push_back({"a", which, 2048, 384, 1536});
    all.push_back({"a", which, 2048, 1536, 384});
    all.push_back({"b", which, 1024, 768, 2304});
    all.push_back({"b", which, 1024, 768, 768});
    all.push_back({"b", which, 1024, 768, 3072});
    all.push_back({"b", which, 1024, 3072, 768});
    all.push_back({"b", which, 256, 768, 50257, orientation::out_in});  // the head processes blocks of rows
  }
  for (bool const bf16 : {false, true}) {
    for (auto const level : levels_of(bf16)) {
      if (level == cpu_level::baseline) continue;
      std::printf("{\"kernel\":\"limit\",\"precision\":\"%s\",\"level\":\"%s\",\"gflops\":%.0f}\n",
                  bf16 ? "bf16" : "fp32", std::string(name_of(level)).c_str(), limit_of(level, bf16));
    }
  }
  std::printf("{\"kernel\":\"limit\",\"what\":\"memory copy\",\"gbps\":%.1f}\n", memory_limit());
  for (auto const& each : all) {
    measure<float>(each, rounds, only);
    measure<trireme::bfloat16>(each, rounds, only);
  }
}
