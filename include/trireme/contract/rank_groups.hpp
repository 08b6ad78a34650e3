#pragma once

#include <array>
#include <cstddef>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"

namespace trireme {

/// The groups of ranks that share the work of each unit with this rank: the axes of a mesh offer them, units look them
/// up by type. A group that nobody has offered is that of one rank, `Group::one()`.
///
/// Threads  refers to the groups, which must outlive it.
template <class Env>
class rank_groups {
 public:
  rank_groups() = default;
  /// One group, and no other.
  template <class Group>
  requires requires { typename Group::offered_as; }
  rank_groups(Group& group) { offer(group); }  // NOLINT(google-explicit-constructor)
  /// Nobody shares work with this rank.
  [[nodiscard]] static rank_groups const& none() {
    static constexpr rank_groups nobody{};
    return nobody;
  }

  /// From now on units find this group.
  /// @param shares_samples  whether its members have parts of the same samples: a rank that works on whole ones (to
  ///                        predict) does without it.
  template <class Group>
  void offer(Group& group, bool shares_samples = false) {
    using type = typename Group::offered_as;
    if (count_ == most)
      throw config_error(text("trireme::rank_groups: more than ", most, " groups are offered to the units of a model"));
    offered_[count_++] = {&key<type>, static_cast<type*>(&group), shares_samples};
  }
  template <class Group>
  [[nodiscard]] Group& of() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (offered_[i].type == &key<Group>) return *static_cast<Group*>(offered_[i].group);
    }
    return Group::one();
  }
  /// Those of a rank that works on whole samples.
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
  inline static constexpr char key = 0;  // its address stands for the type
  struct offer_of {
    void const* type = nullptr;
    void* group = nullptr;
    bool shares_samples = false;
  };

  std::array<offer_of, most> offered_{};
  std::size_t count_ = 0;
};

/// What groups that units look up have in common: who this rank is among the members.
///
/// A group of your own is a class with virtual functions for what units need of the other ranks:
/// `class my_group : public rank_group<my_group>`, with a static `one()`, the group of a rank that is alone. A unit has
/// it by `my_group::of(pass)`.
template <class Group>
class rank_group {
 public:
  using offered_as = Group;

  virtual ~rank_group() = default;
  rank_group(rank_group const&) = delete;
  rank_group& operator=(rank_group const&) = delete;

  /// The one that has been offered to a unit, by its pass or when it was made; else that of one rank.
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
  [[nodiscard]] trireme::share share() const noexcept { return own_; }

 protected:
  explicit rank_group(trireme::share own) noexcept : own_(own) {}

 private:
  trireme::share own_;
};

}  // namespace trireme
