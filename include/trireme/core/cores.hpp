#pragma once

#include <string>
#include <vector>

#include "trireme/core/compiled.hpp"

namespace trireme {

/// How many cores this process can keep busy, at least one: what programs take for one rank or one thread a core.
///
/// Those that the calling thread may run on, as taskset, numactl, a cpuset, mpirun's or srun's binding leave them, but
/// not more than the processor time that control groups grant (cpu.max; cpu.cfs_quota_us of version 1), rounded down:
/// whoever uses more is stopped for a part of each tenth of a second.
///
/// Threads  any.
[[nodiscard]] int usable_cores();

namespace detail {

/// The numbers of the cores that the calling thread may run on; never empty.
[[nodiscard]] std::vector<int> allowed_cores();
/// How many cores' time the control groups of this process grant, their own and all above; 0 if they set no limit.
/// @param root  where /proc and /sys are; a test has its own.
[[nodiscard]] int granted_cores(std::string const& root = {});

}  // namespace detail

}  // namespace trireme

#ifndef TRIREME_COMPILED
#include "trireme/core/cores.ipp"
#endif
