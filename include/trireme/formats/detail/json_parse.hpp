#pragma once

#include "trireme/formats/detail/json_scanner.hpp"
#include "trireme/formats/json.hpp"

namespace trireme::formats::json {

namespace detail {

using trireme::formats::detail::json_scanner;

/// Fails at the second of two members of one name.
inline void refuse_duplicates(json_scanner const& scan, object const& members) {
  std::vector<member const*> sorted;
  for (auto const& each : members) sorted.push_back(&each);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto const* a, auto const* b) { return a->key < b->key; });
  auto const twice =
      std::adjacent_find(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->key == b->key; });
  if (twice == sorted.end()) return;
  scan.fail(twice[1]->content.offset(), text("a second member named \"", twice[1]->key.substr(0, 80), "\""));
}

/// Builds the tree with a stack of its own, so that no input can exhaust the stack of the thread.
class tree_builder {
 public:
  tree_builder(std::string_view text, std::string_view path, limits const& most)
      : scan_(text, path), source_(std::make_shared<std::string const>(path)), most_(most) {}

  [[nodiscard]] value build() {
    value root;
    read(root);
    while (!open_.empty()) step();
    scan_.expect_end();
    return root;
  }

 private:
  /// A container whose end has not been read. It is moved to its place only then, so growing it moves no open child.
  struct level {
    value* place;
    bool is_object;
    array elements;
    object members;
  };

  /// Reads a value, or the bracket that opens one.
  void read(value& into) {
    char const first = scan_.peek();
    auto const start = scan_.position();
    if (++count_ > most_.values) scan_.fail(start, text("more than ", most_.values, " values"));
    switch (first) {
      case '{':
      case '[':
        if (open_.size() == most_.depth) scan_.fail(start, text("nested more than ", most_.depth, " deep"));
        scan_.expect(first);
        open_.push_back({&into, first == '{', {}, {}});
        fresh_ = true;
        break;
      case '"':
        into = scan_.string(most_.string_bytes);
        break;
      case 't':
        scan_.literal("true"), into = true;
        break;
      case 'f':
        scan_.literal("false"), into = false;
        break;
      case 'n':
        scan_.literal("null"), into = nullptr;
        break;
      default:
        into = number(start);
        break;
    }
    into.locate(source_, start);
  }

  /// Reads one more element of the innermost container, or its end.
  void step() {
    auto& top = open_.back();
    bool const first = std::exchange(fresh_, false);
    if (scan_.accept(top.is_object ? '}' : ']')) return close();
    if (!first) scan_.expect(',');
    if (top.is_object) {
      top.members.push_back({scan_.string(most_.string_bytes), {}});
      scan_.expect(':');
      read(top.members.back().content);
    } else {
      read(top.elements.emplace_back());
    }
  }

  void close() {
    auto top = std::move(open_.back());
    open_.pop_back();
    auto const start = top.place->offset();
    if (top.is_object) {
      refuse_duplicates(scan_, top.members);
      *top.place = std::move(top.members);
    } else {
      *top.place = std::move(top.elements);
    }
    top.place->locate(source_, start);
  }

  [[nodiscard]] value number(std::size_t start) {
    auto const digits = scan_.number();
    auto const* const first = digits.data();
    auto const* const last = first + digits.size();
    if (digits.find_first_of(".eE") == std::string_view::npos && digits != "-0") {
      std::int64_t small = 0;
      if (std::from_chars(first, last, small).ec == std::errc{}) return small;
      std::uint64_t large = 0;
      if (std::from_chars(first, last, large).ec == std::errc{}) return large;
    }
    double real = 0;
    if (std::from_chars(first, last, real).ec != std::errc{}) scan_.fail(start, "a number outside the range of double");
    return real;
  }

  json_scanner scan_;
  std::shared_ptr<std::string const> source_;
  limits most_;
  std::vector<level> open_;
  std::size_t count_ = 0;
  bool fresh_ = false;
};

}  // namespace detail

/// Reads a JSON text (RFC 8259).
///
/// Strict: UTF-8 in shortest form, no member twice, no trailing comma, nothing after the value. An integer beyond 64
/// bits becomes a double; a number outside the range of double is refused. Memory: at most 100 bytes a value, and a
/// value takes at least two bytes of text.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param path  what errors call the text.
[[nodiscard]] inline value parse(std::string_view text, std::string_view path, limits const& most = {}) {
  return detail::tree_builder(text, path, most).build();
}

}  // namespace trireme::formats::json
