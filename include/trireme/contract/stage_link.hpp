#pragma once

#include <span>

#include "trireme/contract/communicator.hpp"

namespace trireme {

/// The link from one stage of a pipeline to the others, as an engine sees it: messages that travel while it computes.
///
/// Ranks    the k-th message to a stage is matched with the k-th one expected there from this stage.
template <class Space>
class stage_link {
 public:
  virtual ~stage_link() = default;
  /// Starts messages that progress together; peers are stages. @returns a ticket for one call of wait().
  [[nodiscard]] virtual int start(std::span<transfer<Space> const> messages) = 0;
  /// Returns when all messages of a ticket are done.
  virtual void wait(int ticket) = 0;
};

}  // namespace trireme
