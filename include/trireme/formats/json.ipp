#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/detail/json_print.hpp"
#include "trireme/formats/detail/json_scanner.hpp"
#include "trireme/formats/json.hpp"

namespace trireme::formats::json {

namespace detail {

using trireme::formats::detail::json_scanner;

/// Fails at the second of two members with the same name.
TRIREME_BODY void refuse_duplicates(json_scanner const& scan, object const& members) {
  std::vector<member const*> sorted;
  for (auto const& each : members) sorted.push_back(&each);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto const* a, auto const* b) { return a->key < b->key; });
  auto const twice =
      std::adjacent_find(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->key == b->key; });
  if (twice == sorted.end()) return;
  scan.fail(twice[1]->content.offset(), text("a second member named \"", twice[1]->key.substr(0, 80), "\""));
}

/// Builds the tree with an explicit stack, so that no input can overflow the thread's stack.
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
  /// A container whose end has not been read. It is moved to its parent only then, so a growing parent does not move
  /// open children.
  struct level {
    value* target;
    bool is_object;
    array elements;
    object members;
  };

  /// Reads a value, or its opening bracket.
  void read(value& into) {
    char const first = scan_.peek();
    auto const start = scan_.position();
    if (++count_ > most_.values) scan_.fail(start, text("more than ", how_many(most_.values, "value")));
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
    auto const start = top.target->offset();
    if (top.is_object) {
      refuse_duplicates(scan_, top.members);
      *top.target = std::move(top.members);
    } else {
      *top.target = std::move(top.elements);
    }
    top.target->locate(source_, start);
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

class printer {
 public:
  printer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void print(value const& content, std::size_t depth) {
    if (depth > limits{}.depth) throw config_error("trireme::formats::json: a value nested more than 32 deep");
    if (content.is_object()) return print_all(content.as_object(), '{', '}', depth);
    if (content.is_array()) return print_all(content.as_array(), '[', ']', depth);
    if (content.is_string()) return print_string(out_, content.as_string());
    if (content.is_null()) return out_.append("null"), void();
    if (content.is_bool()) return out_.append(content.as_bool() ? "true" : "false"), void();
    if (!content.is_integer()) return print_double(out_, content.as_double());
    out_ += content.is_negative() ? text(content.as_int64()) : text(content.as_uint64());
  }

 private:
  template <class Items>
  void print_all(Items const& items, char open, char close, std::size_t depth) {
    out_ += open;
    bool first = true;
    for (auto const& item : items) {
      if (!first) out_ += ',';
      first = false;
      line(depth + 1);
      print_item(item, depth + 1);
    }
    if (!items.empty()) line(depth);
    out_ += close;
  }
  void print_item(value const& item, std::size_t depth) { print(item, depth); }
  void print_item(member const& item, std::size_t depth) {
    print_string(out_, item.key);
    out_ += indent_ < 0 ? ":" : ": ";
    print(item.content, depth);
  }
  void line(std::size_t depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(depth * static_cast<std::size_t>(indent_), ' ');
  }

  std::string& out_;
  int indent_;
};

}  // namespace detail

TRIREME_BODY value::value(json::array elements) : array_(std::move(elements)), kind_(kind::elements) {}
TRIREME_BODY value::value(json::object members) : object_(std::move(members)), kind_(kind::members) {}
TRIREME_BODY value::value(value const& other) : source_(other.source_), offset_(other.offset_) { fill(other); }
TRIREME_BODY value::value(value&& other) noexcept : source_(std::move(other.source_)), offset_(other.offset_) {
  take(other);
}
TRIREME_BODY value& value::operator=(value const& other) { return *this = value(other); }
TRIREME_BODY value& value::operator=(value&& other) noexcept {
  value moved(std::move(other));  // first: it may be an element of this one
  clear();
  take(moved);
  source_ = std::move(moved.source_);
  offset_ = moved.offset_;
  return *this;
}
TRIREME_BODY value::~value() { clear(); }
TRIREME_BODY void value::clear() noexcept {
  if (kind_ == kind::string) std::destroy_at(&string_);
  if (kind_ == kind::elements) std::destroy_at(&array_);
  if (kind_ == kind::members) std::destroy_at(&object_);
  kind_ = kind::null;
}
TRIREME_BODY void value::fill(value const& from) {
  if (from.kind_ == kind::boolean) boolean_ = from.boolean_;
  if (from.kind_ == kind::small) small_ = from.small_;
  if (from.kind_ == kind::large) large_ = from.large_;
  if (from.kind_ == kind::real) real_ = from.real_;
  if (from.kind_ == kind::string) std::construct_at(&string_, from.string_);
  if (from.kind_ == kind::elements) std::construct_at(&array_, from.array_);
  if (from.kind_ == kind::members) std::construct_at(&object_, from.object_);
  kind_ = from.kind_;
}
TRIREME_BODY void value::take(value& from) noexcept {
  if (from.kind_ < kind::string) return fill(from);
  if (from.kind_ == kind::string) std::construct_at(&string_, std::move(from.string_));
  if (from.kind_ == kind::elements) std::construct_at(&array_, std::move(from.array_));
  if (from.kind_ == kind::members) std::construct_at(&object_, std::move(from.object_));
  kind_ = from.kind_;
}
TRIREME_BODY value value::make(std::initializer_list<member> members) { return json::object(members); }
TRIREME_BODY value const* value::find(std::string_view key) const {
  auto const& members = as_object();
  auto const found = std::find_if(members.begin(), members.end(), [&](member const& m) { return m.key == key; });
  return found == members.end() ? nullptr : &found->content;
}
TRIREME_BODY value const& value::at(std::string_view key) const {
  auto const* found = find(key);
  if (found == nullptr) fail(text("the object has no \"", key, "\""));
  return *found;
}
TRIREME_BODY value& value::set(std::string key, value to) {
  if (is_null()) std::construct_at(&object_), kind_ = kind::members;
  if (auto const* old = find(key))
    return const_cast<value&>(*old) = std::move(to);  // `found` belongs to this object, which is not const
  return object_.emplace_back(member{std::move(key), std::move(to)}).content;
}
TRIREME_BODY value& value::push_back(value element) {
  if (is_null()) std::construct_at(&array_), kind_ = kind::elements;
  static_cast<void>(as_array());
  return array_.emplace_back(std::move(element));
}
TRIREME_BODY bool operator==(value const& a, value const& b) {
  using kind = value::kind;
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case kind::null:
      return true;
    case kind::boolean:
      return a.boolean_ == b.boolean_;
    case kind::small:
      return a.small_ == b.small_;
    case kind::large:
      return a.large_ == b.large_;
    case kind::real:
      return exactly_equal(a.real_, b.real_);
    case kind::string:
      return a.string_ == b.string_;
    case kind::elements:
      return a.array_ == b.array_;
    case kind::members:
      return a.object_ == b.object_;
  }
  return false;
}

TRIREME_BODY value parse(std::string_view text, std::string_view path, limits const& most) {
  return detail::tree_builder(text, path, most).build();
}

TRIREME_BODY std::string to_string(value const& content, int indent) {
  std::string out;
  detail::printer(out, indent).print(content, 0);
  return out;
}

}  // namespace trireme::formats::json
