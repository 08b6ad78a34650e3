// Trireme 0.1.0: trireme/data/csv.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e69d51902bc440a03f651dae71209cf50ca80dc80d9e252fbc8db0a35651c4f1
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/csv.hpp"

// ---- trireme/data/csv.hpp
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace trireme::data {

class csv_samples;

/// How one column of a table becomes numbers: categories, or the mean and deviation by which it is standardised.
struct csv_column {
  std::string name;
  double mean = 0;
  double deviation = 1;
  std::vector<std::string> categories{};  ///< category i becomes number i; empty: the column is standardised
  TRIREME_EXACT_BEGIN
  friend bool operator==(csv_column const&, csv_column const&) = default;
  TRIREME_EXACT_END
};

/// How the columns of a table become numbers. What one table gave is needed for another one of the same model:
/// checkpoints keep it (see file()); give it to `csv::encoding`.
///
///     {"columns": [{"name": "area", "mean": 81.5, "deviation": 30.2}, {"name": "town", "categories": ["Bonn",
///     "Ulm"]}]}
struct csv_encoding {
  std::vector<csv_column> columns;
  /// The column of that name, or nullptr.
  [[nodiscard]] csv_column const* find(std::string_view name) const {
    auto const found =
        std::find_if(columns.begin(), columns.end(), [&](auto const& each) { return each.name == name; });
    return found == columns.end() ? nullptr : &*found;
  }
  /// Writes the encoding as JSON, in place of a file of that name. Doubles read back as they were.
  /// Errors   io_error; format_error if a name or a category is not UTF-8, which JSON cannot hold, and for what read()
  ///          refuses: two columns of one name, numbers that are not finite, a deviation that is not above 0, more than
  ///          1 GiB. The file is then as it was before.
  void save(std::string const& path) const;
  /// The same as a file "csv_encoding.json" of the model. fit() hands it to the trainer, whose checkpoints keep it.
  /// Errors   format_error as save().
  [[nodiscard]] formats::model_file file() const;
  /// The encoding among the files of a model, as on the first rank after load():
  /// `csv_encoding::in(trainer.model_files())`.
  /// Errors   config_error if there is none.
  [[nodiscard]] static csv_encoding in(std::vector<formats::model_file> const& files);
  /// Errors   io_error, also for a file of more than 1 GiB; format_error, with the byte, for JSON that is not an
  ///          encoding.
  [[nodiscard]] static csv_encoding read(std::string const& path);
  friend bool operator==(csv_encoding const&, csv_encoding const&) = default;

 private:
  static constexpr char const* file_name = "csv_encoding.json";
  static csv_encoding from(formats::json::value const& all);
  [[nodiscard]] std::string letters(std::string const& path) const;
};

/// Samples in tables of comma-separated values (RFC 4180): each record is a sample.
///
///     data::csv{.files = "houses_*.csv", .features = {"rooms", "area", "town"}, .targets = {"price"},
///               .standardised = {"area", "price"}, .categories = {"town"}}.open()
///
/// The first record of each file names the columns; without `.header` their names are "0", "1", ... Several files
/// follow each other. open() reads the tables once: it checks every chosen field, computes the encoding unless one is
/// given, and keeps where each record begins. Records are then read by position, so tables may be larger than memory.
///
/// All files have the same columns in the same order. A record has at most 16 MiB.
///
/// Errors   open() throws config_error if nothing matches, for a column that does not exist, for settings that exclude
///          each other, and for more than 2^24 categories as f32. It throws format_error with the file and the byte:
///          with line and column, for a missing field, one that is not a finite number that a double can hold, and a
///          category that the given encoding does not have; with the line, for a record with another number of fields,
///          an empty line, a quote that is not closed, and what else RFC 4180 does not allow.
struct csv {
  file_list files{};
  std::vector<std::string> features{};      ///< names of columns, in the order of the input
  std::vector<std::string> targets{};       ///< likewise
  std::vector<std::string> standardised{};  ///< those of them that become (x - mean) / deviation
  std::vector<std::string> categories{};    ///< those of them whose fields are names; they become 0, 1, ...
  dtype features_as = dtype::f32;           ///< or i32
  dtype targets_as = dtype::f32;            ///< or i32, for labels
  std::vector<std::string> missing{"", "NA", "NaN", "nan"};  ///< fields that hold no value
  /// What a missing one becomes, as the model sees it; else it is an error. It is the same for all features; in a
  /// column of categories, 0 is also the first category, so choose another number there.
  std::optional<double> features_missing{};
  std::optional<double> targets_missing{};  ///< likewise; losses ignore the label -1
  std::optional<csv_encoding> encoding{};   ///< of another table; else it is computed
  char separator = ',';
  bool header = true;
  [[nodiscard]] csv_samples open() const;
  TRIREME_EXACT_BEGIN
  friend bool operator==(csv const&, csv const&) = default;
  TRIREME_EXACT_END
};

/// "trireme::data::csv{.files = "a.csv", .features = {"x"}, .targets = {"y"}}"
[[nodiscard]] inline std::string to_string(csv const& from) {
  auto const escaped = [](std::string_view letters, char quote) {
    std::string out;
    for (auto const letter : letters) {
      bool const escape = letter == quote || letter == '\\' || letter == '\n' || letter == '\r' || letter == '\t';
      if (escape) out += '\\';
      out += letter == '\n' ? 'n' : letter == '\r' ? 'r' : letter == '\t' ? 't' : letter;
    }
    return text(quote, out, quote);
  };
  auto const list = [&](std::vector<std::string> const& names) {
    std::string out;
    for (auto const& each : names) out += text(out.empty() ? "" : ", ", escaped(each, '"'));
    return text("{", out, "}");
  };
  auto const type = [](dtype of) { return of == dtype::i32 ? "trireme::dtype::i32" : "trireme::dtype::f32"; };
  csv const usual;
  auto out = text("trireme::data::csv{.files = ", to_string(from.files), ", .features = ", list(from.features),
                  ", .targets = ", list(from.targets));
  if (!from.standardised.empty()) out += text(", .standardised = ", list(from.standardised));
  if (!from.categories.empty()) out += text(", .categories = ", list(from.categories));
  if (from.features_as != usual.features_as) out += text(", .features_as = ", type(from.features_as));
  if (from.targets_as != usual.targets_as) out += text(", .targets_as = ", type(from.targets_as));
  if (from.missing != usual.missing) out += text(", .missing = ", list(from.missing));
  if (from.features_missing) out += text(", .features_missing = ", *from.features_missing);
  if (from.targets_missing) out += text(", .targets_missing = ", *from.targets_missing);
  if (from.encoding) out += text(", .encoding = {", how_many(from.encoding->columns.size(), "column"), "}");
  if (from.separator != usual.separator) {
    out += text(", .separator = ", escaped(std::string_view(&from.separator, 1), '\''));
  }
  if (!from.header) out += ", .header = false";
  return out + "}";
}

namespace detail {

inline constexpr char const* csv_name = "trireme::data::csv";

/// A value for each category of an encoding: more than the usual limit. read() takes at most 1 GiB.
inline constexpr formats::json::limits csv_encoding_limits{.values = std::size_t{1} << 28};

/// Throws config_error if numbers of this type do not tell so many categories of a column apart.
inline void expect_distinct(std::string const& column, std::size_t categories, dtype type) {
  if (type == dtype::f32 && categories > std::size_t{1} << std::numeric_limits<float>::digits) {
    throw config_error(text(csv_name, ": column \"", column,
                            "\" has more than 2^24 categories, which f32 cannot tell apart; make it i32"));
  }
}

/// The number that a field spells, blanks around it aside; none for "inf", and for "1e400" and "1e-400", which a
/// double can hold only as infinity and as 0.
[[nodiscard]] inline std::optional<double> number_of(std::string_view field) {
  auto const blank = [](char letter) { return letter == ' ' || letter == '\t'; };
  while (!field.empty() && blank(field.front())) field.remove_prefix(1);
  while (!field.empty() && blank(field.back())) field.remove_suffix(1);
  if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
  double out = 0;
  auto const* const end = field.data() + field.size();
  auto const [at, problem] = std::from_chars(field.data(), end, out);
  if (problem != std::errc{} || at != end || !std::isfinite(out)) return std::nullopt;
  return out;
}

/// How the fields of one column become numbers.
struct csv_conversion {
  enum class kind { number, standardised, category };
  csv_column as;
  kind what = kind::number;
  dtype type = dtype::f32;
  std::optional<double> missing;
  std::size_t index = 0;                                 ///< of the column in a record
  bool known = true;                                     ///< otherwise the encoding is being computed
  std::map<std::string, std::int32_t, std::less<>> ids;  ///< of the categories
  std::int64_t count = 0;                                ///< of the numbers so far, with their mean and sum of squares
  double squares = 0;

  /// Takes a field into account that is not missing, while the encoding is being computed.
  void learn(std::string_view field, double number) {
    if (what == kind::category) {
      if (ids.find(field) == ids.end()) ids.emplace(field, 0);
      return;
    }
    ++count;  // Welford's sums
    auto const off = number - as.mean;
    as.mean += off / static_cast<double>(count);
    squares += off * (number - as.mean);
  }
  /// Ends learn(). Categories are sorted by their bytes, so that their numbers do not depend on the order of records.
  void finish() {
    if (what == kind::category) {
      for (auto& [name, id] : ids) {
        id = static_cast<std::int32_t>(as.categories.size());
        as.categories.push_back(name);
      }
    } else {
      as.deviation = std::sqrt(squares / static_cast<double>(count));
      if (!(as.deviation > 0)) as.deviation = 1;  // all numbers are equal: they become 0
    }
    known = true;
  }
};

/// A table as it was opened: where its records begin.
struct csv_table {
  std::string path;
  std::shared_ptr<stable_file const> file;
  std::int64_t first = 0;             ///< the number of its first sample
  std::vector<std::uint64_t> begins;  ///< of its records, and the file's size
};

}  // namespace detail

/// The samples of csv.
///
/// Shapes   inputs (features), targets (targets); the label of a single target of i32 is a scalar.
/// Numerics numbers are computed in double and rounded once. The deviation is that of all records (a division by their
///          number); a column whose numbers are all equal is divided by 1. Categories are numbered in the order of
///          their bytes.
/// Bytes    8 for each record, and the categories.
/// Threads  read() is const: any number of callers. Copies share files and offsets.
/// Errors   read() throws io_error if a file was truncated, format_error if its content has changed and does not fit.
/// @models trireme::dataset
class csv_samples {
 public:
  explicit csv_samples(csv from) : from_(std::move(from)) {
    if (from_.features.empty() || from_.targets.empty()) {
      throw refusal(text(".", from_.features.empty() ? "features" : "targets", " names no column; give at least one"));
    }
    if (from_.separator == '"' || from_.separator == '\n' || from_.separator == '\r') {
      throw refusal(".separator must not be a quote or the end of a line");
    }
    for (auto const& name : from_.features) plan(name, from_.features_as, from_.features_missing, "features");
    for (auto const& name : from_.targets) plan(name, from_.targets_as, from_.targets_missing, "targets");
    for (auto const* const list : {&from_.standardised, &from_.categories}) {
      for (auto const& name : *list) expect_chosen(name, list == &from_.categories ? ".categories" : ".standardised");
    }
    auto tables = std::make_shared<std::vector<detail::csv_table>>();
    for (auto const& name : from_.files.names(detail::csv_name, {".csv"})) {
      tables->push_back({name, std::make_shared<detail::stable_file const>(name, detail::csv_name), size_, {}});
      scan(tables->back());
    }
    tables_ = std::move(tables);
    if (size_ == 0) {
      throw refusal(
          text(tables_->front().path, " has no record", from_.header ? " besides the names of its columns" : ""));
    }
    for (auto& each : columns_) {
      if (each.known) continue;
      if (each.what == detail::csv_conversion::kind::standardised && each.count == 0) {
        throw refusal(text("column \"", each.as.name, "\" has no number, so that it cannot be standardised"));
      }
      if (each.what == detail::csv_conversion::kind::category && each.ids.empty()) {
        throw refusal(
            text("column \"", each.as.name, "\" has no category, because all of its fields are missing; leave it out"));
      }
      detail::expect_distinct(each.as.name, each.ids.size(), each.type);
      each.finish();
      if (!std::isfinite(each.as.mean) || !std::isfinite(each.as.deviation)) {
        throw refusal(text("the numbers of column \"", each.as.name, "\" are too large to be standardised"));
      }
    }
  }

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return from_.features_as; }
  [[nodiscard]] dtype target_type() const noexcept { return from_.targets_as; }
  [[nodiscard]] shape input_shape() const { return {static_cast<std::int64_t>(from_.features.size())}; }
  [[nodiscard]] shape target_shape() const {
    if (from_.targets.size() == 1 && from_.targets_as == dtype::i32) return {};
    return {static_cast<std::int64_t>(from_.targets.size())};
  }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<unsigned char*>(inputs);
    auto* out = static_cast<unsigned char*>(targets);
    std::string letters;
    formats::csv::record record;
    for (auto const id : ids) {
      auto const next = std::upper_bound(tables_->begin(), tables_->end(), id,
                                         [](std::int64_t row, auto const& each) { return row < each.first; });
      auto const& table = *(next - 1);
      auto const row = static_cast<std::size_t>(id - table.first);
      auto const begin = table.begins[row];
      letters.resize(table.begins[row + 1] - begin);
      table.file->read(static_cast<std::int64_t>(begin),
                       {reinterpret_cast<unsigned char*>(letters.data()), letters.size()});
      auto const result = formats::csv::parse_record(letters, true, from_.separator, record);
      if (result.what != formats::csv::parsed::outcome::complete || result.bytes != letters.size() ||
          record.size() != width_) {
        throw format_error(table.path, begin,
                           text(detail::csv_name, ": sample ", id, " has changed since the file was ",
                                "opened; do not write to a file that is in use"));
      }
      for (auto const& column : columns_) {
        auto const number = convert(column, record[column.index], [&](std::string const& reason) {
          return fault(table, begin, lines_before(table, begin), id, column, reason);
        });
        auto& to = &column < columns_.data() + from_.features.size() ? in : out;
        if (column.type == dtype::f32) {
          put(static_cast<float>(number), to);
        } else {
          put(static_cast<std::int32_t>(number), to);
        }
      }
    }
  }

  /// How columns become numbers: as given, or as computed from these tables. To turn a prediction of a standardised
  /// target back: prediction * deviation + mean.
  [[nodiscard]] csv_encoding encoding() const {
    csv_encoding out;
    for (auto const& each : columns_) {
      if (each.what != detail::csv_conversion::kind::number && out.find(each.as.name) == nullptr) {
        out.columns.push_back(each.as);
      }
    }
    return out;
  }
  /// The encoding, if a column has one: fit() hands it to the trainer, whose checkpoints keep it.
  [[nodiscard]] std::vector<formats::model_file> model_files() const {
    auto const all = encoding();
    if (all.columns.empty()) return {};
    return {all.file()};
  }

 private:
  using kind = detail::csv_conversion::kind;
  static constexpr std::size_t block_bytes = std::size_t{1} << 20, most_record_bytes = std::size_t{1} << 24;

  static config_error refusal(std::string const& reason) { return config_error(text(detail::csv_name, ": ", reason)); }
  static bool holds(std::vector<std::string> const& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  }
  void expect_chosen(std::string const& name, char const* list) const {
    if (!holds(from_.features, name) && !holds(from_.targets, name)) {
      throw refusal(text(list, " names \"", name, "\", which is neither a feature nor a target"));
    }
  }
  void plan(std::string const& name, dtype type, std::optional<double> missing, char const* what) {
    detail::csv_conversion out;
    out.as.name = name;
    out.type = type;
    out.missing = missing;
    if (type != dtype::f32 && type != dtype::i32) {
      throw refusal(text(".", what, "_as = ", name_of(type), ", but numbers become f32 or i32"));
    }
    if (missing && !fits(*missing, type)) {
      throw refusal(text(".", what, "_missing = ", *missing, " is not a number of type ", name_of(type)));
    }
    bool const standardised = holds(from_.standardised, name), category = holds(from_.categories, name);
    if (standardised && (category || type == dtype::i32)) {
      throw refusal(text("column \"", name, "\" is standardised, so it cannot be ",
                         category ? "one of .categories too" : text("among .", what, ", which are i32")));
    }
    if (standardised || category) {
      out.what = standardised ? kind::standardised : kind::category;
      out.known = from_.encoding.has_value();
      if (out.known) take_encoding(out);
    }
    columns_.push_back(std::move(out));
  }
  void take_encoding(detail::csv_conversion& to) const {
    auto const* const given = from_.encoding->find(to.as.name);
    if (given == nullptr) throw refusal(text(".encoding has no column \"", to.as.name, "\""));
    bool const category = to.what == kind::category;
    if (category == given->categories.empty()) {
      throw refusal(text(".encoding has ", category ? "no " : "", "categories for column \"", to.as.name, "\""));
    }
    if (!category && !(given->deviation > 0 && std::isfinite(given->deviation) && std::isfinite(given->mean))) {
      throw refusal(text(".encoding gives column \"", to.as.name, "\" the mean ", given->mean, " and the deviation ",
                         given->deviation, ", but they must be finite, and the deviation above 0"));
    }
    detail::expect_distinct(to.as.name, given->categories.size(), to.type);
    to.as = *given;
    for (auto const& each : given->categories) {
      if (!to.ids.emplace(each, static_cast<std::int32_t>(to.ids.size())).second) {
        throw refusal(text(".encoding names the category \"", each, "\" of column \"", to.as.name, "\" twice"));
      }
    }
  }

  static bool fits(double number, dtype type) {
    if (type == dtype::f32) return std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max());
    return number >= std::numeric_limits<std::int32_t>::min() && number <= std::numeric_limits<std::int32_t>::max() &&
           exactly_equal(number, std::floor(number));
  }
  /// The number that a field becomes; of an encoding that is not known yet, only the number that it spells.
  template <class Fail>
  [[nodiscard]] double convert(detail::csv_conversion const& column, std::string_view field, Fail const& fail) const {
    if (holds(from_.missing, field)) {
      if (column.missing) return *column.missing;
      throw fail("has no value; fill it in, or say by .features_missing or .targets_missing what it becomes");
    }
    auto const shown = [&] { return text("\"", field.substr(0, 40), "\" "); };
    if (column.what == kind::category) {
      if (!column.known) return 0;
      auto const found = column.ids.find(field);
      if (found == column.ids.end()) throw fail(shown() + "is not among the categories of the encoding");
      return found->second;
    }
    auto const number = detail::number_of(field);
    if (!number) throw fail(shown() + "is not a finite number that a double can hold");
    if (column.what == kind::standardised && !column.known) return *number;
    auto const out = column.what == kind::standardised ? (*number - column.as.mean) / column.as.deviation : *number;
    if (!fits(out, column.type)) throw fail(text(shown(), "is not a number of type ", name_of(column.type)));
    return out;
  }
  template <class T>
  static void put(T number, unsigned char*& to) {
    std::memcpy(to, &number, sizeof number);
    to += sizeof number;
  }

  static format_error fault(detail::csv_table const& table, std::uint64_t at, std::uint64_t lines, std::int64_t sample,
                            detail::csv_conversion const& column, std::string const& reason) {
    return {table.path, at,
            text(detail::csv_name, ": line ", lines + 1, ", sample ", sample, ", column \"", column.as.name,
                 "\": ", reason)};
  }
  static std::uint64_t lines_before(detail::csv_table const& table, std::uint64_t end) {
    std::vector<unsigned char> block(block_bytes);
    std::uint64_t out = 0;
    for (std::uint64_t at = 0; at < end;) {
      auto const piece =
          std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, end - at)));
      table.file->read(static_cast<std::int64_t>(at), piece);
      out += static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'));
      at += piece.size();
    }
    return out;
  }

  /// Reads a table from its beginning to its end.
  void scan(detail::csv_table& table) {
    auto const size = static_cast<std::uint64_t>(table.file->size());
    std::string letters;
    std::size_t at = 0;       // of the next record in letters
    std::uint64_t begin = 0;  // of letters in the file
    std::uint64_t lines = 0;
    auto const fail = [&](std::size_t where, std::uint64_t line, std::string const& reason) {
      return format_error(table.path, begin + where, text(detail::csv_name, ": line ", line + 1, ": ", reason));
    };
    auto const more = [&] {
      letters.erase(0, at);
      begin += at;
      at = 0;
      auto const old = letters.size();
      letters.resize(old + static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, size - begin - old)));
      table.file->read(static_cast<std::int64_t>(begin + old),
                       {reinterpret_cast<unsigned char*>(letters.data()) + old, letters.size() - old});
    };
    more();
    if (letters.starts_with("\xff\xfe") || letters.starts_with("\xfe\xff")) {
      throw fail(0, 0, "the file is UTF-16; save it as UTF-8");
    }
    if (letters.starts_with("\xef\xbb\xbf")) at = 3;  // the mark that Excel writes before UTF-8
    formats::csv::record record;
    bool named = !from_.header;
    while (begin + at < size || (!named && begin + at == size)) {
      bool const last = begin + letters.size() == size;
      auto const result =
          formats::csv::parse_record(std::string_view(letters).substr(at), last, from_.separator, record);
      if (result.what == formats::csv::parsed::outcome::unfinished) {
        if (letters.size() - at >= most_record_bytes) {
          throw fail(at, lines, text("the record has more than ", most_record_bytes, " bytes; is a quote not closed?"));
        }
        more();
        continue;
      }
      if (result.what == formats::csv::parsed::outcome::faulty) {
        throw fail(at + result.bytes, lines + result.lines, result.fault);
      }
      auto const where = begin + at;
      if (!named) {
        take_names(table, record, where);
        named = true;
      } else {
        if (!from_.header && width_ == 0) take_numbers(table, record.size(), where);
        if (record.size() != width_) {
          throw fail(at, lines,
                     record.size() == 1 && record[0].empty()
                         ? std::string("the line is empty; remove it")
                         : text("the record has ", how_many(record.size(), "field"), ", but ",
                                from_.header ? "there are " : "the first one has ", how_many(width_, "column")));
        }
        take(table, record, where, lines);
      }
      at += result.bytes;
      lines += result.lines;
    }
    table.begins.push_back(size);
    table.begins.shrink_to_fit();
  }

  void take(detail::csv_table& table, formats::csv::record const& record, std::uint64_t where, std::uint64_t lines) {
    for (auto& column : columns_) {
      auto const field = record[column.index];
      auto const number = convert(
          column, field, [&](std::string const& reason) { return fault(table, where, lines, size_, column, reason); });
      if (!column.known && !holds(from_.missing, field)) column.learn(field, number);
    }
    table.begins.push_back(where);
    ++size_;
  }

  void take_names(detail::csv_table const& table, formats::csv::record const& record, std::uint64_t where) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < record.size(); ++i) names.emplace_back(record[i]);
    if (names_.empty()) {
      width_ = names.size();
      for (auto& column : columns_) {
        auto const found = std::find(names.begin(), names.end(), column.as.name);
        if (found == names.end()) {
          throw refusal(text(table.path, " has no column \"", column.as.name, "\"; it has ", shown(names)));
        }
        if (std::find(found + 1, names.end(), column.as.name) != names.end()) {
          throw refusal(text(table.path, " has two columns \"", column.as.name, "\"; rename one of them"));
        }
        column.index = static_cast<std::size_t>(found - names.begin());
      }
      names_ = std::move(names);
    } else if (names != names_) {
      throw format_error(table.path, where,
                         text(detail::csv_name, ": the columns are ", shown(names),
                              ", but those of the first file are ", shown(names_)));
    }
  }
  void take_numbers(detail::csv_table const& table, std::size_t width, std::uint64_t where) {
    formats::csv::record names;
    for (std::size_t i = 0; i < width; ++i) {
      names.append(text(i));
      names.end_field();
    }
    take_names(table, names, where);
  }
  static std::string shown(std::vector<std::string> const& names) {
    std::string out;
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 20); ++i) {
      out += text(i == 0 ? "" : ", ", "\"", names[i].substr(0, 40), "\"");
    }
    return names.size() > 20 ? out + ", ..." : out;
  }

  csv from_;
  std::vector<detail::csv_conversion> columns_;  // those of the features, then those of the targets
  std::vector<std::string> names_;
  std::size_t width_ = 0;
  std::int64_t size_ = 0;
  std::shared_ptr<std::vector<detail::csv_table> const> tables_;
};

