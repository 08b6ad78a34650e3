// PNG and JPEG files, and the records of cameras in them. Besides not crashing: a picture has the size that its bytes
// say, and an orientation is one of eight.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "trireme/formats/picture.hpp"

namespace {

/// Whether a file claims a picture that is large: decoders allocate memory for it, which is checked elsewhere.
bool is_large(std::span<std::uint8_t const> file) {
  auto const two = [&](std::size_t at) { return std::size_t{file[at]} << 8 | file[at + 1]; };
  constexpr std::size_t most = 1 << 18;
  if (file.size() >= 24 && file[0] == 0x89) {
    auto const width = two(16) << 16 | two(18), height = two(20) << 16 | two(22);
    return width > most || height > most || width * height > most;
  }
  for (std::size_t at = 0; at + 9 <= file.size(); ++at) {
    if (file[at] == 0xff && file[at + 1] >= 0xc0 && file[at + 1] <= 0xcf && two(at + 5) * two(at + 7) > most)
      return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme::formats;
  auto const turn = detail::orientation_in(data, size);
  if (turn < 1 || turn > 8) std::abort();
  if (is_large({data, size})) return 0;
  picture out;
  auto const why = decode_picture(std::as_bytes(std::span(data, size)), out);
  if (!why.empty()) return 0;
  if (out.height < 1 || out.width < 1) std::abort();
  if (out.colours.size() != static_cast<std::size_t>(out.height) * static_cast<std::size_t>(out.width) * 3)
    std::abort();
  return 0;
}
