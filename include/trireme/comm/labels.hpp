#pragma once

#include <cstdint>

#include "trireme/comm/command.hpp"

namespace trireme::comm {

/// The label of the calls that a communicator makes now, and how many owners have taken a number of it.
struct call_labels {
  call_label now{};
  std::uint32_t exchanges = 0;
  std::uint32_t trainers = 0;
};

/// Local, but in one order on all ranks. The owner as which an exchange or trainer labels its calls on `world`: the one
/// that labels calls there now (the trainer that makes its exchange), or the next number. 0 on communicators without
/// labels.
template <class World>
[[nodiscard]] std::uint16_t label_owner(World& world, call_label::owner_kind kind) noexcept {
  if constexpr (requires { world.labels().now; }) {
    call_labels& labels = world.labels();
    if (labels.now.owner != 0) return labels.now.owner;
    auto& count = kind == call_label::owner_kind::trainer ? labels.trainers : labels.exchanges;
    return call_label::owner_of(kind, ++count);
  } else {
    return 0;
  }
}

/// While it exists, calls on a communicator have a label: `labelled const now(world, {owner, call_label::vote});`. It
/// costs two stores. No effect on communicators without labels, of a user's own (docs/communicators.md), which compare
/// calls without it.
///
/// Threads  as the communicator, which must not move.
class labelled {
 public:
  template <class World>
  labelled(World& world, call_label label) noexcept {
    if constexpr (requires { world.labels().now; }) {
      at_ = &world.labels().now;
      before_ = *at_;
      *at_ = label;
    }
  }
  labelled(labelled const&) = delete;
  labelled& operator=(labelled const&) = delete;
  ~labelled() {
    if (at_ != nullptr) *at_ = before_;
  }

  /// For another part of what the calls on `world` are for now, if they have an owner.
  template <class World>
  [[nodiscard]] static labelled as_part(World& world, std::uint16_t part) noexcept {
    call_label label{};
    if constexpr (requires { world.labels().now; }) label = world.labels().now;
    if (label.owner != 0) label.part = part;
    return labelled(world, label);
  }

 private:
  call_label* at_ = nullptr;
  call_label before_{};
};

}  // namespace trireme::comm
