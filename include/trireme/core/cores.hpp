#pragma once

#include <string>
#include <vector>

#include "trireme/core/compiled.hpp"

namespace trireme {

/// The number of cores that this process can keep busy, at least one: programs use one rank or one thread for each.
///
/// The cores on which the calling thread may run, as restricted by taskset, numactl, a cpuset or the binding of mpirun
/// or srun, but at most the processor time that control groups grant (cpu.max; cpu.cfs_quota_us of version 1), rounded
/// down: a process that uses more is suspended for a part of each period (usually 0.1 s).
///
/// Threads  any.
[[nodiscard]] int usable_cores();

namespace detail {

/// The numbers of the cores that the calling thread may run on; never empty.
[[nodiscard]] std::vector<int> allowed_cores();
/// The number of cores' time that the control groups of this process grant, its own and all above; 0 if they set no
/// limit.
/// @param root  the folder of /proc and /sys; tests pass their own.
[[nodiscard]] int granted_cores(std::string const& root = {});

}  // namespace detail

}  // namespace trireme

#ifndef TRIREME_COMPILED
#include "trireme/core/cores.ipp"
#endif
