// Trireme 0.1.0: trireme/data/chat_template.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 30472664cd8fdf331e4986cc13ef00f5f142c8835b6a836e8ddaaf882be4a1ac
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/chat_lines.hpp"

// ---- trireme/data/chat_template.hpp
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace trireme::data {

namespace detail {

/// The statements of a Jinja template, without the blanks between their words, one for each line: "{{...}}" and
/// "{%...%}". Nothing if it also has text outside of them that is printed.
[[nodiscard]] inline std::optional<std::string> statements_of(std::string_view jinja) {
  std::string out, text_before;
  auto const blank = [](char letter) { return letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r'; };
  bool after_statement = false, strips = false;  // what the last tag does to the text behind it
  auto const printed = [&](std::string_view text, bool statement, bool stripped) {
    // As transformers sets Jinja up: a line end behind {%...%}, and blanks before it in its line, are left out.
    if (after_statement && !text.empty() && text.front() == '\n') text.remove_prefix(1);
    if (strips) {
      while (!text.empty() && blank(text.front())) text.remove_prefix(1);
    }
    if (stripped) {
      while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    } else if (statement) {
      auto const line = text.rfind('\n');
      auto const rest = text.substr(line == std::string_view::npos ? 0 : line + 1);
      if (rest.find_first_not_of(" \t") == std::string_view::npos) text.remove_suffix(rest.size());
    }
    return !text.empty();
  };
  while (!jinja.empty()) {
    auto const begin = jinja.find('{');
    if (begin == std::string_view::npos || begin + 1 >= jinja.size()) break;
    auto const kind = jinja[begin + 1];
    if (kind != '{' && kind != '%' && kind != '#') return std::nullopt;
    auto const closes = kind == '{' ? std::string_view("}}") : kind == '%' ? "%}" : "#}";
    auto inside = jinja.substr(begin + 2);
    std::size_t end = 0;
    for (char quote = 0; end < inside.size(); ++end) {
      if (quote == 0 && inside.substr(end).starts_with(closes)) break;
      if (kind == '#') continue;
      if (quote != 0 && inside[end] == '\\')
        ++end;
      else if (quote != 0 && inside[end] == quote)
        quote = 0;
      else if (quote == 0 && (inside[end] == '\'' || inside[end] == '"'))
        quote = inside[end];
    }
    if (end >= inside.size()) return std::nullopt;
    auto const rest = inside.substr(end + 2);
    inside = inside.substr(0, end);
    bool const stripped = inside.starts_with('-'), strips_next = inside.ends_with('-');
    if (printed(jinja.substr(0, begin), kind != '{', stripped)) return std::nullopt;
    if (stripped) inside.remove_prefix(1);
    if (strips_next && !inside.empty()) inside.remove_suffix(1);
    after_statement = kind != '{';
    strips = strips_next;
    jinja = rest;
    if (kind == '#') continue;
    out += kind == '{' ? "{{" : "{%";
    char quote = 0;
    for (std::size_t i = 0; i < inside.size(); ++i) {
      auto letter = inside[i];
      if (quote == 0 && blank(letter)) continue;
      if (letter == '\\' && i + 1 < inside.size()) {
        (out += letter) += inside[++i];
        continue;
      }
      if (letter == '\n') {  // in quotes, as JSON's "\n" gives it
        out += "\\n";
        continue;
      }
      if (quote == 0 && (letter == '\'' || letter == '"')) {
        quote = letter;
        letter = '\'';
      } else if (letter == quote) {
        quote = 0;
        letter = '\'';
      }
      out += letter;
    }
    out += kind == '{' ? "}}\n" : "%}\n";
  }
  if (printed(jinja, false, false)) return std::nullopt;
  // One spelling of what has several.
  struct spelling {
    std::string_view from, to;
  };
  for (auto const& [from, to] : {spelling{"'+'", ""}, spelling{"message.role", "message['role']"},
                                 spelling{"message.content", "message['content']"}}) {
    for (auto at = out.find(from); at != std::string::npos; at = out.find(from, at)) out.replace(at, from.size(), to);
  }
  return out;
}

}  // namespace detail

/// The template that a Jinja template is; nothing if it gives other texts, or if that cannot be seen.
///
/// Known are the usual spellings of ChatML without a system message of its own, and of Llama 3 without dates.
[[nodiscard]] inline std::optional<chat_template> chat_template_of(std::string_view jinja) {
  auto const found = detail::statements_of(jinja);
  if (!found) return std::nullopt;
  std::string_view all = *found;
  constexpr std::string_view unless_asked =
      "{%ifnotadd_generation_promptisdefined%}\n{%setadd_generation_prompt=false%}\n"
      "{%endif%}\n";
  if (all.starts_with(unless_asked)) all.remove_prefix(unless_asked.size());
  // The beginning of an answer, which a template adds to a conversation that waits for one.
  for (std::string_view const begins :
       {"{%ifadd_generation_prompt%}\n{{'<|im_start|>assistant\\n'}}\n{%endif%}\n",
        "{%ifadd_generation_prompt%}\n{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}\n{%endif%}\n"}) {
    if (all.ends_with(begins)) all.remove_suffix(begins.size());
  }
  constexpr std::string_view chatml[] = {
      "{%formessageinmessages%}\n{{'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>\\n'}}\n"
      "{%endfor%}\n"};
  constexpr std::string_view llama3[] = {
      "{%setloop_messages=messages%}\n{%formessageinloop_messages%}\n{%setcontent='<|start_header_id|>'+message['role']"
      "+"
      "'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'%}\n{%ifloop.index0==0%}\n"
      "{%setcontent=bos_token+content%}\n{%endif%}\n{{content}}\n{%endfor%}\n"};
  for (auto const known : chatml) {
    if (all == known) return chat_template::chatml;
  }
  for (auto const known : llama3) {
    if (all == known) return chat_template::llama3;
  }
  return std::nullopt;
}

/// The template of a model's files: `chat_template.jinja` in the directory, else "chat_template" in its
/// tokenizer_config.json.
///
///     data::chat_lines{.files = "chats.jsonl", .format = data::chat_template_in("models/llama-3")}
///
/// Errors   config_error if the directory has neither, or if the template is none of chat_template: name the format
///          yourself then, if a difference (a date, a system message) is meant; io_error and format_error of the files.
[[nodiscard]] inline chat_template chat_template_in(std::string const& directory) {
  constexpr char const* who = "trireme::data::chat_template_in";
  constexpr std::uint64_t most = 16 << 20;
  auto const exists = [&](std::string const& name) {
    std::error_code ignored;
    return std::filesystem::exists(name, ignored);
  };
  auto path = directory + "/chat_template.jinja";
  std::string jinja;
  if (exists(path)) {
    jinja = formats::read_text(path, most);
  } else {
    path = directory + "/tokenizer_config.json";
    if (!exists(path)) {
      throw config_error(text(who, ": ", directory, " has neither chat_template.jinja nor tokenizer_config.json"));
    }
    auto const config = formats::json::parse(formats::read_text(path, most), path, {.string_bytes = most});
    auto const* const found = config.find("chat_template");
    if (found == nullptr) throw config_error(text(who, ": ", path, " has no \"chat_template\""));
    jinja = found->as_string();
  }
  if (auto const known = chat_template_of(jinja)) return *known;
  throw config_error(text(who, ": the template in ", path,
                          " is not one of those that are known here (ChatML, Llama 3); compare it with them, and name "
                          "the format that is meant"));
}

}  // namespace trireme::data
