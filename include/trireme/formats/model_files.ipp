#pragma once

#include <cerrno>

#include "trireme/core/pattern.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/model_files.hpp"
#include "trireme/formats/weight_files.hpp"

namespace trireme::formats {

TRIREME_BODY std::vector<model_file> read_model_files(std::string const& directory, file_system& files) {
  constexpr std::uint64_t most = std::uint64_t{1} << 28;
  std::vector<model_file> out;
  auto const take = [&](std::string const& name) {
    out.push_back({name, read_text(text(directory, "/", name), most, files)});
  };
  class directory const in(directory, files);
  for (auto const& name : in.names()) {
    if (name == config_file || matches_any(model_file_names, name)) take(name);
  }
  constexpr std::string_view templates = "additional_chat_templates";
  if (in.has(std::string(templates))) {
    class directory const more(text(directory, "/", templates), files);
    for (auto const& name : more.names()) {
      if (matches("*.jinja", name)) take(text(templates, "/", name));
    }
  }
  return out;
}

TRIREME_BODY void write_model_file(std::string const& directory, model_file const& what, file_system& files) {
  auto const path = text(directory, "/", what.name);
  try {
    if (read_text(path, what.content.size(), files) == what.content) return;
  } catch (io_error const&) {  // there is none, or another one
  }
  make_directories(directory_of(path), files);
  atomic_write(path, what.content, files);
}

}  // namespace trireme::formats
