#include "../device.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/ops/cuda.hpp"

std::unique_ptr<trireme::any_trainer> make_fp32_on_device(preset const& chosen, language_model const& model,
                                                          optimizer_choice const& optimizer,
                                                          trireme::comm::any_world& world) {
  return make_preset<trireme::precision::fp32, trireme::cuda>(chosen, model, optimizer, world,
                                                              {.tf32_products = chosen.tf32});
}
