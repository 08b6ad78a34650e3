#pragma once

namespace trireme::ops {

/// A second queue of a memory space, on which batches are copied from its staging memory while kernels compute. A space
/// that has staging memory (core/space.hpp) specialises it, with these functions and one more:
///
///   copy(to, from, bytes)  queues a copy; both keep their memory until it is done
///
/// Threads  one owner.
template <class Space>
class batch_queue {
 public:
  /// A place in a queue: first its beginning.
  struct event {};
  /// Sets the event to the copies that have been queued here so far.
  void copied(event&) {}
  /// Kernels that this thread queues from now on see what was copied up to there.
  void order(event const&) {}
  /// Sets the event to the kernels that this thread has queued so far.
  void computed(event&) {}
  /// Copies that are queued from now on begin when those kernels are done.
  void follow(event const&) {}
  /// Returns when the copies up to there are done; throws what has gone wrong.
  void finish(event const&) {}
};

}  // namespace trireme::ops
