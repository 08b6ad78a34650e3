// multiply() of ops/cuda/products_launch.hpp over cuBLASLt: link -lcublasLt. All calls of cuBLASLt are here.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "trireme/ops/cuda/products_launch.hpp"

namespace trireme::ops::cuda_kernels {

namespace {

namespace cublas {

using state = product_outcome::state;

[[nodiscard]] inline product_outcome outcome_of(char const* call, ::cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {status == CUBLAS_STATUS_NOT_SUPPORTED ? state::unsupported : state::failed, call,
          ::cublasLtGetStatusString(status)};
}
[[nodiscard]] inline product_outcome outcome_of(char const* call, ::cudaError_t code) {
  if (code == cudaSuccess) return {};
  return {state::failed, call, ::cudaGetErrorString(code)};
}

[[nodiscard]] inline ::cudaDataType_t type_of(dtype type) {
  switch (type) {
    case dtype::f64:
      return CUDA_R_64F;
    case dtype::bf16:
      return CUDA_R_16BF;
    case dtype::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}
[[nodiscard]] inline ::cublasLtEpilogue_t epilogue_of(product_call const& call) {
  bool const keeps = call.kept != nullptr;
  switch (call.epilogue) {
    case product_epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case product_epilogue::gelu:
      return keeps ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    case product_epilogue::gelu_bias:
      return keeps ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case product_epilogue::gelu_slope:
      return CUBLASLT_EPILOGUE_DGELU;
    case product_epilogue::left_sums:
      return CUBLASLT_EPILOGUE_BGRADB;
    case product_epilogue::right_sums:
      return CUBLASLT_EPILOGUE_BGRADA;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}
/// The largest power of two up to 256 that divides the address; 256 for null.
[[nodiscard]] inline std::uint32_t alignment_of(void const* address) {
  auto const bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Whether the environment variable TRIREME_CUDA_TUNE is set, to anything but 0: then algorithms are chosen by
/// measuring.
[[nodiscard]] inline bool measures() noexcept {
  static bool const asked = [] {
    auto const* const value = std::getenv("TRIREME_CUDA_TUNE");
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  }();
  return asked;
}

/// What a plan depends on.
struct plan_key {
  std::array<std::int64_t, 8> numbers;
  explicit plan_key(product_call const& call)
      : numbers{call.rows,      call.columns, call.inner, call.left_row,
                call.right_row, call.to_row,  flags(call), alignments(call)} {}
  friend bool operator==(plan_key const&, plan_key const&) = default;

 private:
  static std::int64_t flags(product_call const& call) {
    return static_cast<std::int64_t>(call.of) | static_cast<std::int64_t>(call.to_type) << 8 |
           static_cast<std::int64_t>(call.epilogue) << 16 | (call.left_transposed ? 1LL << 24 : 0) |
           (call.right_transposed ? 1LL << 25 : 0) | (call.added != nullptr ? 1LL << 26 : 0) |
           (call.added == call.to ? 1LL << 27 : 0) | (call.kept != nullptr ? 1LL << 28 : 0) |
           (call.tf32 ? 1LL << 29 : 0);
  }
  static std::int64_t alignments(product_call const& call) {
    std::int64_t all = 0;
    for (void const* const each : {call.left, call.right, static_cast<void const*>(call.to), call.added, call.bias,
                                   static_cast<void const*>(call.kept), static_cast<void const*>(call.sums)})
      all = all << 9 | static_cast<std::int64_t>(alignment_of(each));
    return all;
  }
};
struct hash_of_key {
  [[nodiscard]] std::size_t operator()(plan_key const& key) const noexcept {
    std::uint64_t hash = 0;
    for (auto const each : key.numbers) {
      hash = (hash ^ static_cast<std::uint64_t>(each)) * 0x9E37'79B9'7F4A'7C15ULL;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

/// Descriptions of a product and of its matrices, in cuBLASLt's order: column-major, so that left and right are swapped
/// and each matrix is the transpose of ours in the same memory.
struct plan {
  product_outcome made;  // if it is not `queued`, there is no algorithm
  ::cublasLtMatmulDescOpaque_t product{};
  ::cublasLtMatrixLayoutOpaque_t left{}, right{}, to{};
  ::cublasLtMatmulAlgo_t algorithm{};
  double microseconds = 0;  // if measured
};

/// cuBLASLt on one device for one thread: its handle, memory for its algorithms, and plans.
class library {
 public:
  library() = default;
  library(library const&) = delete;
  library& operator=(library const&) = delete;
  ~library() {
    if (workspace_ != nullptr) (void)::cudaFree(workspace_);
    if (handle_ != nullptr) (void)::cublasLtDestroy(handle_);
  }

  /// Multiplies, or only plans it. `microseconds` receives the measured time.
  [[nodiscard]] product_outcome multiply(::cudaStream_t stream, product_call const& call,
                                         double* microseconds = nullptr) {
    if (workspace_ == nullptr) {
      if (auto const outcome = open(); outcome.is != state::queued) return outcome;
    }
    if (plans_.size() >= most_plans) plans_.clear();  // numbers of rows that change from step to step
    auto const [found, is_new] = plans_.try_emplace(plan_key(call));
    auto& plan = found->second;
    if (is_new) {
      plan.made = make(stream, plan, call);
      // What cannot be described to cuBLASLt with an epilogue can often be described without.
      if (plan.made.is == state::failed && call.epilogue != product_epilogue::none) plan.made.is = state::unsupported;
    }
    if (plan.made.is != state::queued) {
      auto const outcome = plan.made;
      if (outcome.is == state::failed) plans_.erase(found);
      return outcome;
    }
    if (microseconds != nullptr) {
      *microseconds = plan.microseconds;
      return {};
    }
    if (auto const outcome = set_pointers(plan, call); outcome.is != state::queued) return outcome;
    auto const outcome = run(stream, plan, call, call.to);
    if (outcome.is == state::unsupported) plan.made = outcome;
    return outcome;
  }

 private:
  static constexpr std::size_t most_plans = 4096;  // of less than a kilobyte each

  [[nodiscard]] product_outcome open() {
    int device = 0;
    int major = 0;
    auto code = ::cudaGetDevice(&device);
    if (code == cudaSuccess) code = ::cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code != cudaSuccess) return outcome_of("cudaDeviceGetAttribute", code);
    if (handle_ == nullptr) {
      auto const status = ::cublasLtCreate(&handle_);
      if (status != CUBLAS_STATUS_SUCCESS) {
        handle_ = nullptr;
        return outcome_of("cublasLtCreate", status);
      }
    }
    workspace_bytes_ = std::size_t{major >= 9 ? 32U : 4U} << 20;  // as NVIDIA recommends for these devices
    code = ::cudaMalloc(&workspace_, workspace_bytes_);
    if (code != cudaSuccess) {
      (void)::cudaGetLastError();
      workspace_ = nullptr;
      auto outcome = outcome_of("cudaMalloc", code);
      if (code == cudaErrorMemoryAllocation) outcome.no_memory_for = workspace_bytes_;
      return outcome;
    }
    return {};
  }

  [[nodiscard]] static product_outcome set_pointers(plan& plan, product_call const& call) {
    void const* const bias = call.sums != nullptr ? call.sums : call.bias;
    if (bias != nullptr) {
      auto const outcome = set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      if (outcome.is != state::queued) return outcome;
    }
    if (call.kept != nullptr) return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.kept);
    return {};
  }
  template <class Value>
  [[nodiscard]] static product_outcome set(plan& plan, ::cublasLtMatmulDescAttributes_t what, Value const& value) {
    return outcome_of("cublasLtMatmulDescSetAttribute",
                      ::cublasLtMatmulDescSetAttribute(&plan.product, what, &value, sizeof value));
  }

  [[nodiscard]] product_outcome run(::cudaStream_t stream, plan& plan, product_call const& call, void* to) {
    static constexpr double one64 = 1, zero64 = 0;
    static constexpr float one32 = 1, zero32 = 0;
    bool const adds = call.added != nullptr;
    void const* const alpha = call.of == dtype::f64 ? static_cast<void const*>(&one64) : &one32;
    void const* const beta =
        call.of == dtype::f64 ? static_cast<void const*>(adds ? &one64 : &zero64) : (adds ? &one32 : &zero32);
    return outcome_of("cublasLtMatmul",
                      ::cublasLtMatmul(handle_, &plan.product, alpha, call.right, &plan.right, call.left, &plan.left,
                                       beta, adds ? call.added : to, &plan.to, to, &plan.to, &plan.algorithm,
                                       workspace_, workspace_bytes_, stream));
  }

  /// Leaves the fastest of some algorithms in the plan: each multiplies the call's matrices a few times. Without memory
  /// or events for that, the first one stays.
  void choose_fastest(::cudaStream_t stream, plan& plan, product_call const& call,
                      std::span<::cublasLtMatmulHeuristicResult_t const> proposed) {
    void* apart = nullptr;  // where a matrix that is added to would change with each run
    ::cudaEvent_t begun = nullptr, ended = nullptr;
    auto const bytes = static_cast<std::size_t>(call.rows * call.to_row) * size_of(call.to_type);
    bool able = ::cudaEventCreate(&begun) == cudaSuccess && ::cudaEventCreate(&ended) == cudaSuccess &&
                (call.added != call.to || ::cudaMalloc(&apart, bytes) == cudaSuccess);
    auto const microseconds_of = [&](::cublasLtMatmulAlgo_t const& algorithm) {
      float least = std::numeric_limits<float>::infinity();
      plan.algorithm = algorithm;
      for (int k = 0; k < 4 && able; ++k) {  // the first run also loads the kernel
        float passed = 0;
        able = ::cudaEventRecord(begun, stream) == cudaSuccess;
        if (run(stream, plan, call, apart != nullptr ? apart : call.to).is != state::queued) return least;
        able = able && ::cudaEventRecord(ended, stream) == cudaSuccess &&
               ::cudaEventSynchronize(ended) == cudaSuccess &&
               ::cudaEventElapsedTime(&passed, begun, ended) == cudaSuccess;
        if (k > 0 && able) least = std::min(least, 1000 * passed);
      }
      return least;
    };
    auto best = proposed.front().algo;
    float least = std::numeric_limits<float>::infinity();
    for (auto const& each : proposed) {
      if (!able) break;
      if (each.state != CUBLAS_STATUS_SUCCESS) continue;
      auto const time = microseconds_of(each.algo);
      if (!(time < 0.99F * least)) continue;  // earlier proposals are preferred if they take the same time
      least = time;
      best = each.algo;
    }
    plan.algorithm = best;
    plan.microseconds = static_cast<double>(least);
    if (begun != nullptr) (void)::cudaEventDestroy(begun);
    if (ended != nullptr) (void)::cudaEventDestroy(ended);
    if (apart != nullptr) (void)::cudaFree(apart);
    if (!able) (void)::cudaGetLastError();
  }

  /// Describes the product, and takes the first algorithm that cuBLASLt proposes, or the fastest if asked to measure.
  [[nodiscard]] product_outcome make(::cudaStream_t stream, plan& plan, product_call const& call) {
    auto const element = type_of(call.of);
    auto const to = type_of(call.to_type);
    bool const wide = call.of == dtype::f64;
    bool const rounds = call.tf32 && call.of == dtype::f32;
    auto const compute = wide ? CUBLAS_COMPUTE_64F : rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    auto outcome = outcome_of("cublasLtMatmulDescInit",
                              ::cublasLtMatmulDescInit(&plan.product, compute, wide ? CUDA_R_64F : CUDA_R_32F));
    auto const then = [&](auto&& next) {
      if (outcome.is == state::queued) outcome = next();
    };
    auto const describe = [&](::cublasLtMatrixLayoutOpaque_t& matrix, ::cudaDataType_t type, std::int64_t rows,
                              std::int64_t columns, std::int64_t row) {
      return outcome_of("cublasLtMatrixLayoutInit",
                        ::cublasLtMatrixLayoutInit(&matrix, type, static_cast<std::uint64_t>(rows),
                                                   static_cast<std::uint64_t>(columns), row));
    };
    auto const operation = [](bool transposed) { return std::int32_t{transposed ? CUBLAS_OP_T : CUBLAS_OP_N}; };
    then([&] { return set(plan, CUBLASLT_MATMUL_DESC_TRANSA, operation(call.right_transposed)); });
    then([&] { return set(plan, CUBLASLT_MATMUL_DESC_TRANSB, operation(call.left_transposed)); });
    then([&] { return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue_of(call))); });
    then([&] { return set_pointers(plan, call); });  // the heuristic looks at their alignment
    if (call.kept != nullptr)
      then([&] { return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.to_row); });
    then([&] {
      auto const [rows, columns] = std::array{call.columns, call.inner};
      return call.right_transposed ? describe(plan.right, element, columns, rows, call.right_row)
                                   : describe(plan.right, element, rows, columns, call.right_row);
    });
    then([&] {
      auto const [rows, columns] = std::array{call.inner, call.rows};
      return call.left_transposed ? describe(plan.left, element, columns, rows, call.left_row)
                                  : describe(plan.left, element, rows, columns, call.left_row);
    });
    then([&] { return describe(plan.to, to, call.columns, call.rows, call.to_row); });

    ::cublasLtMatmulPreferenceOpaque_t preference{};
    then([&] { return outcome_of("cublasLtMatmulPreferenceInit", ::cublasLtMatmulPreferenceInit(&preference)); });
    auto const prefer = [&](::cublasLtMatmulPreferenceAttributes_t what, auto value) {
      then([&] {
        return outcome_of("cublasLtMatmulPreferenceSetAttribute",
                          ::cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value));
      });
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes_));
    // Parts of a sum are not rounded to 16 bits before they are added.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.right));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.left));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.added != nullptr ? call.added : call.to));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.to));
    then([&]() -> product_outcome {
      std::array<::cublasLtMatmulHeuristicResult_t, 8> found{};
      int count = 0;
      auto const most = measures() ? static_cast<int>(found.size()) : 1;
      auto const status = ::cublasLtMatmulAlgoGetHeuristic(handle_, &plan.product, &plan.right, &plan.left, &plan.to,
                                                           &plan.to, &preference, most, found.data(), &count);
      auto const asked = outcome_of("cublasLtMatmulAlgoGetHeuristic", status);
      if (asked.is != state::queued) return asked;
      if (count == 0) return outcome_of("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED);
      plan.algorithm = found[0].algo;
      if (found[0].state == CUBLAS_STATUS_SUCCESS && measures())
        choose_fastest(stream, plan, call, std::span(found).first(static_cast<std::size_t>(count)));
      return outcome_of("cublasLtMatmulAlgoGetHeuristic", found[0].state);
    });
    return outcome;
  }

  ::cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::unordered_map<plan_key, plan, hash_of_key> plans_;
};

}  // namespace cublas

}  // namespace

namespace {

/// cuBLASLt of this thread on the stream's device, which is the current one; null with the error in `outcome`.
cublas::library* library_of(handle stream, product_outcome& outcome) {
  thread_local std::vector<std::unique_ptr<cublas::library>> of_device;
  // A thread mostly uses one stream, whose device need not be asked for.
  thread_local handle last_stream = nullptr;
  thread_local cublas::library* last = nullptr;
  if (last != nullptr && stream == last_stream) return last;
  int device = 0;
  if (auto const code = ::cudaGetDevice(&device); code != cudaSuccess) {
    outcome = cublas::outcome_of("cudaGetDevice", code);
    return nullptr;
  }
  auto const at = static_cast<std::size_t>(device);
  if (at >= of_device.size()) of_device.resize(at + 1);
  if (of_device[at] == nullptr) of_device[at] = std::make_unique<cublas::library>();
  last_stream = stream;
  return last = of_device[at].get();
}

}  // namespace

product_outcome multiply(handle stream, product_call const& call) {
  product_outcome outcome;
  auto* const library = library_of(stream, outcome);
  return library == nullptr ? outcome : library->multiply(static_cast<::cudaStream_t>(stream), call);
}
double product_microseconds(handle stream, product_call const& call) {
  if (!cublas::measures()) return 0;
  constexpr auto never = std::numeric_limits<double>::infinity();
  product_outcome outcome;
  auto* const library = library_of(stream, outcome);
  if (library == nullptr) return never;
  double time = 0;
  outcome = library->multiply(static_cast<::cudaStream_t>(stream), call, &time);
  return outcome.is == product_outcome::state::queued ? time : never;
}

}  // namespace trireme::ops::cuda_kernels
