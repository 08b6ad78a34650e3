// Event files: the bytes as a file, as a record's content, and as content in a correct frame (a checksum that must be
// guessed first would hide everything behind it).
#include <cstdint>
#include <cstdlib>

#include "trireme/formats/tensorboard.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace tb = trireme::formats::tensorboard;
  auto const bytes = std::as_bytes(std::span(data, size));
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  auto const list = tb::split_records(bytes);
  if (list.valid_bytes > size || (list.tail == tb::tail::whole) != (list.valid_bytes == size)) std::abort();
  try {
    static_cast<void>(tb::parse_events(bytes, "input"));
  } catch (trireme::format_error const& error) {
    if (error.offset() > size) std::abort();
  }
  try {
    auto const event = tb::decode(bytes, "input");
    auto const again = tb::encode(event);
    if (tb::encode(tb::decode(std::as_bytes(std::span(again)), "again")) != again) std::abort();
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > size) std::abort();
  }
  auto const framed = tb::frame(text) + tb::frame("");
  auto const both = tb::split_records(std::as_bytes(std::span(framed)));
  if (both.tail != tb::tail::whole || both.records.size() != 2 || both.records[0].size() != size) std::abort();
  return 0;
}
