// Files of sentencepiece.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <string>

#include "trireme/formats/sentencepiece_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using file = trireme::formats::sentencepiece_file;
  try {
    auto const out = file::parse({reinterpret_cast<char const*>(data), size}, "input");
    if (out.pieces.empty() || out.pieces.size() > size) std::abort();
    for (auto const& each : out.pieces) {
      if (each.kind < file::normal || each.kind > file::byte || each.content.size() > size) std::abort();
    }
  } catch (trireme::format_error const& error) {
    if (error.offset() > size) std::abort();
  }
  return 0;
}
