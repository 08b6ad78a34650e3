#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/file_system.hpp"

/// Files and directories in memory, as much of a file system as checkpoints use. Paths are names joined by '/'.
class memory_files : public trireme::formats::file_system {
 public:
  /// The content of a file, which is made if it is not there.
  std::string& operator[](std::string const& path) {
    auto& node = nodes_[path];
    if (!node) node = std::make_shared<std::string>();
    return *node;
  }
  void add_directory(std::string const& path) { nodes_[path] = nullptr; }

  int open(int at, char const* name, int flags, ::mode_t) override {
    auto const path = resolve(at, name);
    auto found = nodes_.find(path);
    if (found == nodes_.end()) {
      if ((flags & O_CREAT) == 0) return failed(ENOENT);
      found = nodes_.emplace(path, std::make_shared<std::string>()).first;
    } else if ((flags & O_EXCL) != 0) {
      return failed(EEXIST);
    } else if ((flags & O_DIRECTORY) != 0 && found->second) {
      return failed(ENOTDIR);
    }
    open_.push_back({true, path, found->second});
    return static_cast<int>(open_.size()) - 1;
  }
  int close(int descriptor) override {
    open_[static_cast<std::size_t>(descriptor)] = {};
    while (!open_.empty() && !open_.back().used) open_.pop_back();
    return 0;
  }
  int status(int descriptor, struct ::stat& out) override {
    auto const& file = open_[static_cast<std::size_t>(descriptor)].content;
    out.st_mode = file ? S_IFREG : S_IFDIR;
    out.st_size = file ? static_cast<::off_t>(file->size()) : 0;
    return 0;
  }
  ::ssize_t read(int descriptor, void* to, std::size_t bytes, ::off_t at) override {
    auto const& file = open_[static_cast<std::size_t>(descriptor)].content;
    if (!file) return failed(EISDIR);
    auto const start = std::min(static_cast<std::size_t>(at), file->size());
    auto const count = std::min(bytes, file->size() - start);
    std::memcpy(to, file->data() + start, count);
    return static_cast<::ssize_t>(count);
  }
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    open_[static_cast<std::size_t>(descriptor)].content->append(static_cast<char const*>(from), bytes);
    return static_cast<::ssize_t>(bytes);
  }
  int synchronise(int) override { return 0; }
  int rename(int at, char const* from, char const* to) override {
    auto const source = resolve(at, from);
    auto const target = resolve(at, to);
    if (!nodes_.contains(source)) return failed(ENOENT);
    std::map<std::string, std::shared_ptr<std::string>> moved;
    for (auto each = nodes_.begin(); each != nodes_.end();) {
      bool const below = each->first == source || each->first.starts_with(source + "/");
      if (below) moved[target + each->first.substr(source.size())] = each->second;
      each = below ? nodes_.erase(each) : std::next(each);
    }
    for (auto& [path, content] : moved) nodes_[path] = std::move(content);
    return 0;
  }
  int unlink(int at, char const* name) override { return nodes_.erase(resolve(at, name)) > 0 ? 0 : failed(ENOENT); }
  int make_directory(int at, char const* name, ::mode_t) override {
    return nodes_.emplace(resolve(at, name), nullptr).second ? 0 : failed(EEXIST);
  }
  int remove_directory(int at, char const* name) override { return unlink(at, name); }
  int list(int descriptor, std::vector<std::string>& names) override {
    auto const folder = open_[static_cast<std::size_t>(descriptor)].path + "/";
    for (auto const& [path, content] : nodes_) {
      if (path.starts_with(folder) && path.find('/', folder.size()) == path.npos)
        names.push_back(path.substr(folder.size()));
    }
    return 0;
  }

 private:
  struct handle {
    bool used = false;
    std::string path;
    std::shared_ptr<std::string> content;  // none for a directory
  };

  static int failed(int number) {
    errno = number;
    return -1;
  }
  [[nodiscard]] std::string resolve(int at, char const* name) const {
    return at == AT_FDCWD ? std::string(name) : open_[static_cast<std::size_t>(at)].path + "/" + name;
  }

  std::map<std::string, std::shared_ptr<std::string>> nodes_;
  std::vector<handle> open_;
};
