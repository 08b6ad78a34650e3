#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/value_store.hpp"

namespace trireme::parallel {

namespace detail {

/// Parameters that layers have, which get their memory from the exchange.
template <class Env>
class model_parameters {
 public:
  using view = tensor_view<typename Env::param, typename Env::space>;
  static constexpr bool lent = false;
  static constexpr std::string_view equal_start = "from the same seed, or call broadcast()";

  explicit model_parameters(std::vector<parameter<Env>*> uses) : uses_(std::move(uses)) {}

  [[nodiscard]] int count() const noexcept { return static_cast<int>(uses_.size()); }
  [[nodiscard]] std::vector<parameter_info> infos() const {
    std::vector<parameter_info> all;
    for (auto const* use : uses_) all.push_back(use->info);
    return all;
  }
  /// Whether gradients have memory only while a unit uses them.
  [[nodiscard]] static bool in_units(auto const& strategy) {
    return strategy.gradients == distribution::shard || sums_in_a_tree(strategy);
  }
  static void expect_possible(auto const& strategy, bool units_known) {
    if (in_units(strategy)) expect_units(strategy, units_known);
  }
  /// The layers whose gradients are bound to buckets.
  [[nodiscard]] std::vector<parameter<Env>*> const& layers() const noexcept { return uses_; }
  /// Where values are before they have a bucket: nowhere.
  [[nodiscard]] view value(bucket_plan::entry const&) const noexcept { return {}; }
  /// Layers read the values of a tensor there from now on, or nowhere.
  void bind(bucket_plan::entry const& entry, view values) const {
    for (int const use : entry.uses)
      uses_[static_cast<std::size_t>(use)]->value = values.empty() ? values : values.reshaped(entry.info.extents);
  }
  /// The values have been written.
  void follow() const noexcept {}

 private:
  std::vector<parameter<Env>*> uses_;
};

/// Gradients that layers write into the buckets themselves.
template <class Env>
class layer_gradients {
  using piece = bucket_plan::tensor_range;
  using view = tensor_view<typename Env::gradient, typename Env::space>;

 public:
  layer_gradients(bucket_plan const&, model_parameters<Env> const&, bool) noexcept {}
  static constexpr bool keeps_buckets = false;  // a step begins with zeros
  void begin(double) noexcept {}
  void weigh(double) noexcept {}
  void take(int, bool, auto&&) noexcept {}
  void complete(auto&&) noexcept {}
  [[nodiscard]] view sum(piece const&, view in_bucket) const noexcept { return in_bucket; }
  void give_back(piece const&, view) const noexcept {}
};

/// Gradients that the caller writes, in memory of its own or in the buckets, and their way into the buckets and back.
///
/// If buckets keep their contents, the first gradient of a step replaces them, and further ones are added. The only
/// gradient of a rank without others remains where it is: it is the sum.
///
/// @tparam Keeps  buckets keep their contents from step to step; else they are zero when a step begins.
template <class Env, class Parameters, bool Keeps>
class callers_gradients {
  using piece = bucket_plan::tensor_range;
  using space = typename Env::space;
  using view = tensor_view<typename Env::gradient, space>;
  using kernels = ops::on<space>;

 public:
  static constexpr bool keeps_buckets = Keeps;

  /// @param alone  there is no other rank.
  callers_gradients(bucket_plan const& plan, Parameters const& parameters, bool alone)
      : plan_(plan), parameters_(parameters), alone_(alone), taken_(plan.entries().size()) {}

  /// @param weight  of this rank's gradients in the sum; valid until the next call.
  void begin(double weight) {
    weigh(weight);
    std::fill(taken_.begin(), taken_.end(), where::nowhere);
  }
  void weigh(double weight) noexcept { weight_ = weight; }
  /// Takes one gradient of this rank.
  /// @param last  no more of this use will follow in this step.
  /// @param open  (use) -> its place in the bucket.
  void take(int use, bool last, auto&& open) {
    if (!plan_.trains(use)) return;
    auto const e = plan_.entry_of_use(use);
    auto const theirs = parameters_.gradient(plan_.at(e));
    auto const before = std::exchange(taken_[static_cast<std::size_t>(e)], where::bucket);
    if constexpr (Keeps) {
      if (before == where::nowhere) {
        if (last && alone_) {
          taken_[static_cast<std::size_t>(e)] = where::caller;
          return scale(theirs);
        }
        auto const ours = open(use);
        constexpr std::int64_t stretch = 16 * block_elements;  // scaled while it is in the cache
        for (std::int64_t at = 0; at < ours.size(); at += stretch) {
          auto const part = ours.flat(at, std::min(stretch, ours.size() - at));
          if (!in_place(theirs, ours)) kernels::copy(part, constant(theirs.flat(at, part.size())));
          scale(part);
        }
        return;
      }
    }
    kernels::accumulate(open(use), constant(theirs), weight_);
  }
  /// Before sums are completed: what this rank has not got is zero.
  void complete(auto&& open) {
    for (int use = 0; Keeps && use < parameters_.count(); ++use) {
      if (plan_.trains(use) && taken_[static_cast<std::size_t>(plan_.entry_of_use(use))] == where::nowhere)
        kernels::fill(open(use), 0.0);
    }
  }
  /// The sum of a piece, which is in the bucket unless its only term has remained with the caller.
  [[nodiscard]] view sum(piece const& of, view in_bucket) const {
    if constexpr (Keeps) {
      if (taken_[static_cast<std::size_t>(of.entry)] == where::caller) return theirs(of);
    }
    return in_bucket;
  }
  void give_back(piece const& of, view sum) const {
    if (!in_place(theirs(of), sum)) kernels::copy(theirs(of), constant(sum));
  }

 private:
  enum class where : std::uint8_t { nowhere, bucket, caller };

  [[nodiscard]] auto theirs(piece const& of) const {
    return parameters_.gradient(plan_.at(of.entry)).flat(of.in_entry, of.count);
  }
  void scale(view gradient) const {
    if (!exactly_equal(weight_, 1)) kernels::scale(gradient, weight_);
  }
  static bool in_place(auto a, auto b) noexcept {
    return static_cast<void const*>(a.address()) == static_cast<void const*>(b.address());
  }
  template <class T>
  static tensor_view<T const, space> constant(tensor_view<T, space> view) {
    return view;
  }

  bucket_plan const& plan_;
  Parameters const& parameters_;
  bool alone_;
  std::vector<where> taken_;  // by entry: where this step's gradient is
  double weight_ = 1;
};

}  // namespace detail

// Whose memory an exchange works in: the parameters, the values that layers read, and this rank's gradients. The
// exchange and its sums are the same for all. A memory of your own has the same three members.

/// The exchange allocates parameters and gradients, and binds the layers to them.
template <class Env, class Comm, class Placement>
struct own_memory {
  using given = std::vector<parameter<Env>*>;
  using parameters = detail::model_parameters<Env>;
  using values = detail::value_store<Env, Comm, Placement, parameters>;
  template <bool Keeps>
  using gradients = detail::layer_gradients<Env>;
};

/// Parameters and gradients are the caller's.
template <class Env, class Comm, class Placement>
struct callers_memory {
  using given = std::vector<foreign_parameter<typename Env::param, typename Env::space>>;
  using parameters = detail::foreign_parameters<Env>;
  using values = detail::value_store<Env, Comm, Placement, parameters>;
  template <bool Keeps>
  using gradients = detail::callers_gradients<Env, parameters, Keeps>;
};

}  // namespace trireme::parallel
