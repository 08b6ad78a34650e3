// Headers of llm.c's files and of Megatron's indexes. Besides not crashing: what is accepted makes exactly the bytes
// that follow.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <span>

#include "trireme/formats/token_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace files = trireme::formats::token_files;
  auto const bytes = std::as_bytes(std::span(data, size));
  auto const try_it = [&](auto parse) {
    try {
      parse();
    } catch (trireme::format_error const& error) {
      if (error.path() != "input" || error.offset() > size) std::abort();
    }
  };
  try_it([&] {
    auto const header = files::parse_llm_c(bytes, size, "input");
    auto const width = static_cast<std::uint64_t>(files::bytes_of(header.type));
    if (files::llm_c_header_bytes + static_cast<std::uint64_t>(header.count) * width != size) std::abort();
  });
  try_it([&] {
    auto const index = files::parse_megatron(bytes, size, "input");
    if (index.documents_at() + 8 * static_cast<std::uint64_t>(index.ends) != size) std::abort();
  });
  return 0;
}
