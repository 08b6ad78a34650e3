#pragma once

namespace trireme::parallel {

// How a pass goes through the units [first, last), and what it asks of the memory of their parameters. The engine walks
// with its units; a rank without samples walks alike, because gathering values is collective.
// Hooks: gather(unit) before values are read, prefetch(unit) for the next one, release(unit) afterwards.

/// Calls body(unit) for each unit.
/// @param keep_last  the last unit's values are not released: backward begins with it.
template <class Hooks, class Body>
void walk_forward(Hooks& hooks, int first, int last, bool keep_last, Body&& body) {
  for (int unit = first; unit < last; ++unit) {
    bool const is_last = unit + 1 == last;
    hooks.gather(unit);
    if (!is_last) hooks.prefetch(unit + 1);
    body(unit);
    if (!is_last || !keep_last) hooks.release(unit);
  }
}

/// Calls open(unit), for the memory of its gradients, then body(unit), for each unit from the last one on.
template <class Hooks, class Open, class Body>
void walk_backward(Hooks& hooks, int first, int last, Open&& open, Body&& body) {
  for (int unit = last; unit-- > first;) {
    hooks.gather(unit);
    open(unit);
    if (unit > first) hooks.prefetch(unit - 1);
    body(unit);
    hooks.release(unit);
  }
}

}  // namespace trireme::parallel
