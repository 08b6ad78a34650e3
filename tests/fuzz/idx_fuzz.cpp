// Headers of IDX files. Besides not crashing: what is accepted makes exactly the bytes that follow.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <span>

#include "trireme/formats/idx.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const extents = trireme::formats::idx::parse_header(bytes, size, "input");
    auto const header = 4 + 4 * static_cast<std::size_t>(extents.rank());
    if (header + static_cast<std::size_t>(extents.size()) != size) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > size) std::abort();
  }
  return 0;
}
