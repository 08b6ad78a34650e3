#include "trireme/core/cores.hpp"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "trireme/formats/file.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

using namespace trireme;

namespace {

/// A root folder with these control groups.
class machine {
 public:
  machine& with(std::string const& file, std::string const& content) {
    auto const path = std::filesystem::path(std::string(folder_.path()) + file);
    std::filesystem::create_directories(path.parent_path());
    formats::atomic_write(path.string(), content);
    return *this;
  }
  [[nodiscard]] int granted() const { return trireme::detail::granted_cores(folder_.path()); }

 private:
  scratch folder_;
};

}  // namespace

TEST_CASE("a process may use at least one core, and no more than its affinity", "[core]") {
  auto const allowed = trireme::detail::allowed_cores();
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= static_cast<int>(allowed.size()));
#if defined(__linux__)
  int of_one = 0;
  std::thread([&] {  // as under taskset, or a binding of mpirun
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(allowed.back()), &set);
    REQUIRE(::sched_setaffinity(0, sizeof set, &set) == 0);
    of_one = usable_cores();
    CHECK(trireme::detail::allowed_cores() == std::vector<int>{allowed.back()});
  })
      .join();
  CHECK(of_one == 1);
#endif
}

TEST_CASE("control groups of both versions limit the cores, and the lowest limit of all parents counts", "[core]") {
  CHECK(machine().granted() == 0);
  CHECK(machine().with("/sys/fs/cgroup/cpu.max", "max 100000\n").granted() == 0);
  CHECK(machine().with("/sys/fs/cgroup/cpu.max", "350000 100000\n").granted() == 3);
  CHECK(machine().with("/sys/fs/cgroup/cpu.max", "50000 100000\n").granted() == 1);
  for (auto const* const odd : {"", "x", "-1", "100000", "100000 ", "0 0", "100000 0"})
    CHECK(machine().with("/sys/fs/cgroup/cpu.max", odd).granted() == 0);

  machine nested;
  nested.with("/proc/self/cgroup", "3:memory:/other\n0::/user.slice/job\n")
      .with("/sys/fs/cgroup/cpu.max", "max 100000");
  nested.with("/sys/fs/cgroup/user.slice/job/cpu.max", "800000 100000\n");
  CHECK(nested.granted() == 8);
  nested.with("/sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n");
  CHECK(nested.granted() == 4);

  machine first;
  first.with("/proc/self/cgroup", "4:cpu,cpuacct:/docker/1\n2:cpuset:/docker/1");
  first.with("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  first.with("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  CHECK(first.granted() == 0);
  first.with("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "250000\n");
  CHECK(first.granted() == 2);
  first.with("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");  // as a container sees its own group
  first.with("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(first.granted() == 1);
}
