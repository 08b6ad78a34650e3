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
  /// Starts messages that progress together; peers are stages. @returns a ticket for one call of wait() or order().
  [[nodiscard]] virtual int start(std::span<transfer<Space> const> messages) = 0;
  /// Returns when all messages of a ticket are done, and the host may read what has come.
  virtual void wait(int ticket) = 0;
  /// What this thread queues afterwards sees what has come, and may write what has been sent
  /// (contract/communicator.hpp, order()). Of a ticket, wait() or order() is called, once.
  virtual void order(int ticket) { wait(ticket); }
};

}  // namespace trireme
