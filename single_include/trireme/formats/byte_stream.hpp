// Trireme 0.1.0: trireme/formats/byte_stream.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 068839034ff7f06c17b4f47c1819edafa3897cd5d0b442841f33d54bdc910205
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/byte_stream.hpp
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::formats {

/// The content of a compressed file, from its beginning to its end.
/// Threads  one caller.
class byte_stream {
 public:
  byte_stream() = default;
  byte_stream(byte_stream const&) = delete;
  byte_stream& operator=(byte_stream const&) = delete;
  virtual ~byte_stream() = default;
  /// Writes the next bytes to the beginning of `to`, which is not empty.
  /// @returns how many; 0 at the end.
  virtual std::size_t read(std::span<unsigned char> to) = 0;
};

/// Reads a file's bytes, as byte_stream::read.
using byte_source = std::function<std::size_t(std::span<unsigned char>)>;

/// A kind of compressed files: formats::gunzip, formats::unzstd.
///
/// Errors   the stream's read() throws format_error, with the file and the byte, for data that are damaged or end too
///          early; what `from` throws.
struct decompressor {
  std::string_view ending;  ///< of the names of its files
  std::unique_ptr<byte_stream> (*open)(std::string const& path, byte_source from);
};

}  // namespace trireme::formats
