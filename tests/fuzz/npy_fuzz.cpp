// Headers of numpy's files. Besides not crashing: what is accepted makes exactly the bytes that follow.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <span>

#include "trireme/formats/npy.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace npy = trireme::formats::npy;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const header = npy::parse_header(bytes, size, "input");
    auto const width = static_cast<std::uint64_t>(npy::bytes_of(header.type));
    if (header.data_at + static_cast<std::uint64_t>(header.extents.size()) * width != size) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > size) std::abort();
  }
  return 0;
}
