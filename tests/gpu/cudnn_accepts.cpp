// Whether cuDNN computes the attention of the library's models on an NVIDIA H100: cuDNN answers from a description of
// the device, so this program needs no GPU. Without a driver, the CUDA toolkit's stand-in for libcuda.so.1 is enough.
#include <dlfcn.h>

#include "support.hpp"
#include "trireme/ops/cuda/cudnn_launch.hpp"

namespace kernels = trireme::ops::cuda_kernels;
using trireme::dtype;

namespace {

/// Opens libcuda.so.1, which cuDNN opens by this name; false if there is none.
bool opens_driver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  for (auto const* const folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/lib/x86_64-linux-gnu",
                                   "/opt/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"}) {
    auto const stub = trireme::text(folder, "/stubs/libcuda.so");
    if (dlopen(stub.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  }
  return false;
}

/// An H100 with 80 GB.
std::string h100() {
  return trireme::text(
      R"({"cudnn_version":)", kernels::cudnn_version(),
      R"(,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536)",
      R"(,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152)",
      R"(,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536)",
      R"(,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0)",
      R"(,"supportCoopLaunch":1,"totalGlobalMem":85017755648,"smClockRateKHz":1980000,"memClockRateKHz":2619000)",
      R"(,"l2CacheSize":52428800,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000)",
      R"(,"deviceName":"NVIDIA H100 80GB HBM3"})");
}

struct shape {
  char const* name;
  std::int64_t batch, context, heads, width;
  std::int64_t window = 0;
  bool causal = true;
};
constexpr shape accepted[] = {
    {"GPT-2, 64 samples", 64, 1024, 12, 64},       {"GPT-2, 4 samples", 4, 1024, 12, 64},
    {"GPT-2, 1 sample", 1, 1024, 12, 64},          {"GPT-2, a context of 64", 4, 64, 12, 64},
    {"GPT-2, a context of 192", 4, 192, 12, 64},   {"4 heads of 32 columns", 8, 128, 4, 32},
    {"32 heads of 128 columns", 4, 2048, 32, 128}, {"a window of 256", 4, 1024, 12, 64, 256},
    {"no mask", 16, 512, 12, 64, 0, false},
};

kernels::attention_call call_of(shape const& of, dtype type, bool ordered) {
  kernels::attention_call call;
  call.of = type;
  call.batch = of.batch;
  call.context = of.context;
  call.heads = of.heads;
  call.width = of.width;
  call.causal = of.causal;
  call.window = of.window;
  call.scale = 0.125;
  call.ordered = ordered;
  return call;
}

}  // namespace

int main() {
  std::string reason;
  if (!opens_driver()) reason = "there is neither a driver nor the CUDA toolkit's stand-in for it";
  auto const version = reason.empty() ? kernels::cudnn_version() : 0;
  if (reason.empty() && version < 90800)
    reason =
        version == 0 ? kernels::cudnn_refusal() : trireme::text("cuDNN ", version, " does not answer without a GPU");
  if (reason.empty()) {  // where the answers come from, and whether they come at all
    auto const why = kernels::cudnn_refuses(call_of(accepted[0], dtype::f32, true), false, h100(), 90);
    if (why.find("16-bit") == std::string::npos) reason = why;
  }
  if (!reason.empty()) {
    std::printf("skipped: what cuDNN accepts: %s\n", reason.c_str());
    return 77;
  }
  gpu::cases cases;
  for (auto const& each : accepted) {
    for (auto const type : {dtype::bf16, dtype::f16}) {
      auto const name =
          trireme::text("cuDNN ", version, " accepts ", each.name, type == dtype::bf16 ? ", bfloat16" : ", float16");
      auto const ask = [&](bool backward, bool ordered) {
        auto const why = kernels::cudnn_refuses(call_of(each, type, ordered), backward, h100(), 90);
        ladder::expect(why.empty(), why);
      };
      cases.run(name + ", forward", [&] { ask(false, true); });
      cases.run(name + ", backward", [&] { ask(true, true); });
      cases.run(name + ", backward in any order", [&] { ask(true, false); });
    }
  }
  cases.run("what cuDNN does not take is refused with a reason", [] {
    auto const refused = [](shape const& of, dtype type) {
      return !kernels::cudnn_refuses(call_of(of, type, true), false, h100(), 90).empty();
    };
    ladder::expect(refused(accepted[0], dtype::f32), "float");
    ladder::expect(refused({"", 4, 1024, 12, 60}, dtype::bf16), "a head of 60 columns");
    ladder::expect(refused({"", 4, 1024, 12, 264}, dtype::bf16), "a head of 264 columns");
    ladder::expect(refused({"", 4, 1000, 12, 64}, dtype::bf16), "a context of 1000");
    ladder::expect(refused({"", 0, 1024, 12, 64}, dtype::bf16), "no sample");
    ladder::expect(refused({"", 4, 1024, 12, 64, 16, false}, dtype::bf16), "a window on both sides");
  });
  return cases.exit_code();
}
