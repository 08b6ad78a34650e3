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

TRIREME_BODY void add_model_file(file_set& to, directory const& in, model_file const& what) {
  auto const slash = what.name.rfind('/');
  if (slash == std::string::npos) return to.add(in, what.name, what.content);
  auto const folder = in.path_of(what.name.substr(0, slash));
  make_directories(folder, in.files());
  to.add(directory(folder, in.files()), what.name.substr(slash + 1), what.content);
}

TRIREME_BODY void expect_writable(std::string const& directory, file_system& files) {
  make_directories(directory, files);
  class directory const in(directory, files);
  try {
    static_cast<void>(atomic_file(in, ".can_be_written"));  // its destructor removes the file
  } catch (io_error const& problem) {
    throw detail::io_failure(directory, "make files in it", problem.number());
  }
}

}  // namespace trireme::formats
