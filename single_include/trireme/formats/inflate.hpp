// Trireme 0.1.0: trireme/formats/inflate.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 7daf297f9df4aef7c6b4655e406c84423da0df11778e0a488f079daa971771de
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/inflate.hpp
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

namespace trireme::formats {

namespace detail {

/// inflate(), with at most `chunk` bytes of `to` given to zlib at once.
[[nodiscard]] inline std::string inflate_in(std::function<std::span<std::byte const>()> const& next,
                                            std::span<std::byte> to, std::size_t chunk) {
  struct stream : ::z_stream {
    stream() : ::z_stream{} {}
    stream(stream const&) = delete;
    stream& operator=(stream const&) = delete;
    ~stream() { ::inflateEnd(this); }
  } zip;
  // Negative: without the header and checksum of zlib's own format.
  if (::inflateInit2(&zip, -MAX_WBITS) != Z_OK) return "zlib has no memory to decompress it";
  std::size_t done = 0;
  int state = Z_OK;
  bool more = false;  // zlib may hold output although it has taken all input
  while (state != Z_STREAM_END) {
    if (zip.avail_in == 0 && !more) {
      auto const piece = next();
      if (piece.empty()) return "its compressed data end too early";
      // zlib's interface lacks a const here unless ZLIB_CONST is defined before its header; it does not write.
      zip.next_in = const_cast<Bytef*>(reinterpret_cast<Bytef const*>(piece.data()));
      zip.avail_in = static_cast<uInt>(piece.size());
    }
    Bytef beyond = 0;  // one byte more shows whether the content is longer than it should be
    auto const room = std::min<std::size_t>(to.size() - done, chunk);
    zip.next_out = room == 0 ? &beyond : reinterpret_cast<Bytef*>(to.data() + done);
    zip.avail_out = room == 0 ? 1 : static_cast<uInt>(room);
    auto const before = zip.avail_out;
    state = ::inflate(&zip, Z_NO_FLUSH);
    if (state != Z_OK && state != Z_STREAM_END && !(state == Z_BUF_ERROR && zip.avail_in == 0)) {
      return "its compressed data are damaged";
    }
    more = zip.avail_out == 0;
    auto const made = std::size_t{before - zip.avail_out};
    if (room == 0 && made != 0) return "its compressed data hold more bytes than the directory says";
    done += made;
  }
  if (done != to.size()) return "its compressed data hold fewer bytes than the directory says";
  if (zip.avail_in != 0 || !next().empty()) return "something follows its compressed data";
  return {};
}

}  // namespace detail

/// Decompresses DEFLATE (RFC 1951) with zlib, for zip::decompressor. Link trireme::zlib, which exists where zlib does.
///
///     data::npz_files{.files = "part_*.npz", .features = "x", .targets = "y"}.open(formats::inflate)
///
/// Threads  any number of calls at once.
/// Errors   returned as words: damaged data, more or fewer bytes than `to` holds, bytes after the end of the data.
///
/// @param next  returns the compressed bytes piece by piece; an empty piece is the end. A piece must be valid until the
///              next call, and at most 1 GiB.
[[nodiscard]] inline std::string inflate(std::function<std::span<std::byte const>()> const& next,
                                         std::span<std::byte> to) {
  return detail::inflate_in(next, to, std::size_t{1} << 30);  // zlib counts in 32 bits
}

}  // namespace trireme::formats
