// Attention by cuDNN, called through its frontend, NVIDIA's header-only cudnn-frontend. This file is the only one that
// includes the frontend, which takes half a minute to compile. cuDNN itself is opened when it is first asked for, so a
// program that is built with this file runs without it.
#include "trireme/ops/cuda/cudnn_launch.hpp"

#if __has_include(<cudnn_frontend_version.h>) && __has_include(<cudnn.h>) && __has_include(<cuda_runtime_api.h>)
#include <cudnn_frontend_version.h>
#if CUDNN_FRONTEND_VERSION >= 11500
#define TRIREME_HAS_CUDNN
#endif
#endif

#ifdef TRIREME_HAS_CUDNN

#include <cuda_runtime_api.h>
#include <dlfcn.h>

// Another name for the frontend's namespace: a program may use the frontend as well, with other settings.
#define cudnn_frontend trireme_cudnn_frontend
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/core/text.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks cuDNN's functions up here
}  // namespace cudnn_frontend

namespace trireme::ops::cuda_kernels {

namespace {

namespace frontend = ::cudnn_frontend;
using frontend::graph::Graph;
using tensor = std::shared_ptr<frontend::graph::Tensor_attributes>;

/// cuDNN's library, opened once in a process.
struct library {
  std::size_t version = 0;
  std::string refusal;  ///< why it is not used
};
library open_library() {
  library opened;
  void* const found = ::dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (found == nullptr) {
    char const* const why = ::dlerror();
    opened.refusal = text("no cuDNN: ", why == nullptr ? "libcudnn.so.9 cannot be opened" : why);
    return opened;
  }
  frontend::cudnn_dlhandle = found;
  opened.version = frontend::detail::get_backend_version();
  if (opened.version < 90100) opened.refusal = text("cuDNN ", opened.version, " is older than 9.1");
  if (opened.version == 91000 || opened.version == 91001)
    opened.refusal = text("the backward pass of cuDNN ", opened.version, " is wrong; 9.10.2 is right");
  return opened;
}
library const& cudnn_library() {
  static library const opened = open_library();
  return opened;
}

std::string_view wish() {
  char const* const value = std::getenv("TRIREME_ATTENTION");
  return value == nullptr ? std::string_view() : value;
}

/// What a plan depends on.
struct plan_key {
  std::int64_t batch, context, heads, width, window;
  double scale;
  dtype of;
  bool causal, backward, ordered;
  friend bool operator<(plan_key const& a, plan_key const& b) {
    auto const all = [](plan_key const& of) {
      return std::tie(of.batch, of.context, of.heads, of.width, of.window, of.scale, of.of, of.causal, of.backward,
                      of.ordered);
    };
    return all(a) < all(b);
  }
};
plan_key key_of(attention_call const& call, bool backward) {
  return {.batch = call.batch,
          .context = call.context,
          .heads = call.heads,
          .width = call.width,
          .window = call.window >= call.context ? 0 : call.window,
          .scale = call.scale,
          .of = call.of,
          .causal = call.causal,
          .backward = backward,
          .ordered = !backward || (call.ordered && wish() != "unordered")};
}

/// What cuDNN itself would not refuse, but does not suit here.
std::string unsuitable(plan_key const& of) {
  if (of.of != dtype::bf16 && of.of != dtype::f16) return "cuDNN computes attention in 16-bit types only";
  if (of.batch < 1 || of.heads < 1) return "there is nothing to compute";
  if (of.width < 8 || of.width % 8 != 0 || of.width > 256)
    return text("cuDNN takes heads of 8, 16, ... 256 columns, and not of ", of.width);
  // A plan is compiled for each length, so lengths that change from call to call are left to kernels that are not.
  if (of.context < 64 || of.context % 64 != 0) return text("a context of ", of.context, " is not a multiple of 64");
  if (of.window > 0 && !of.causal) return "cuDNN gets windows only together with a causal mask";
  return {};
}

enum uid : std::int64_t { uid_q = 1, uid_k, uid_v, uid_y, uid_lse, uid_dy, uid_dq, uid_dk, uid_dv };

/// The operations of one direction, of `samples` samples.
std::shared_ptr<Graph> graph_of(plan_key const& of, std::int64_t samples, int compute_capability) {
  using attributes = frontend::graph::Tensor_attributes;
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(of.of == dtype::bf16 ? frontend::DataType_t::BFLOAT16 : frontend::DataType_t::HALF)
      .set_intermediate_data_type(frontend::DataType_t::FLOAT)
      .set_compute_data_type(frontend::DataType_t::FLOAT)
      .set_sm_version(compute_capability);

  auto const channels = of.heads * of.width;
  std::vector<std::int64_t> const dims{samples, of.heads, of.context, of.width};
  std::vector<std::int64_t> const wide{of.context * 3 * channels, of.width, 3 * channels, 1};
  std::vector<std::int64_t> const narrow{of.context * channels, of.width, channels, 1};
  std::vector<std::int64_t> const row_dims{samples, of.heads, of.context, 1};
  std::vector<std::int64_t> const row_strides{of.heads * of.context, of.context, 1, 1};
  auto const input = [&](char const* name, uid number, std::vector<std::int64_t> const& strides) {
    return graph->tensor(attributes().set_name(name).set_uid(number).set_dim(dims).set_stride(strides));
  };
  auto const output = [&](tensor const& it, uid number, std::vector<std::int64_t> const& strides) {
    it->set_output(true).set_uid(number).set_dim(dims).set_stride(strides);
  };
  auto const set_mask = [&](auto& how) {
    if (!of.causal) return;
    how.set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    if (of.window > 0) how.set_diagonal_band_left_bound(static_cast<int>(of.window));  // keys > query - window
  };

  auto const q = input("q", uid_q, wide);
  auto const k = input("k", uid_k, wide);
  auto const v = input("v", uid_v, wide);
  if (!of.backward) {
    auto how = frontend::graph::SDPA_attributes()
                   .set_name("attention")
                   .set_generate_stats(true)
                   .set_attn_scale(static_cast<float>(of.scale));
    set_mask(how);
    auto const [y, lse] = graph->sdpa(q, k, v, how);
    output(y, uid_y, narrow);
    lse->set_output(true).set_uid(uid_lse).set_dim(row_dims).set_stride(row_strides);
    lse->set_data_type(frontend::DataType_t::FLOAT);
    return graph;
  }
  auto const y = input("y", uid_y, narrow);
  auto const dy = input("dy", uid_dy, narrow);
  auto const lse = graph->tensor(attributes()
                                     .set_name("lse")
                                     .set_uid(uid_lse)
                                     .set_dim(row_dims)
                                     .set_stride(row_strides)
                                     .set_data_type(frontend::DataType_t::FLOAT));
  auto how = frontend::graph::SDPA_backward_attributes()
                 .set_name("attention_backward")
                 .set_attn_scale(static_cast<float>(of.scale));
  how.set_deterministic_algorithm(of.ordered);
  set_mask(how);
  auto const [dq, dk, dv] = graph->sdpa_backward(q, k, v, y, dy, lse, how);
  output(dq, uid_dq, wide);
  output(dk, uid_dk, wide);
  output(dv, uid_dv, wide);
  return graph;
}

/// The answers of the frontend's functions, up to the first that is an error.
class steps {
 public:
  template <class Step>
  steps& then(char const* what, Step step) {
    if (!refusal_.empty()) return *this;
    if (frontend::error_t answer = step(); answer.is_bad())
      refusal_ = text("cuDNN, ", what, ": ", answer.get_message().empty() ? "refused" : answer.get_message());
    return *this;
  }
  [[nodiscard]] std::string const& refusal() const { return refusal_; }

