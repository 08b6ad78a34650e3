#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "trireme/core/cores.hpp"

// Bodies of cores.hpp (see core/compiled.hpp).

namespace trireme::detail {

TRIREME_BODY std::vector<int> allowed_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  // The kernel rejects sets that are smaller than its own, and some machines have more than the usual 1024 bits.
  for (int most = CPU_SETSIZE; cores.empty() && most <= 1 << 20; most *= 2) {
    auto const release = [](cpu_set_t* set) { CPU_FREE(set); };
    std::unique_ptr<cpu_set_t, decltype(release)> const set(CPU_ALLOC(static_cast<std::size_t>(most)), release);
    auto const bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
    if (set == nullptr || ::sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int core = 0; core < most; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, set.get())) cores.push_back(core);
  }
#endif
  if (cores.empty()) {
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

/// The contents of a small system file; empty if it does not exist.
[[nodiscard]] inline std::string system_file(std::string const& path) {
  auto const close = [](std::FILE* file) { static_cast<void>(std::fclose(file)); };
  std::unique_ptr<std::FILE, decltype(close)> const file(std::fopen(path.c_str(), "re"), close);
  std::string out(file == nullptr ? 0 : 1 << 14, '\0');
  if (file != nullptr) out.resize(std::fread(out.data(), 1, out.size(), file.get()));
  return out;
}

/// The lowest number of cores' time among the limits that take() gets; 0 if there is none.
struct least_grant {
  int cores = 0;

  /// "150000 100000" grants 150 ms of each 100 ms; "max" and -1 mean no limit.
  void take(std::string_view quota, std::string_view period) {
    std::int64_t time = 0, of = 0;
    std::from_chars(quota.data(), quota.data() + quota.size(), time);
    std::from_chars(period.data(), period.data() + period.size(), of);
    if (time < 1 || of < 1) return;
    auto const here = static_cast<int>(std::clamp<std::int64_t>(time / of, 1, 1 << 20));
    cores = cores == 0 ? here : std::min(cores, here);
  }
  void take_group(std::string const& folder, bool second) {
    if (second) {
      auto const both = system_file(folder + "/cpu.max");
      auto const gap = std::min(both.find(' '), both.size());
      take(std::string_view(both).substr(0, gap), std::string_view(both).substr(std::min(gap + 1, both.size())));
    } else {
      take(system_file(folder + "/cpu.cfs_quota_us"), system_file(folder + "/cpu.cfs_period_us"));
    }
  }
};

TRIREME_BODY int granted_cores(std::string const& root) {
  least_grant least;
  auto const mounted = root + "/sys/fs/cgroup";
  least.take_group(mounted, true);  // in a container, which sees only its own group
  least.take_group(mounted + "/cpu", false);
  // Lines are NUMBER:CONTROLLERS:PATH, without controllers for version 2.
  auto const groups = system_file(root + "/proc/self/cgroup");
  for (std::string_view rest = groups; !rest.empty();) {
    auto const line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    auto const first = line.find(':');
    auto const last = first == line.npos ? first : line.find(':', first + 1);
    if (last == line.npos) continue;
    auto const controllers = "," + std::string(line.substr(first + 1, last - first - 1)) + ",";
    bool const second = controllers == ",,";
    if (!second && controllers.find(",cpu,") == std::string::npos) continue;
    for (auto path = std::string(line.substr(last + 1)); path.size() > 1; path.resize(path.rfind('/')))
      least.take_group(mounted + (second ? "" : "/cpu") + path, second);
  }
  return least.cores;
}

}  // namespace trireme::detail

namespace trireme {

TRIREME_BODY int usable_cores() {
  auto const allowed = static_cast<int>(detail::allowed_cores().size());
  auto const granted = detail::granted_cores();
  return granted == 0 ? allowed : std::min(allowed, granted);
}

}  // namespace trireme
