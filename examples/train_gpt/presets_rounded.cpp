#include "presets.hpp"
#include "trireme/precision/fp8.hpp"

std::unique_ptr<trireme::any_trainer> make_rounded(std::string const& format, preset const& chosen,
                                                   language_model const& model, optimizer_choice const& optimizer,
                                                   trireme::comm::any_world& world) {
  namespace p = trireme::precision;
  p::rounded precision{p::fp8{}};
  if (format == "mxfp8") precision.chosen = p::mxfp8{};
  if (format == "nvfp4") precision.chosen = p::nvfp4{};
  return make_preset<p::rounded>(chosen, model, optimizer, world, precision);
}
