#include "device.hpp"

#ifdef TRAIN_GPT_CUDA
#include <cuda_runtime.h>

#include "trireme/core/cuda_space.hpp"
#endif

using namespace trireme;

#ifdef TRAIN_GPT_CUDA

void expect_device(std::string const& device) {
  if (device != TRAIN_GPT_CUDA_DEVICE)
    throw config_error(text("--device ", device, ": this program computes on ", TRAIN_GPT_CUDA_DEVICE,
                            "; scripts/train builds the right one"));
  int count = 0;
  auto const code = ::cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return;
  throw config_error(text("--device ", device, ": there is no GPU here (",
                          code == cudaSuccess ? "CUDA finds no device" : ::cudaGetErrorString(code),
                          "); take --device cpu"));
}
std::string device_name() {
  ::cudaDeviceProp about{};
  int device = 0;
  if (::cudaGetDevice(&device) != cudaSuccess || ::cudaGetDeviceProperties(&about, device) != cudaSuccess) {
    (void)::cudaGetLastError();
    return TRAIN_GPT_CUDA_DEVICE;
  }
  return static_cast<char const*>(about.name);
}
std::size_t device_bytes() { return cuda::device_bytes(); }
void remember_device_plan(double bytes) { cuda::remember_plan(static_cast<std::size_t>(bytes)); }

#else

namespace {

std::unique_ptr<any_trainer> refused() {
  throw config_error("--device: this program was built without CUDA; scripts/train builds one that has it");
}

}  // namespace

void expect_device(std::string const&) { (void)refused(); }
std::string device_name() { return {}; }
std::size_t device_bytes() { return 0; }
void remember_device_plan(double) {}
std::unique_ptr<any_trainer> make_fp32_on_device(preset const&, language_model const&, optimizer_choice const&,
                                                 comm::any_world&) {
  return refused();
}
std::unique_ptr<any_trainer> make_bf16_on_device(preset const&, language_model const&, optimizer_choice const&,
                                                 comm::any_world&) {
  return refused();
}
std::unique_ptr<any_trainer> make_fp16_on_device(preset const&, language_model const&, optimizer_choice const&,
                                                 comm::any_world&) {
  return refused();
}

#endif
