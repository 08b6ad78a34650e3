// Tables. Besides not crashing: records cover the text without a gap, a text that is cut anywhere gives the same record
// or asks for more, and fields that are quoted read back as they were.
// test-mutations: 20000
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "trireme/formats/csv.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace csv = trireme::formats::csv;
  using enum csv::parsed::outcome;
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  csv::record fields, again;
  for (char const separator : {',', ';'}) {
    for (std::size_t at = 0; at < size;) {
      auto const left = text.substr(at);
      auto const result = csv::parse_record(left, true, separator, fields);
      if (result.what == unfinished) std::abort();
      auto const before = left.substr(0, result.bytes);
      if (result.bytes > left.size() ||
          result.lines > static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'))) {
        std::abort();
      }
      if (result.what == faulty) break;
      if (result.bytes == 0 || fields.size() == 0) std::abort();
      for (auto const length : {result.bytes / 2, result.bytes - 1, result.bytes}) {
        auto const part = csv::parse_record(left.substr(0, length), false, separator, again);
        bool const ended = left[result.bytes - 1] == '\n';
        if (part.what != (length == result.bytes && ended ? complete : unfinished)) std::abort();
      }
      std::string quoted;
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (i > 0) quoted += separator;
        quoted += '"';
        for (auto const letter : fields[i]) quoted.append(letter == '"' ? 2 : 1, letter);
        quoted += '"';
      }
      quoted += "\r\n";
      auto const second = csv::parse_record(quoted, false, separator, again);
      if (second.what != complete || second.bytes != quoted.size() || again.size() != fields.size()) std::abort();
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (again[i] != fields[i]) std::abort();
      }
      at += result.bytes;
    }
  }
  return 0;
}
