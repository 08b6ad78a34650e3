// Trireme 0.1.0: trireme/formats/picture.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bc25e1eba08afa393aed720e80bafe8cfecfae4c1afc34cc6d17781977df6c49
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/resized_picture.hpp"

// ---- trireme/formats/picture.hpp
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// After <cstdio>, whose FILE they use.
#include <jerror.h>
#include <jpeglib.h>

namespace trireme::formats {

namespace detail {

/// What the decoders of libpng and libjpeg work on. It belongs to the caller: they leave a function by longjmp, past
/// which no object with a destructor may live.
struct picture_work {
  unsigned char const* file;
  std::size_t bytes;
  std::size_t read = 0;
  picture* out;
  std::vector<unsigned char*>* rows;
  char reason[JMSG_LENGTH_MAX]{};
  int orientation = 1;

  void fails(std::string_view why) noexcept {
    auto const length = std::min(why.size(), sizeof reason - 1);
    std::copy_n(why.data(), length, reason);
    reason[length] = '\0';
  }
};

/// Makes room for rows of `channels` bytes a pixel. @returns false, with the reason, if the size is refused.
inline bool make_room(picture_work& work, std::size_t height, std::size_t width, std::size_t channels,
                      std::vector<unsigned char>& to) {
  try {
    if (height * width > most_pixels) {
      work.fails(text("it says that it is ", width, " x ", height, " pixels, but at most 2^28 are read"));
      return false;
    }
    to.resize(height * width * channels);
    work.rows->resize(height);
  } catch (std::bad_alloc const&) {
    work.fails("there is no memory for it");
    return false;
  }
  for (std::size_t y = 0; y < height; ++y) (*work.rows)[y] = to.data() + y * width * channels;
  work.out->height = static_cast<int>(height);
  work.out->width = static_cast<int>(width);
  return true;
}

/// The orientation that a camera has written: 1 to 8; 1 where there is none.
/// @param tiff, size  its Exif record, which is a TIFF file.
[[nodiscard]] inline int orientation_in(unsigned char const* tiff, std::size_t size) {
  if (size < 8) return 1;
  bool const little = tiff[0] == 'I';
  auto const two = [&](std::size_t at) {
    return static_cast<std::size_t>(little ? tiff[at] | tiff[at + 1] << 8 : tiff[at] << 8 | tiff[at + 1]);
  };
  auto const four = [&](std::size_t at) { return little ? two(at) | two(at + 2) << 16 : two(at) << 16 | two(at + 2); };
  auto const first = four(4);
  if (first > size || size - first < 2) return 1;
  for (std::size_t i = 0, entries = two(first); i < entries; ++i) {
    auto const at = first + 2 + i * 12;
    if (at > size || size - at < 12) return 1;
    if (two(at) != 0x0112) continue;
    auto const type = two(at + 2);  // 3 and 4: of two and four bytes
    auto const value = type == 3 ? two(at + 8) : type == 4 ? four(at + 8) : 0;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

inline void read_png_bytes(::png_structp png, ::png_bytep to, std::size_t bytes) {
  auto& work = *static_cast<picture_work*>(::png_get_io_ptr(png));
  if (bytes > work.bytes - work.read) ::png_error(png, "the file ends too early");
  std::memcpy(to, work.file + work.read, bytes);
  work.read += bytes;
}
[[noreturn]] inline void png_failed(::png_structp png, ::png_const_charp why) {
  auto& work = *static_cast<picture_work*>(::png_get_error_ptr(png));
  work.fails(why);
  ::png_longjmp(png, 1);
}
inline void png_warned(::png_structp, ::png_const_charp) {}

/// @returns whether there is a picture; else work.reason says why not.
inline bool decode_png(picture_work& work) {
  // volatile: they are changed between setjmp and longjmp.
  ::png_structp volatile png = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, &work, png_failed, png_warned);
  ::png_infop volatile info = png == nullptr ? nullptr : ::png_create_info_struct(png);
  bool volatile done = false;
  if (info == nullptr) {
    work.fails("libpng has no memory to read it");
  } else if (setjmp(png_jmpbuf(png)) == 0) {
    ::png_set_read_fn(png, &work, read_png_bytes);
    ::png_read_info(png, info);
    auto const kind = ::png_get_color_type(png, info);
    ::png_set_expand(png);    // palettes and fewer than 8 bits
    ::png_set_strip_16(png);  // the higher byte
    ::png_set_strip_alpha(png);
    if ((kind & PNG_COLOR_MASK_COLOR) == 0) ::png_set_gray_to_rgb(png);
    ::png_set_interlace_handling(png);
    ::png_read_update_info(png, info);
    if (make_room(work, ::png_get_image_height(png, info), ::png_get_image_width(png, info), 3, work.out->colours)) {
      ::png_read_image(png, work.rows->data());
      ::png_read_end(png, info);
      ::png_uint_32 bytes = 0;
      ::png_bytep exif = nullptr;
      if (::png_get_eXIf_1(png, info, &bytes, &exif) != 0) work.orientation = orientation_in(exif, bytes);
      done = true;
    }
  }
  auto owned = png;
  auto owned_info = info;
  ::png_destroy_read_struct(&owned, &owned_info, nullptr);
  return done;
}

struct jpeg_errors {
  ::jpeg_error_mgr base{};  // first, so that libjpeg's pointer to it is one to this
  std::jmp_buf back{};
  picture_work* work = nullptr;
};
[[noreturn]] inline void jpeg_failed(::j_common_ptr of) {
  auto& errors = *reinterpret_cast<jpeg_errors*>(of->err);
  errors.base.format_message(of, errors.work->reason);
  std::longjmp(errors.back, 1);
}
inline void jpeg_said(::j_common_ptr) {}
/// libjpeg fills what is missing with grey, and calls it a warning.
inline void jpeg_warned(::j_common_ptr of, int level) {
  if (level < 0 && (of->err->msg_code == JWRN_JPEG_EOF || of->err->msg_code == JWRN_HIT_MARKER)) jpeg_failed(of);
}

/// A progressive file may have any number of scans, each of which costs a pass over the whole picture.
struct jpeg_progress {
  ::jpeg_progress_mgr base{};
  static void look(::j_common_ptr of) {
    if (reinterpret_cast<::j_decompress_ptr>(of)->input_scan_number <= 500) return;
    reinterpret_cast<jpeg_errors*>(of->err)->work->fails("it has more than 500 scans");
    std::longjmp(reinterpret_cast<jpeg_errors*>(of->err)->back, 1);
  }
};

/// As decode_png(). Four colours (cyan, magenta, yellow, black) are left in work.out->colours, 4 bytes a pixel.
inline bool decode_jpeg(picture_work& work, bool& four_colours) {
  ::jpeg_decompress_struct from{};
  jpeg_errors errors;
  jpeg_progress progress;
  from.err = ::jpeg_std_error(&errors.base);
  errors.base.error_exit = jpeg_failed;
  errors.base.output_message = jpeg_said;
  errors.base.emit_message = jpeg_warned;
  errors.work = &work;
  bool volatile done = false;
  if (setjmp(errors.back) == 0) {
    ::jpeg_create_decompress(&from);
    progress.base.progress_monitor = jpeg_progress::look;
    from.progress = &progress.base;
    ::jpeg_mem_src(&from, work.file, work.bytes);
    ::jpeg_save_markers(&from, JPEG_APP0 + 1, 0xFFFF);
    ::jpeg_read_header(&from, TRUE);
    for (auto const* each = from.marker_list; each != nullptr; each = each->next) {
      constexpr unsigned head = 6;  // "Exif", two zeros
      if (each->data_length >= head && std::memcmp(each->data, "Exif\0\0", head) == 0) {
        work.orientation = orientation_in(each->data + head, each->data_length - head);
        break;
      }
    }
    four_colours = from.jpeg_color_space == JCS_CMYK || from.jpeg_color_space == JCS_YCCK;
    from.out_color_space = four_colours ? JCS_CMYK : JCS_RGB;
    if (make_room(work, from.image_height, from.image_width, four_colours ? 4 : 3, work.out->colours)) {
      ::jpeg_start_decompress(&from);
      while (from.output_scanline < from.output_height) {
        ::jpeg_read_scanlines(&from, work.rows->data() + from.output_scanline, 1);
      }
      ::jpeg_finish_decompress(&from);
      done = true;
    }
  }
  ::jpeg_destroy_decompress(&from);
  return done;
}

/// Printed colours, stored inverted as Adobe's programs do, as red, green and blue.
inline void make_rgb(picture& of) {
  auto const pixels = of.colours.size() / 4;
  for (std::size_t i = 0; i < pixels; ++i) {
    auto const black = std::uint32_t{of.colours[4 * i + 3]};
    for (std::size_t colour = 0; colour < 3; ++colour) {
      auto const ink = 255 - std::uint32_t{of.colours[4 * i + colour]};
      auto const product = ink * black + 128;
      of.colours[3 * i + colour] = static_cast<unsigned char>(black - ((product >> 8) + product) / 256);
    }
  }
  of.colours.resize(pixels * 3);
}

/// Turned as the orientation says: 1 as it is, 2 to 8 mirrored or rotated by Exif's table.
[[nodiscard]] inline picture turned(picture of, int orientation) {
  if (orientation == 1) return of;
  bool const transposed = orientation >= 5;
  bool const from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  bool const from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  picture out{transposed ? of.width : of.height, transposed ? of.height : of.width, {}};
  out.colours.resize(of.colours.size());
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      auto from_y = transposed ? x : y;
      auto from_x = transposed ? y : x;
      if (from_below) from_y = of.height - 1 - from_y;
      if (from_right) from_x = of.width - 1 - from_x;
      std::copy_n(of.at(from_y, from_x), 3, out.at(y, x));
    }
  }
  return out;
}

}  // namespace detail

