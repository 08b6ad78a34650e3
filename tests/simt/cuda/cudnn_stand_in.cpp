// A stand-in for the library's calls of cuDNN. It takes nothing, as on a machine without cuDNN, unless the environment
// has TRIREME_ATTENTION=cudnn: then it takes what cuDNN would, and computes attention in double, on the stream.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "../../support/plain_attention.hpp"
#include "trireme/ops/cuda/cudnn_launch.hpp"

namespace stand_in {

void queue_kernel(void* stream, std::function<void()> kernel);

}  // namespace stand_in

namespace trireme::ops::cuda_kernels {

namespace {

constexpr std::size_t workspace_bytes = 64;

std::string refusal(attention_call const& of) {
  char const* const wish = std::getenv("TRIREME_ATTENTION");
  if (wish == nullptr || std::string_view(wish) != "cudnn") return "no cuDNN";
  if (of.of != dtype::bf16 && of.of != dtype::f16) return "cuDNN computes attention in 16-bit types only";
  if (of.width < 8 || of.width % 8 != 0 || of.width > 256) return "the width of the heads";
  if (of.context < 64 || of.context % 64 != 0) return "the context";
  if (of.batch < 1 || of.heads < 1 || (of.window > 0 && !of.causal)) return "the shape or the mask";
  for (void const* const each : {of.qkv, static_cast<void const*>(of.y), static_cast<void const*>(of.lse), of.dy,
                                 static_cast<void const*>(of.dqkv)})
    if (reinterpret_cast<std::uintptr_t>(each) % 16 != 0) return "an address is not a multiple of 16 bytes";
  return {};
}

template <class T>
void compute(attention_call const& of, bool backward) {
  plain::attention_shape const shape{.batch = of.batch,
                                     .context = of.context,
                                     .heads = of.heads,
                                     .width = of.width,
                                     .causal = of.causal,
                                     .window = of.window,
                                     .scale = of.scale};
  auto const* const qkv = static_cast<T const*>(of.qkv);
  auto* const y = static_cast<T*>(of.y);
  if (backward) {
    plain::attention_backward(shape, qkv, y, of.lse, static_cast<T const*>(of.dy), static_cast<T*>(of.dqkv));
  } else {
    plain::attention(shape, qkv, y, of.lse);
  }
}

int queue(attention_call const& of, bool backward, void* workspace) {
  if (!refusal(of).empty() || workspace == nullptr) return 1;  // cudaErrorInvalidValue
  stand_in::queue_kernel(of.stream, [of, backward, workspace] {
    std::memset(workspace, 0xFF, workspace_bytes);
    if (of.of == dtype::bf16) {
      compute<bfloat16>(of, backward);
    } else {
      compute<float16>(of, backward);
    }
  });
  return 0;
}

}  // namespace

bool cudnn_takes(attention_call const& call) { return refusal(call).empty(); }
std::string cudnn_refusal() { return {}; }
std::int64_t cudnn_version() { return 0; }
std::size_t cudnn_workspace(attention_call const&, bool) { return workspace_bytes; }
int cudnn_attention(attention_call const& call, void* workspace) { return queue(call, false, workspace); }
int cudnn_attention_backward(attention_call const& call, void* workspace) { return queue(call, true, workspace); }
std::string cudnn_refuses(attention_call const& call, bool, std::string const&, int) { return refusal(call); }

}  // namespace trireme::ops::cuda_kernels
