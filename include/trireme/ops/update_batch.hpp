#pragma once

namespace trireme::ops {

/// While one of a thread's lives, the kernels that update elements may wait and be queued together in finish(): one
/// launch for many small tensors. Their tensors are different ones. A space that gains nothing by it does all at once.
/// If finish() is not called, because of an exception, the updates that wait are dropped.
template <class Space>
struct update_batch {
  void finish() noexcept {}
};

}  // namespace trireme::ops
