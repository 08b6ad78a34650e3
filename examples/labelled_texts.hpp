// Texts with labels for fine_tune: tables of tabs or commas, and JSON lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/csv.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"

/// One text, or two, what they are called, and where they stand.
struct labelled_text {
  std::string label, first, second;
  std::size_t record = 0;  ///< counted from 1: of JSON lines the line
};

/// The names of columns or keys; empty: the first usual one that is there.
struct labelled_columns {
  std::string label{}, first{}, second{};
};

namespace labelled {

using trireme::config_error;
using trireme::text;
using names = std::initializer_list<std::string_view>;

inline constexpr std::string_view usual_labels[] = {"label", "Quality"};
inline constexpr std::string_view usual_firsts[] = {"text", "sentence1", "sentence", "#1 String"};
inline constexpr std::string_view usual_seconds[] = {"sentence2", "#2 String"};

/// The name that is there: the wanted one, or the first usual one.
template <std::size_t N, class Has>
std::optional<std::string> chosen(std::string const& wanted, std::string_view const (&usual)[N], Has const& has) {
  if (!wanted.empty()) return has(wanted) ? std::optional(wanted) : std::nullopt;
  for (auto const each : usual) {
    if (has(each)) return std::string(each);
  }
  return std::nullopt;
}

/// The next line, without its end.
inline std::string_view next_line(std::string_view& from) {
  auto line = from.substr(0, from.find('\n'));
  from.remove_prefix(std::min(line.size() + 1, from.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// The fields of the next record: between tabs, in which quotes have no meaning, or of RFC 4180.
inline std::vector<std::string> next_record(std::string_view& from, bool tabs, std::string const& path,
                                            std::size_t record) {
  std::vector<std::string> out;
  if (tabs) {
    for (auto line = next_line(from);;) {
      auto const field = line.substr(0, line.find('\t'));
      out.emplace_back(field);
      if (field.size() == line.size()) return out;
      line.remove_prefix(field.size() + 1);
    }
  }
  trireme::formats::csv::record fields;
  auto const result = trireme::formats::csv::parse_record(from, true, ',', fields);
  if (result.what != trireme::formats::csv::parsed::outcome::complete) {
    throw config_error(
        text(path, ": record ", record, ": ",
             result.what == trireme::formats::csv::parsed::outcome::faulty ? result.fault : "a quote is not closed"));
  }
  from.remove_prefix(result.bytes);
  for (std::size_t i = 0; i < fields.size(); ++i) out.emplace_back(fields[i]);
  return out;
}

}  // namespace labelled

/// Reads the first samples of a file (most = 0: all). A name that ends in .jsonl has an object in each line; one that
/// ends in .csv is a table of commas, and any other a table of tabs, whose first record names the columns.
inline std::vector<labelled_text> read_labelled_texts(std::string const& path, std::int64_t most,
                                                      labelled_columns const& wanted) {
  using namespace labelled;
  auto const file = trireme::formats::read_text(path, std::uint64_t{1} << 32);
  std::string_view rest = file;
  std::vector<labelled_text> out;
  auto const missing = [&](std::size_t record, char const* what, std::string const& name, char const* option) {
    return config_error(text(path, ": record ", record, " has no ", what,
                             name.empty() ? text("; name it by ", option) : text(" \"", name, "\"")));
  };
  auto const full = [&] { return most != 0 && static_cast<std::int64_t>(out.size()) >= most; };
  std::size_t record = 1;
  if (path.ends_with(".jsonl")) {
    for (; !rest.empty() && !full(); ++record) {
      auto const line = next_line(rest);
      if (line.find_first_not_of(" \t") == line.npos) continue;
      auto const place = text(path, ": line ", record);
      auto const object = trireme::formats::json::parse(line, place);
      auto const has = [&](std::string_view name) { return object.find(name) != nullptr; };
      auto const label = chosen(wanted.label, usual_labels, has), first = chosen(wanted.first, usual_firsts, has),
                 second = chosen(wanted.second, usual_seconds, has);
      if (!label) throw missing(record, "label", wanted.label, "--label KEY");
      if (!first) throw missing(record, "text", wanted.first, "--text KEY");
      if (!second && !wanted.second.empty()) throw missing(record, "text", wanted.second, "--second KEY");
      auto const& named = object.at(*label);
      out.push_back({named.is_string() ? named.as_string() : text(named.as_int64()), object.at(*first).as_string(),
                     second ? object.at(*second).as_string() : "", record});
    }
    return out;
  }
  bool const tabs = !path.ends_with(".csv");
  if (rest.empty()) throw config_error(text(path, " is empty"));
  auto const titles = next_record(rest, tabs, path, record);
  auto const find = [&](std::string_view name) {
    return static_cast<std::size_t>(std::find(titles.begin(), titles.end(), name) - titles.begin());
  };
  auto const has = [&](std::string_view name) { return find(name) < titles.size(); };
  auto const label = chosen(wanted.label, usual_labels, has), first = chosen(wanted.first, usual_firsts, has),
             second = chosen(wanted.second, usual_seconds, has);
  if (!label) throw missing(record, "column of labels", wanted.label, "--label COLUMN");
  if (!first) throw missing(record, "column of texts", wanted.first, "--text COLUMN");
  if (!second && !wanted.second.empty()) throw missing(record, "column", wanted.second, "--second COLUMN");
  while (!rest.empty() && !full()) {
    auto fields = next_record(rest, tabs, path, ++record);
    if (fields.size() != titles.size()) {
      throw config_error(
          text(path, ": record ", record, " has ", fields.size(), " fields, but the first one has ", titles.size()));
    }
    out.push_back({fields[find(*label)], fields[find(*first)], second ? fields[find(*second)] : "", record});
  }
  return out;
}