inline csv_samples csv::open() const { return csv_samples(*this); }

inline std::string csv_encoding::letters(std::string const& path) const {
  namespace json = formats::json;
  json::array list;
  for (auto const& each : columns) {
    auto one = json::value::make({{"name", each.name}});
    if (each.categories.empty()) {
      one.set("mean", each.mean);
      one.set("deviation", each.deviation);
    } else {
      one.set("categories", json::array(each.categories.begin(), each.categories.end()));
    }
    list.emplace_back(std::move(one));
  }
  auto out = json::to_string(json::value::make({{"columns", std::move(list)}}), 2) + "\n";
  // What could not be read again is not written.
  if (out.size() > formats::most_bytes_at_once) {
    throw format_error(path, out.size(), text(detail::csv_name, ": the encoding has more than 1 GiB"));
  }
  static_cast<void>(from(json::parse(out, path, detail::csv_encoding_limits)));
  return out;
}

inline void csv_encoding::save(std::string const& path) const { formats::atomic_write(path, letters(path)); }

inline formats::model_file csv_encoding::file() const { return {file_name, letters(file_name)}; }

inline csv_encoding csv_encoding::in(std::vector<formats::model_file> const& files) {
  auto const* const found = formats::find(files, file_name);
  if (found == nullptr) {
    throw config_error(text(detail::csv_name, ": there is no ", file_name, " among these ",
                            how_many(files.size(), "file"),
                            "; a trainer has it on its first rank, after fit() on a table or load()"));
  }
  return from(formats::json::parse(found->content, file_name, detail::csv_encoding_limits));
}

inline csv_encoding csv_encoding::read(std::string const& path) {
  return from(formats::json::parse(formats::read_text(path), path, detail::csv_encoding_limits));
}

inline csv_encoding csv_encoding::from(formats::json::value const& all) {
  csv_encoding out;
  for (auto const& each : all.at("columns").as_array()) {
    csv_column column{.name = each.at("name").as_string()};
    if (out.find(column.name) != nullptr) each.fail(text("the column \"", column.name, "\" is there twice"));
    if (auto const* const list = each.find("categories")) {
      for (auto const& category : list->as_array()) column.categories.push_back(category.as_string());
      if (column.categories.empty()) list->fail("a column needs at least one category");
    } else {
      auto const number = [&](char const* key) {
        auto const& found = each.at(key);  // to_string() makes null of numbers that are not finite
        if (!found.is_number()) {
          found.fail(text("the ", key, " of column \"", column.name, "\" is not a finite number"));
        }
        return found.as_double();
      };
      column.mean = number("mean");
      column.deviation = number("deviation");
      if (!(column.deviation > 0)) each.fail("the deviation must be above 0");
    }
    out.columns.push_back(std::move(column));
  }
  return out;
}

}  // namespace trireme::data
