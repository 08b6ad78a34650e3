// Headers of safetensors files. Besides not crashing: what is accepted covers the file exactly, in order, once.
#include <cstdint>
#include <cstdlib>
#include <set>

#include "trireme/formats/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace st = trireme::formats::safetensors;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const head = st::parse_header(bytes, size, "input");
    std::uint64_t end = 0;
    std::set<std::string_view> names;
    for (auto const& each : head.entries) {
      if (each.begin != end || !names.insert(each.name).second) std::abort();
      end += each.bytes;
      auto const elements = static_cast<std::uint64_t>(each.extents.size());
      if (elements * static_cast<std::uint64_t>(each.type.bits()) != each.bytes * 8) std::abort();
    }
    if (head.data_offset + end != size) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.offset() > size) std::abort();
  }
  return 0;
}
