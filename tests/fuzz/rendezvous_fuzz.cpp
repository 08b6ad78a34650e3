// What arrives at a rendezvous: hello, challenge, a meeting's file, frames in pieces, and the contents of all ranks.
// Besides not crashing: what is accepted packs to the same bytes, and no frame without its tag is.
#include <cstdint>
#include <cstdlib>

#include "trireme/comm/rendezvous.hpp"

namespace {

namespace inner = trireme::comm::detail;

template <class Message>
void parse(std::span<std::byte const> bytes) {
  if (bytes.size() < Message::bytes) return;
  auto const exact = bytes.template first<Message::bytes>();
  auto const message = Message::parse(exact);
  if (message && !std::ranges::equal(message->packed(), exact)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  parse<inner::hello>(bytes);
  parse<inner::challenge>(bytes);
  parse<inner::meeting_note>(bytes);

  // The first byte says how large the pieces are in which the rest arrives.
  constexpr std::size_t most = 4096;
  inner::frame_channel in({}, true, most);
  for (std::size_t at = 1; at < size;) {
    auto const wanted = in.wanted();
    if (wanted > most + 64) std::abort();
    auto const shard = std::min({std::size_t{data[0]} + 1, wanted, size - at});
    if (!in.take(bytes.subspan(at, shard))) break;
    at += shard;
    if (!in.is_whole()) continue;
    auto const got = in.unpack();
    if (!got) break;
    // Only who knows the key gets here: the same content, packed, must be what came.
    inner::frame_channel again({}, true, most);
    auto const packed = again.pack(got->kind, got->content);
    bool const first = at == packed.size() + 1;
    if (first && !std::ranges::equal(packed, bytes.subspan(1, packed.size()))) std::abort();
  }
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  for (std::size_t const count : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    auto const parts = inner::unpack_all(text, count);
    if (parts && inner::pack_all(*parts) != text) std::abort();
  }
  return 0;
}
