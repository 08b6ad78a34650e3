// Timelines that came as bytes from another rank.
#include <cstdint>

#include "trireme/observe/timeline.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::size_t seen = 0;
  try {
    auto const back = trireme::observe::unpack(std::as_bytes(std::span(data, size)));
    for (auto const& event : back.process().events) seen += event.name.size() + event.category.size();
  } catch (trireme::config_error const&) {
  }
  return seen == ~std::size_t{0} ? 1 : 0;
}
