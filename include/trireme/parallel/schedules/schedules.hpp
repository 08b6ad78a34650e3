#pragma once

#include <string_view>

#include "trireme/parallel/schedules/check.hpp"
#include "trireme/parallel/schedules/cut_units.hpp"
#include "trireme/parallel/schedules/one_way.hpp"
#include "trireme/parallel/schedules/simulate.hpp"
#include "trireme/parallel/schedules/step.hpp"
#include "trireme/parallel/schedules/two_chunks.hpp"

namespace trireme::schedule {

/// Calls f(schedule{}) for each schedule that comes with trireme.
template <class F>
constexpr void for_each_schedule(F&& f) {
  f(gpipe{});
  f(one_f_one_b{});
  f(interleaved{});
  f(zb_h1{});
  f(zb_v{});
  f(dual_pipe{});
  f(dual_pipe_v{});
}

/// Calls f(schedule{}) for the schedule of that name, as on a command line; false if there is none.
template <class F>
constexpr bool with_named(std::string_view name, F&& f) {
  bool found = false;
  for_each_schedule([&]<class Schedule>(Schedule const& each) {
    if (Schedule::name != name) return;
    found = true;
    f(each);
  });
  return found;
}

}  // namespace trireme::schedule
