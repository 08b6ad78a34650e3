#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../formats/scratch.hpp"
#include "trireme/contract/communicator.hpp"

/// A directory that all ranks see, which the first one makes and removes.
///
/// Ranks  the constructor is collective; all ranks are done with it before the first one's goes out of scope.
class shared_scratch {
 public:
  template <class Comm>
  explicit shared_scratch(Comm& world) {
    std::vector<std::uint8_t> name(256);
    if (world.rank() == 0) {
      folder_.emplace();
      std::copy(folder_->path().begin(), folder_->path().end(), name.begin());
    }
    world.broadcast(trireme::tensor_view<std::uint8_t>(name), 0);
    path_ = reinterpret_cast<char const*>(name.data());
  }
  [[nodiscard]] std::string const& path() const { return path_; }

 private:
  std::optional<scratch> folder_;
  std::string path_;
};
