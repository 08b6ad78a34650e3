// Trireme 0.1.0: trireme/formats/gzip.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 46c85c24ea02dcec5869da933f6547a61eb89c4cccdc77f70b2572e30d744d9f
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/byte_stream.hpp"

// ---- trireme/formats/gzip.hpp
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::formats {

namespace detail {

/// A file of gzip (RFC 1952): one member, or several one after the other.
class gzip_stream final : public byte_stream {
 public:
  gzip_stream(std::string path, byte_source from) : path_(std::move(path)), from_(std::move(from)), in_(1 << 16) {
    // 16: with gzip's header and checksum.
    if (::inflateInit2(&zip_, MAX_WBITS + 16) != Z_OK) throw io_error(path_, "zlib has no memory to decompress it");
  }
  ~gzip_stream() override { ::inflateEnd(&zip_); }

  std::size_t read(std::span<unsigned char> to) override {
    zip_.next_out = to.data();
    auto const room = static_cast<uInt>(std::min<std::size_t>(to.size(), 1 << 30));
    zip_.avail_out = room;
    while (zip_.avail_out == room) {
      if (zip_.avail_in == 0 && !more_) {
        auto const got = from_(in_);
        if (got == 0) {
          if (between_) return 0;
          throw format_error(path_, taken_, "the compressed data end too early; the file is truncated");
        }
        taken_ += got;
        zip_.next_in = in_.data();
        zip_.avail_in = static_cast<uInt>(got);
      }
      if (between_ && begun_) ::inflateReset(&zip_);
      between_ = false;
      begun_ = true;
      auto const state = ::inflate(&zip_, Z_NO_FLUSH);
      more_ = zip_.avail_out == 0 && state != Z_STREAM_END;  // zlib may hold output although it has taken all input
      if (state == Z_STREAM_END) {
        between_ = true;
      } else if (state != Z_OK && state != Z_BUF_ERROR) {
        throw format_error(path_, taken_ - zip_.avail_in,
                           zip_.msg == nullptr ? std::string("the compressed data are damaged")
                                               : text("the compressed data are damaged: ", zip_.msg));
      }
    }
    return room - zip_.avail_out;
  }

 private:
  std::string path_;
  byte_source from_;
  std::vector<unsigned char> in_;
  ::z_stream zip_{};
  std::uint64_t taken_ = 0;  // of the file
  bool between_ = true, begun_ = false, more_ = false;
};

}  // namespace detail

/// Decompresses .gz files with zlib. Link trireme::zlib, which exists where zlib does.
inline constexpr decompressor gunzip{
    ".gz", [](std::string const& path, byte_source from) {
      return std::unique_ptr<byte_stream>(std::make_unique<detail::gzip_stream>(path, std::move(from)));
    }};

}  // namespace trireme::formats
