#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/contract/model.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::detail {

/// Checks what the ranks of a tensor group must agree on at the end of a unit: equal numbers or, where rows are split,
/// each rank's own rows. It detects a missing sum in a unit and names the unit.
///
/// Numbers are compared by hash: in training steps 1, 2, 4, 8, ... at level normal, in every pass at level
/// communication. A comparison is a collective of eight numbers. Rows are always checked. Groups of one rank and
/// memory without elements are not checked.
///
/// Ranks    collective over the group where numbers are compared.
/// Errors   assertion_error on all ranks of the group.
template <class Env>
class unit_edges {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  /// Begins a training step or another pass.
  void begin(tensor_group<Env> const& group, bool training) {
    looks_ = group.size() > 1 && !without_elements<space> && asserts(assertion_level::normal);
    auto const step = training ? steps_++ : 2;
    bool const sampled = (step & (step + 1)) == 0;
    compares_ = looks_ && !group.cuts_rows() && (sampled || asserts(assertion_level::communication));
  }

  /// Checks a unit's result.
  /// @param what  "output" of forward, "gradient" of backward.
  /// @param name  () -> the unit's name.
  template <class Name>
  void check(pass<Env>& pass, view values, std::string_view what, Name&& name) {
    if (!looks_) return;
    if (pass.group.cuts_rows()) return check_rows(pass, values, what, name);
    if (compares_) compare(pass, values, what, name);
  }

  /// Adds the unit's name to an error of the device in which the unit computes.
  [[nodiscard]] static device_error in_unit(std::string_view direction, std::string const& name,
                                            device_error const& problem) {
    return device_error(text("trireme::model: ", direction, " of ", name, ": ", problem.what()));
  }
  /// Adds the unit's name, and the rows that the rank holds, to an error thrown in the unit.
  [[nodiscard]] static assertion_error in_unit(pass<Env> const& pass, std::string_view direction,
                                               std::string const& name, assertion_error const& problem) {
    auto const hint = pass.group.cuts_rows()
                          ? text("; under parallel::sequence rank ", pass.group.rank(), " of ", pass.group.size(),
                                 " has its part of the rows between products: "
                                 "pass.group.gather() returns all rows, pass.group.reduce() its part of a sum")
                          : std::string();
    return assertion_error(text("trireme::model: ", direction, " of ", name, ": ", problem.what(), hint));
  }

 private:
  template <class Name>
  void compare(pass<Env>& pass, view values, std::string_view what, Name&& name) {
    using number = typename Env::accumulate;
    using kernels = ops::on<space>;
    auto const hash = mix(kernels::hash(tensor_view<typename Env::compute const, space>(values), 0, 0) +
                          static_cast<std::uint64_t>(values.size()));
    std::array<number, 8> parts;  // of 16 bits, which a float holds exactly: the maximum, and minus the minimum
    for (std::size_t i = 0; i < 4; ++i) {
      parts[i] = static_cast<number>((hash >> (16 * i)) & 0xFFFF);
      parts[i + 4] = -parts[i];
    }
    auto const mark = pass.scratch.mark();
    auto const shared = pass.scratch.template take<number>({8});
    kernels::upload(shared, std::span<number const>(parts));
    pass.group.max(shared);
    kernels::download(std::span<number>(parts), shared);
    pass.scratch.rewind(mark);
    for (std::size_t i = 0; i < 4; ++i) {
      if (exactly_equal(parts[i], -parts[i + 4])) continue;
      throw assertion_error(text(
          "trireme::model: the ", what, " of ", name(), " is not the same on the ", how_many(pass.group.size(), "rank"),
          " of its tensor group, which share its matrices; ", "a sum over them is missing: call pass.group.reduce()"));
    }
  }
  // Only for units with rows that are split between ranks: a unit may have rows of its own kind.
  template <class Name>
  void check_rows(pass<Env> const& pass, view values, std::string_view what, Name&& name) const {
    if (values.rank() == 0) return;
    auto const rows = values.extent(0);
    std::int64_t all = 1;
    bool is_all = false;
    std::int64_t here = 0;
    for (int axis = 0; axis < pass.batch.inputs.extents.rank(); ++axis) {
      all *= pass.batch.inputs.extents[axis];
      auto const share = pass.group.rows_here(all).count;
      if (rows == share) return;
      if (rows != all) continue;
      is_all = true;
      here = share;
    }
    if (!is_all) return;
    throw assertion_error(text("trireme::model: the ", what, " of ", name(), " has all ", how_many(rows, "row"),
                               " on rank ", pass.group.rank(), " of ", pass.group.size(),
                               ", but under parallel::sequence it should have ", here,
                               " of them; pass.group.reduce() returns a rank's own rows of a sum"));
  }

  std::uint64_t steps_ = 0;
  bool looks_ = false;
  bool compares_ = false;
};

}  // namespace trireme::detail
