// Trireme 0.1.0: trireme/formats/zstd.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 39bcd95dd889142832aac50c3ab9a5053fb9841c7f17028e17cad8cc1e57e43a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/byte_stream.hpp"

// ---- trireme/formats/zstd.hpp
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::formats {

namespace detail {

/// Functions of libzstd's stable interface.
struct zstd_library {
  struct input {
    void const* bytes;
    std::size_t size, used;
  };
  struct output {
    void* bytes;
    std::size_t size, used;
  };
  void* (*create)() = nullptr;
  std::size_t (*free)(void*) = nullptr;
  std::size_t (*decompress)(void*, output*, input*) = nullptr;
  unsigned (*is_error)(std::size_t) = nullptr;
  char const* (*name_of_error)(std::size_t) = nullptr;
  bool found = false;

  /// Loaded once, and kept.
  static zstd_library const& instance() {
    static zstd_library const all = [] {
      zstd_library out;
      void* const library = ::dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) return out;
      auto const find = [&](auto& to, char const* name) {
        to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(::dlsym(library, name));
        return to != nullptr;
      };
      out.found = find(out.create, "ZSTD_createDStream") && find(out.free, "ZSTD_freeDStream") &&
                  find(out.decompress, "ZSTD_decompressStream") && find(out.is_error, "ZSTD_isError") &&
                  find(out.name_of_error, "ZSTD_getErrorName");
      return out;
    }();
    return all;
  }
};

/// A file of Zstandard (RFC 8878): one frame, or several one after the other.
class zstd_stream final : public byte_stream {
 public:
  zstd_stream(std::string path, byte_source from) : path_(std::move(path)), from_(std::move(from)), in_(1 << 17) {
    if (!zstd_.found) {
      throw io_error(path_,
                     "cannot decompress it, because the library libzstd.so.1 is not here; install libzstd1, or "
                     "decompress the file");
    }
    stream_ = zstd_.create();
    if (stream_ == nullptr) throw io_error(path_, "zstd has no memory to decompress it");
  }
  ~zstd_stream() override { zstd_.free(stream_); }

  std::size_t read(std::span<unsigned char> to) override {
    zstd_library::output out{to.data(), to.size(), 0};
    while (out.used == 0) {
      if (have_.used == have_.size && !more_) {
        auto const got = from_(in_);
        if (got == 0) {
          if (between_) return 0;
          throw format_error(path_, taken_, "the compressed data end too early; the file is truncated");
        }
        taken_ += got;
        have_ = {in_.data(), got, 0};
      }
      auto const left = zstd_.decompress(stream_, &out, &have_);
      if (zstd_.is_error(left) != 0) {
        throw format_error(path_, taken_ - (have_.size - have_.used),
                           text("the compressed data are damaged: ", zstd_.name_of_error(left)));
      }
      between_ = left == 0;
      more_ = out.used == out.size && left != 0;  // zstd may hold output although it has taken all input
    }
    return out.used;
  }

 private:
  zstd_library const& zstd_ = zstd_library::instance();
  std::string path_;
  byte_source from_;
  std::vector<unsigned char> in_;
  zstd_library::input have_{nullptr, 0, 0};
  void* stream_ = nullptr;
  std::uint64_t taken_ = 0;  // of the file
  bool between_ = true, more_ = false;
};

}  // namespace detail

/// Decompresses .zst files with libzstd.so.1, which is loaded when the first one is opened: nothing is linked.
/// Errors   io_error if the library is not there.
inline constexpr decompressor unzstd{
    ".zst", [](std::string const& path, byte_source from) {
      return std::unique_ptr<byte_stream>(std::make_unique<detail::zstd_stream>(path, std::move(from)));
    }};

}  // namespace trireme::formats
