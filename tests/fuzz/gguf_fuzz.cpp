// The beginnings of GGUF files. Besides not crashing: what is accepted lies in the file, in order, without overlap.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <set>

#include "trireme/formats/gguf.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace gguf = trireme::formats::gguf;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const head = gguf::parse_header(bytes, size, "input");
    if (!head) std::abort();  // all of the file was given
    std::uint64_t end = 0;
    std::set<std::string_view> names;
    for (auto const& each : head->entries) {
      if (each.begin < end || each.begin % head->alignment != 0 || !names.insert(each.name).second) std::abort();
      end = each.begin + each.bytes;
      auto const blocks = static_cast<std::uint64_t>(each.extents.size() / gguf::block_elements(each.type));
      if (blocks * static_cast<std::uint64_t>(gguf::block_bytes(each.type)) != each.bytes) std::abort();
    }
    if (head->data_offset + end > size) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.offset() > size) std::abort();
  }
  return 0;
}