 private:
  std::string refusal_;
};

/// A graph with the kernels that compute it, for `samples` samples at a time.
struct plan {
  std::shared_ptr<Graph> graph;
  std::int64_t samples = 0;
  std::size_t workspace = 0;
  std::string refusal;
};

/// The most bytes of the gradients of scores that an ordered backward pass holds at a time, if one sample's fit.
constexpr std::int64_t score_bytes = std::int64_t{512} << 20;
/// A plan that needs more than this is refused.
constexpr std::int64_t most_workspace = std::int64_t{4} << 30;

/// How many samples are computed at a time, a divisor of the batch. The ordered backward pass of devices before
/// Blackwell keeps the gradients of all scores, B*H*T*T numbers of 16 bits, which is much for a large batch.
std::int64_t samples_at_a_time(plan_key const& of) {
  if (!of.backward || !of.ordered) return of.batch;
  auto const each = 2 * of.heads * of.context * of.context;
  auto samples = std::min(of.batch, std::max<std::int64_t>(1, score_bytes / each));
  while (of.batch % samples != 0) --samples;
  return samples;
}

class handle_of_device {
 public:
  handle_of_device() = default;
  handle_of_device(handle_of_device const&) = delete;
  handle_of_device& operator=(handle_of_device const&) = delete;
  ~handle_of_device() {
    if (handle_ != nullptr) (void)frontend::detail::destroy_handle(handle_);
  }
  /// The handle, or nullptr if cuDNN makes none.
  cudnnHandle_t get() {
    if (handle_ == nullptr && frontend::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
    return handle_;
  }

 private:
  cudnnHandle_t handle_ = nullptr;
};

/// What a thread keeps for a device.
struct of_device {
  int compute_capability = 0;
  handle_of_device handle;
  std::map<plan_key, plan> plans;  // after the handle, so destroyed before it
};
/// Of more shapes than these, a thread's plans are not kept but refused: each holds memory of the device.
constexpr std::size_t most_plans = 128;

of_device& of_thread() {
  thread_local std::map<int, of_device> all;
  int device = 0;
  if (::cudaGetDevice(&device) != cudaSuccess) throw std::runtime_error("no GPU");
  auto& found = all[device];
  if (found.compute_capability == 0) {
    int major = 0, minor = 0;
    if (::cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        ::cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
      throw std::runtime_error("no GPU");
    found.compute_capability = 10 * major + minor;
  }
  return found;
}

plan make_plan(plan_key const& of, of_device& on) {
  plan made;
  made.refusal = unsuitable(of);
  if (!made.refusal.empty()) return made;
  if (on.plans.size() >= most_plans) {
    made.refusal = "there are plans of too many shapes";
    return made;
  }
  auto* const handle = on.handle.get();
  if (handle == nullptr) {
    made.refusal = "cudnnCreate fails";
    return made;
  }
  // Before some versions, the frontend itself sets or copies some workspace, with functions of CUDA's runtime that it
  // looks up in libcudart.so: this throws if there is none.
  if (auto const version = cudnn_library().version; version < 90600 || (version <= 91500 && of.context % 128 != 0))
    (void)frontend::detail::get_cuda_symbol(frontend::detail::CudaLibrary::CUDART, "cudaMemcpyAsync");
  made.samples = samples_at_a_time(of);
  made.graph = graph_of(of, made.samples, on.compute_capability);
  std::int64_t bytes = 0;
  auto& graph = *made.graph;
  made.refusal =
      steps()
          .then("validate", [&] { return graph.validate(); })
          .then("build_operation_graph", [&] { return graph.build_operation_graph(handle); })
          .then("create_execution_plans", [&] { return graph.create_execution_plans({frontend::HeurMode_t::A}); })
          .then("check_support", [&] { return graph.check_support(); })
          .then("build_plans", [&] { return graph.build_plans(); })
          .then("get_workspace_size", [&] { return graph.get_workspace_size(bytes); })
          .refusal();
  if (made.refusal.empty() && bytes > most_workspace)
    made.refusal = text("cuDNN would need ", bytes, " bytes of memory, more than ", most_workspace);
  made.workspace = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0));
  if (!made.refusal.empty()) made.graph = nullptr;
  return made;
}

std::string& refusal_of_thread() {
  thread_local std::string why;
  return why;
}

/// The plan of one direction of a call, made now if there is none; its graph is nullptr if cuDNN refuses.
plan const& plan_of(attention_call const& call, bool backward, of_device& on) {
  auto const key = key_of(call, backward);
  auto const found = on.plans.find(key);
  if (found != on.plans.end()) return found->second;
  plan made;
  try {
    made = make_plan(key, on);
  } catch (std::exception const& problem) {
    made = plan();
    made.refusal = problem.what();
  }
  return on.plans.emplace(key, std::move(made)).first->second;
}

/// Calls f(); what it throws becomes the refusal, and the result `otherwise`.
template <class Result, class F>
Result guarded(Result otherwise, F f) {
  auto& refusal = refusal_of_thread();
  refusal.clear();
  try {
    if (refusal = cudnn_library().refusal; !refusal.empty()) return otherwise;
    return f(refusal);
  } catch (std::exception const& problem) {
    refusal = problem.what();
  } catch (...) {
    refusal = "an unknown exception in cuDNN's frontend";
  }
  return otherwise;
}

bool aligned(void const* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

/// `address`, `elements` of 16 bits further.
void* at(void const* address, std::int64_t elements) {
  return const_cast<std::byte*>(static_cast<std::byte const*>(address)) + 2 * elements;
}

int execute(attention_call const& call, bool backward, void* workspace) {
  return guarded(static_cast<int>(cudaErrorNotSupported), [&](std::string& refusal) -> int {
    auto& on = of_thread();
    auto const& how = plan_of(call, backward, on);
    if (how.graph == nullptr) {
      refusal = how.refusal;
      return cudaErrorNotSupported;
    }
    auto* const handle = on.handle.get();
    if (frontend::detail::set_stream(handle, static_cast<cudaStream_t>(call.stream)) != CUDNN_STATUS_SUCCESS) {
      refusal = "cudnnSetStream fails";
      return cudaErrorUnknown;
    }
    auto const channels = call.heads * call.width;
    for (std::int64_t sample = 0; sample < call.batch; sample += how.samples) {
      auto const rows = sample * call.context;
      auto const wide = rows * 3 * channels;
      std::unordered_map<std::int64_t, void*> addresses{{uid_q, at(call.qkv, wide)},
                                                        {uid_k, at(call.qkv, wide + channels)},
                                                        {uid_v, at(call.qkv, wide + 2 * channels)},
                                                        {uid_y, at(call.y, rows * channels)},
                                                        {uid_lse, call.lse + rows * call.heads}};
      if (backward) {
        addresses.emplace(uid_dy, at(call.dy, rows * channels));
        addresses.emplace(uid_dq, at(call.dqkv, wide));
        addresses.emplace(uid_dk, at(call.dqkv, wide + channels));
        addresses.emplace(uid_dv, at(call.dqkv, wide + 2 * channels));
      }
      if (auto answer = how.graph->execute(handle, addresses, workspace); answer.is_bad()) {
        refusal = text("cuDNN, execute: ", answer.get_message());
        auto const code = ::cudaPeekAtLastError();
        return code != cudaSuccess ? code : cudaErrorUnknown;
      }
    }
    return cudaSuccess;
  });
}

}  // namespace

bool cudnn_takes(attention_call const& call) {
  if (wish() == "own") {
    refusal_of_thread() = "TRIREME_ATTENTION=own";
    return false;
  }
  return guarded(false, [&](std::string& refusal) {
    refusal = unsuitable(key_of(call, false));
    if (!refusal.empty()) return false;
    for (void const* const each : {call.qkv, static_cast<void const*>(call.y), static_cast<void const*>(call.lse),
                                   call.dy, static_cast<void const*>(call.dqkv)}) {
      if (aligned(each)) continue;
      refusal = "an address is not a multiple of 16 bytes";
      return false;
    }
    auto& on = of_thread();
    for (bool const backward : {false, true}) {
      auto const& how = plan_of(call, backward, on);
      if (how.graph != nullptr) continue;
      refusal = how.refusal;
      return false;
    }
    return true;
  });
}

std::string cudnn_refusal() { return refusal_of_thread(); }

std::int64_t cudnn_version() {
  return guarded(std::int64_t{0}, [](std::string&) { return static_cast<std::int64_t>(cudnn_library().version); });
}

std::size_t cudnn_workspace(attention_call const& call, bool backward) {
  return guarded(std::size_t{0}, [&](std::string& refusal) {
    auto const& how = plan_of(call, backward, of_thread());
    refusal = how.refusal;
    return how.workspace;
  });
}

int cudnn_attention(attention_call const& call, void* workspace) { return execute(call, false, workspace); }
int cudnn_attention_backward(attention_call const& call, void* workspace) { return execute(call, true, workspace); }

std::string cudnn_refuses(attention_call const& call, bool backward, std::string const& properties,
                          int compute_capability) {
  bool const asked = guarded(false, [&](std::string& refusal) {
    auto const key = key_of(call, backward);
    if (refusal = unsuitable(key); !refusal.empty()) return true;
    auto const device = std::make_shared<frontend::DeviceProperties>();
    auto const graph = graph_of(key, samples_at_a_time(key), compute_capability);
    refusal =
        steps()
            .then("deserialize",
                  [&] {
                    return device->deserialize({properties.begin(), properties.end()});
                  })
            .then("set_device_properties", [&] { return graph->set_device_properties(device), frontend::error_t(); })
            .then("validate", [&] { return graph->validate(); })
            .then("build_operation_graph", [&] { return graph->build_operation_graph(); })
            .then("create_execution_plans", [&] { return graph->create_execution_plans({frontend::HeurMode_t::A}); })
            .then("check_support", [&] { return graph->check_support(); })
            .refusal();
    return true;
  });
  auto const& refusal = refusal_of_thread();
  return asked || !refusal.empty() ? refusal : std::string("cuDNN gives no answer");
}

}  // namespace trireme::ops::cuda_kernels

#else

namespace trireme::ops::cuda_kernels {

namespace {
constexpr char const* without = "built without the headers of cuDNN and of its frontend (1.15 or later)";
}  // namespace

bool cudnn_takes(attention_call const&) { return false; }
std::string cudnn_refusal() { return without; }
std::int64_t cudnn_version() { return 0; }
std::size_t cudnn_workspace(attention_call const&, bool) { return 0; }
int cudnn_attention(attention_call const&, void*) { return 801; }  // cudaErrorNotSupported
int cudnn_attention_backward(attention_call const&, void*) { return 801; }
std::string cudnn_refuses(attention_call const&, bool, std::string const&, int) { return without; }

}  // namespace trireme::ops::cuda_kernels

#endif
