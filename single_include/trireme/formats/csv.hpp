// Trireme 0.1.0: trireme/formats/csv.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f7fca91b0ba4f04c11e2eaf7911acdf9a9a2060e252f7ece4863b2f4759b9b4a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/csv.hpp
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Comma-separated values as RFC 4180 describes them: records of fields, which a quoted field may span over lines.
namespace trireme::formats::csv {

/// The fields of one record, without their quotes.
class record {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return ends_.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t i) const {
    auto const begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(letters_).substr(begin, ends_[i] - begin);
  }
  void clear() noexcept {
    letters_.clear();
    ends_.clear();
  }
  void append(std::string_view letters) { letters_ += letters; }
  void end_field() { ends_.push_back(letters_.size()); }

 private:
  std::string letters_;
  std::vector<std::size_t> ends_;
};

/// The result of parse_record().
struct parsed {
  enum class outcome {
    complete,    ///< the record has `bytes` bytes, with the end of its line
    unfinished,  ///< the text ends within the record
    faulty,      ///< at byte `bytes` of the text is what `fault` says
  };
  outcome what = outcome::unfinished;
  std::size_t bytes = 0;
  std::size_t lines = 0;  ///< line feeds before that byte
  char const* fault = "";
};

/// Parses the record with which a text begins. Accesses only its arguments, so that it can be fuzzed.
///
/// Lines end in LF or CRLF, the last one perhaps in nothing. A quoted field may hold separators, line ends, and quotes
/// that are doubled. Blanks are part of a field. Refused: a quote within a field that does not begin with one, letters
/// after the quote that closes a field, and a carriage return without a line feed.
///
/// @param last  whether nothing follows the text.
[[nodiscard]] inline parsed parse_record(std::string_view text, bool last, char separator, record& to) {
  using enum parsed::outcome;
  to.clear();
  parsed out;
  std::size_t at = 0;
  auto const ended = [&](parsed::outcome what, std::size_t bytes, char const* fault = "") {
    out.what = what;
    out.bytes = bytes;
    out.fault = fault;
    return out;
  };
  for (;;) {
    if (at < text.size() && text[at] == '"') {
      auto const opened = at;
      auto const lines_before = out.lines;
      for (++at;;) {
        auto const quote = text.find('"', at);
        if (quote == std::string_view::npos) {
          if (!last) return ended(unfinished, 0);
          out.lines = lines_before;
          return ended(faulty, opened, "the quote that opens this field is never closed");
        }
        auto const piece = text.substr(at, quote - at);
        out.lines += static_cast<std::size_t>(std::count(piece.begin(), piece.end(), '\n'));
        to.append(piece);
        at = quote + 1;
        if (at == text.size() && !last) return ended(unfinished, 0);  // the quote may be a doubled one
        if (at == text.size() || text[at] != '"') break;
        to.append("\"");
        ++at;
      }
    } else {
      auto const begin = at;
      while (at < text.size() && text[at] != separator && text[at] != '\n' && text[at] != '\r' && text[at] != '"') ++at;
      if (at < text.size() && text[at] == '"') {
        return ended(faulty, at, "a quote stands within a field that does not begin with one");
      }
      to.append(text.substr(begin, at - begin));
    }
    to.end_field();
    if (at == text.size()) return last ? ended(complete, at) : ended(unfinished, 0);
    if (text[at] == separator) {
      ++at;
      continue;
    }
    auto const first = at;
    if (text[at] == '\r' && at + 1 == text.size() && !last) return ended(unfinished, 0);
    if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') ++at;
    if (text[at] == '\n') {
      ++out.lines;
      return ended(complete, at + 1);
    }
    return ended(faulty, first,
                 text[at] == '\r' ? "a carriage return stands without a line feed"
                                  : "something follows the quote that closes a field");
  }
}

}  // namespace trireme::formats::csv
