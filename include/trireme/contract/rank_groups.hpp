#pragma once

#include <array>
#include <cstddef>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"

namespace trireme {

/// The groups of ranks that share the work of each unit with this rank: the axes of a mesh offer them, units look them
/// up by type. A group that no axis offers has one rank, `Group::one()`.
///
/// Threads  refers to the groups, which must outlive it.
template <class Env>
class rank_groups {
 public:
  rank_groups() = default;
  /// A single group.
  template <class Group>
  requires requires { typename Group::offered_as; }
  rank_groups(Group& group) { offer(group); }  // NOLINT(google-explicit-constructor)
  /// No groups: this rank works alone.
  [[nodiscard]] static rank_groups const& none() {
    static constexpr rank_groups nobody{};
    return nobody;
  }

  /// Adds this group, for units to find.
  /// @param shares_samples  whether its members have parts of the same samples: to predict, a rank works on whole
  ///                        samples, and leaves this group out.
  template <class Group>
  void offer(Group& group, bool shares_samples = false) {
    using type = typename Group::offered_as;
    if (count_ == most)
      throw config_error(
          text("trireme::rank_groups: a model's units can use at most ", most, " groups; use fewer axes"));
    offered_[count_++] = {&key<type>, static_cast<type*>(&group), shares_samples};
  }
  template <class Group>
  [[nodiscard]] Group& of() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (offered_[i].type == &key<Group>) return *static_cast<Group*>(offered_[i].group);
    }
    return Group::one();
  }
  /// The groups of a rank that works on whole samples.
  [[nodiscard]] rank_groups with_whole_samples() const {
    rank_groups some;
    for (std::size_t i = 0; i < count_; ++i) {
      if (!offered_[i].shares_samples) some.offered_[some.count_++] = offered_[i];
    }
    return some;
  }

 private:
  static constexpr std::size_t most = 8;
  template <class Group>
  inline static constexpr char key = 0;  // its address identifies the type
  struct offer_of {
    void const* type = nullptr;
    void* group = nullptr;
    bool shares_samples = false;
  };

  std::array<offer_of, most> offered_{};
  std::size_t count_ = 0;
};

/// The base of groups that units look up: this rank's number among the members.
///
/// A group of your own is a class with virtual functions for the communication that units need: `class my_group :
/// public rank_group<my_group>`, with a static `one()`, the group of a single rank. A unit gets it by
/// `my_group::of(pass)`.
template <class Group>
class rank_group {
 public:
  using offered_as = Group;

  virtual ~rank_group() = default;
  rank_group(rank_group const&) = delete;
  rank_group& operator=(rank_group const&) = delete;

  /// The group that was offered to a unit, by its pass or when it was made; otherwise the group of one rank.
  template <class Env>
  [[nodiscard]] static Group& of(rank_groups<Env> const& groups) {
    return groups.template of<Group>();
  }
  template <class Pass>
  [[nodiscard]] static Group& of(Pass const& pass) requires requires {
    pass.groups;
  }
  { return of(pass.groups); }

  [[nodiscard]] int rank() const noexcept { return own_.rank; }
  [[nodiscard]] int size() const noexcept { return own_.size; }
  [[nodiscard]] trireme::group_rank coordinate() const noexcept { return own_; }

 protected:
  explicit rank_group(trireme::group_rank own) noexcept : own_(own) {}

 private:
  trireme::group_rank own_;
};

}  // namespace trireme
