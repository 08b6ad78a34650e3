// Archives of tar. Besides not crashing: nothing outside of the input is read, each file is within it and they do not
// overlap, and each error has its place in the input. Each input is read a second time with the checksums of its
// headers made right, or nearly all changes would end there. test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "trireme/formats/tar.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bool repairs = false;
  auto const read = [&](std::uint64_t at, std::span<std::byte> to) {
    if (at > size || to.size() > size - at) std::abort();
    if (!to.empty()) std::memcpy(to.data(), data + at, to.size());
    if (!repairs || to.size() != 512) return;
    unsigned sum = 0;
    for (auto const byte : to) sum += std::to_integer<unsigned>(byte);
    if (sum == 0) return;
    sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? 32U : std::to_integer<unsigned>(to[i]);
    for (std::size_t i = 0; i < 8; ++i) to[148 + i] = static_cast<std::byte>('0' + (sum >> (21 - 3 * i) & 7U));
  };
  auto const members_of = [&](std::uint64_t length) {
    std::uint64_t members = 0, end = 0;
    try {
      trireme::formats::tar::read_members(read, length, "input", [&](trireme::formats::tar::member const& found) {
        if (found.header_at < end || found.data_at <= found.header_at || found.data_at > length ||
            found.bytes > length - found.data_at)
          std::abort();
        end = found.data_at + found.bytes;
        ++members;
      });
    } catch (trireme::format_error const& error) {
      if (error.path() != "input" || error.offset() > length) std::abort();
    }
    return members;
  };
  static_cast<void>(members_of(size));
  repairs = true;
  auto const all = members_of(size);
  if (members_of(size / 2) > all) std::abort();
  return 0;
}
