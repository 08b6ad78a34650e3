#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../support/sentence.hpp"
#include "../support/spline.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/data/function.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/trireme.hpp"

/// Shared by the tests of checkpoints.
namespace checkpoints {

using namespace trireme;

/// A run whose checkpoint is so small that it can be damaged at every byte.
struct tiny {
  comm::self_world world;
  toy::spline model;
  decltype(make_trainer(model, optim::sgd{}, world)) trainer = make_trainer(model, optim::sgd{}, world);
  data::function<float (*)(float)> data = data::function(+[](float x) { return x * x; }, {.samples = 8});
  void go_to(std::int64_t step) {
    if (step > 0) trainer.fit(data, {.steps = step, .batch = 4});
  }
};

/// Fails from operation n on, or stops there: the writes of a killed program never happen.
struct failing_files : formats::file_system {
  int operations = 0;
  int fails_at = -1;
  int number = ENOSPC;
  bool for_ever = false;
  bool kept_something = false;  // a removal failed
  bool exchanges = true;        // whether two names can be exchanged
  bool fails() {
    auto const at = operations++;
    bool const now = for_ever ? fails_at >= 0 && at >= fails_at : at == fails_at;
    if (now) errno = number;
    return now;
  }
  bool fails_to_remove() {
    if (!fails()) return false;
    kept_something = true;
    return true;
  }
  int open(int at, char const* p, int f, ::mode_t m) override {
    // A directory may be opened in order to remove its contents.
    return ((f & O_DIRECTORY) != 0 ? fails_to_remove() : fails()) ? -1 : file_system::open(at, p, f, m);
  }
  int status(int d, struct ::stat& s) override { return fails() ? -1 : file_system::status(d, s); }
  ::ssize_t read(int d, void* to, std::size_t n, ::off_t at) override {
    return fails() ? -1 : file_system::read(d, to, n, at);
  }
  ::ssize_t write(int d, void const* from, std::size_t n) override {
    return fails() ? -1 : file_system::write(d, from, n);
  }
  int truncate(int d, ::off_t n) override { return fails() ? -1 : file_system::truncate(d, n); }
  int synchronise(int d) override { return fails() ? -1 : file_system::synchronise(d); }
  int rename(int at, char const* a, char const* b) override { return fails() ? -1 : file_system::rename(at, a, b); }
  int move(int at, char const* a, int to, char const* b) override {
    return fails() ? -1 : file_system::move(at, a, to, b);
  }
  int exchange(int at, char const* a, char const* b) override {
    if (!exchanges) {  // as NFS, FUSE and ZFS report it
      errno = EINVAL;
      return -1;
    }
    return fails() ? -1 : file_system::exchange(at, a, b);
  }
  int make_directory(int at, char const* p, ::mode_t m) override {
    return fails() ? -1 : file_system::make_directory(at, p, m);
  }
  int unlink(int at, char const* p) override { return fails_to_remove() ? -1 : file_system::unlink(at, p); }
  int remove_directory(int at, char const* p) override {
    return fails_to_remove() ? -1 : file_system::remove_directory(at, p);
  }
  int list(int d, std::vector<std::string>& all) override { return fails_to_remove() ? -1 : file_system::list(d, all); }
};

inline std::vector<std::string> names(std::string const& directory) { return formats::directory(directory).names(); }

inline void overwrite(std::string const& path, std::span<std::byte const> bytes) {
  formats::file to(path, formats::file::access::create);
  to.write(bytes);
}
/// Corrects the hash of a manifest after the manifest was changed.
inline void seal_manifest(std::string const& step_directory) {
  auto const content = formats::read_text(step_directory + "/manifest.json");
  formats::atomic_write(step_directory + "/manifest.sha256",
                        sha256().update(content).hexadecimal() + "  manifest.json\n");
}
/// Replaces a part of a manifest, and its hash.
inline void change_manifest(std::string const& step_directory, std::string_view from, std::string_view to) {
  auto content = formats::read_text(step_directory + "/manifest.json");
  auto const at = content.find(from);
  if (at == std::string::npos) throw error(text("the manifest has no ", from));
  formats::atomic_write(step_directory + "/manifest.json", content.replace(at, from.size(), to));
  seal_manifest(step_directory);
}

}  // namespace checkpoints
