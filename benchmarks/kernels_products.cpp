// Matrix products of two models on one core, beside Eigen, oneDNN and OpenBLAS. Prints one JSON object a row:
//   kernels_products [rounds = 9] [only rows that contain this text]
// Providers take turns; a row reports the median. Weights are packed before the clock starts, for all who can.
// "eigen" is what this program's compiler flags make of it: for AVX2 or AVX-512 build the program with -march=native.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

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
  std::function<void()> run;
  std::vector<double> seconds;
};

template <class T>
tensor<T> random(shape extents, std::uint32_t seed) {
  tensor<T> made(extents);
  for (std::int64_t i = 0; i < made.size(); ++i) {
    seed = seed * 1664525U + 1013904223U;
    made[i] = static_cast<T>(static_cast<float>(seed >> 8) * 0x1p-23F - 1);
  }
  return made;
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
  // As the product is stated: result (m, n) from sums of length k.
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
  ops::weights<T, host> own_weights(w, way);
  ops::weights<T, host> eigen_weights(w, way);
  std::vector<contestant> all;
  auto const call = [&](ops::weights<T, host>& weights, ops::provider who) {
    ops::product_provider(who);
    if (which == pass::forward) host_products::linear(y.view(), x, weights);
    if (which == pass::input) host_products::linear_backward_input(x.view(), y, weights);
    if (which == pass::weight) host_products::linear_backward_weight(dw.view(), {}, x.view(), y, way);
  };
  all.push_back({"own", [&] { call(own_weights, ops::provider::own); }, {}});
  all.push_back({"eigen", [&] { call(eigen_weights, ops::provider::eigen); }, {}});
#if TRIREME_HAS_DNNL
  T* const in = raw(x.view());
  T* const out = raw(y.view());
  if (which == pass::forward) {
    all.push_back({"onednn", onednn<T>(nullptr, out, in, false, raw(w.view()), turned, m, n, k, true), {}});
  } else if (which == pass::input) {
    all.push_back({"onednn", onednn<T>(nullptr, in, out, false, raw(w.view()), !turned, m, n, k, true), {}});
  } else {
    all.push_back(
        {"onednn",
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
      auto const start = std::chrono::steady_clock::now();
      each.run();
      std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
      if (round >= 0) each.seconds.push_back(took.count());
    }
  }
  double const flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  for (auto& each : all) {
    std::sort(each.seconds.begin(), each.seconds.end());
    auto const gflops = [&](double seconds) { return flops / seconds * 1e-9; };
    std::printf("%s,\"provider\":\"%s\",\"gflops\":%.1f,\"best\":%.1f,\"limit\":%d}\n", title.c_str(),
                each.provider.c_str(), gflops(each.seconds[each.seconds.size() / 2]), gflops(each.seconds.front()),
                std::is_same_v<T, float> ? 115 : 232);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  // The peers read these when they are loaded, so the program starts again with them.
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
    all.push_back({"b", which, 256, 768, 50257, orientation::out_in});  // the head works on chunks of rows
  }
  for (auto const& each : all) {
    measure<float>(each, rounds, only);
    measure<trireme::bfloat16>(each, rounds, only);
  }
}
