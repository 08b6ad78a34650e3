// JSON texts. Besides not crashing: what is accepted prints to a text that reads back as the same value.
#include <cstdint>
#include <cstdlib>

#include "trireme/formats/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace json = trireme::formats::json;
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    auto const value = json::parse(text, "input");
    if (json::parse(json::to_string(value), "again") != value) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > size) std::abort();
  }
  return 0;
}
