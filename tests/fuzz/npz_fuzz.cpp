// Archives of numpy. Besides not crashing: nothing outside of the input is read, what a member holds is within it, and
// each error has its place in the input.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "trireme/formats/npy.hpp"
#include "trireme/formats/zip.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace zip = trireme::formats::zip;
  auto const read = [&](std::uint64_t at, std::span<std::byte> to) {
    if (at > size || to.size() > size - at) std::abort();
    if (!to.empty()) std::memcpy(to.data(), data + at, to.size());
  };
  auto const try_it = [&](auto part) {
    try {
      part();
    } catch (trireme::format_error const& error) {
      if (error.path() != "input" || error.offset() > size) std::abort();
    }
  };
  zip::archive all;
  try_it([&] { all = zip::read_directory(read, size, "input"); });
  for (auto const& member : all.members) {
    try_it([&] {
      auto const begin = zip::data_at(read, all, member, "input");
      if (begin > size || member.stored_bytes > size - begin) std::abort();
      if (!member.stored()) return;
      auto const bytes = std::as_bytes(std::span(data + begin, member.bytes));
      static_cast<void>(zip::crc32(0, bytes));
      static_cast<void>(trireme::formats::npy::parse_header(bytes, bytes.size(), "input"));
    });
  }
  return 0;
}