/// Decodes a PNG or JPEG file. Link trireme::pictures, which exists where libpng and libjpeg do.
///
/// Numerics the bytes of Pillow's convert("RGB") after ImageOps.exif_transpose, but of grey in 16 bits: alpha is left
///          out, grey is three equal colours, a palette its colours, CMYK without a colour profile; turned as Exif's
///          orientation says. Of 16 bits the higher 8.
/// Bytes    up to 4 for each pixel.       Threads  any.
/// @returns what is wrong, or nothing: a file that is neither, one that is damaged or truncated, or, before memory for
///          them is allocated, more than 2^28 pixels.
[[nodiscard]] inline std::string decode_picture(std::span<std::byte const> file, picture& out) {
  constexpr unsigned char png_begins[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr unsigned char jpeg_begins[] = {0xFF, 0xD8, 0xFF};
  auto const begins = [&](std::span<unsigned char const> with) {
    return file.size() >= with.size() && std::memcmp(file.data(), with.data(), with.size()) == 0;
  };
  bool const png = begins(png_begins);
  if (!png && !begins(jpeg_begins)) return "this is neither a PNG nor a JPEG file by its first bytes";
  std::vector<unsigned char*> rows;
  detail::picture_work work{reinterpret_cast<unsigned char const*>(file.data()), file.size(), 0, &out, &rows};
  bool four_colours = false;
  if (!(png ? detail::decode_png(work) : detail::decode_jpeg(work, four_colours)))
    return text("this ", png ? "PNG" : "JPEG", " file cannot be decoded: ", std::string_view(work.reason));
  if (four_colours) detail::make_rgb(out);
  out = detail::turned(std::move(out), work.orientation);
  return {};
}

/// The same, of a file that is named. Throws format_error(name, 0, reason).
[[nodiscard]] inline picture read_picture(std::span<std::byte const> file, std::string const& name) {
  picture out;
  if (auto const wrong = decode_picture(file, out); !wrong.empty()) throw format_error(name, 0, wrong);
  return out;
}

}  // namespace trireme::formats
