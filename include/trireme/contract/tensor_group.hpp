#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

template <class Env>
class tensor_group;

/// One rank's term of a sum over its tensor group: the result of a row-cut product. A distinct type that cannot be used
/// as a tensor, so that it is not mistaken for the sum; tensor_group::reduce computes the sum, on one rank as on many.
template <class View>
class partial_sum {
 public:
  explicit partial_sum(View term) noexcept : term_(term) {}

  template <class T, class Space>
  operator tensor_view<T, Space>() const {  // NOLINT(google-explicit-constructor): only for the error message
    static_assert(!std::is_same_v<Space, Space>,
                  "trireme::partial_sum: this is one rank's term of a sum; pass.group.reduce(term) gives the sum");
    return {};
  }

 private:
  template <class Env>
  friend class tensor_group;
  View term_;
};

/// The ranks that share the matrices of each layer, as layers see them: their number, and the few collectives that
/// layers need. A group of one does nothing.
///
/// With sequence parallelism (`cuts_rows()`) each rank holds only its rows of everything between the products (the
/// residual stream, norms, dropout): gather() collects all rows before a product, and reduce() leaves each rank its
/// own.
///
/// Ranks    collective: all members call the same in the same order.
/// Numerics sums in rank order, with the same bits on all members; bfloat16 is added in float and rounded once, after
///          the product has rounded each term.
template <class Env>
class tensor_group : public rank_group<tensor_group<Env>> {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;
  using sums = tensor_view<typename Env::accumulate, space>;

  /// The group of a rank that has whole layers.
  [[nodiscard]] static tensor_group& one();

  [[nodiscard]] bool cuts_rows() const noexcept { return cuts_rows_; }
  /// The rows of `rows` that this rank holds between the products.
  [[nodiscard]] interval rows_here(std::int64_t rows) const noexcept {
    return cuts_rows_ ? this->coordinate().of(rows) : interval{0, rows};
  }

  /// The sum of the members' terms, in the memory of the term: all rows of it, or those of this rank.
  [[nodiscard]] view reduce(partial_sum<view> part) {
    if (this->size() == 1) return part.term_;
    if (!cuts_rows_) {
      do_sum(part.term_);
      return part.term_;
    }
    do_reduce_rows(part.term_);
    auto const here = this->coordinate().of(part.term_.extent(0));
    return part.term_.rows(here.first, here.count);
  }
  /// All rows of x (rows here, columns): x itself unless rows are cut, else a copy in memory of `from`.
  [[nodiscard]] view gather(view x, std::int64_t rows, arena<space>& from) {
    if (!cuts_rows_) return x;
    auto const all = from.template take<typename Env::compute>({rows, x.extent(1)});
    auto const here = this->coordinate().of(rows);
    do_gather_rows(all, x, here);
    return all;
  }
  /// Sums or maxima over the members, in place.
  void sum(sums values) {
    if (this->size() > 1) do_sum_of_sums(values);
  }
  void max(sums values) {
    if (this->size() > 1) do_max(values);
  }

 protected:
  tensor_group(trireme::group_rank own, bool cuts_rows) noexcept
      : rank_group<tensor_group<Env>>(own), cuts_rows_(cuts_rows && own.size > 1) {}

 private:
  virtual void do_sum(view values) = 0;
  virtual void do_reduce_rows(view all) = 0;  // afterwards this rank's rows of it are the sum
  virtual void do_gather_rows(view all, view here, interval range) = 0;
  virtual void do_sum_of_sums(sums values) = 0;
  virtual void do_max(sums values) = 0;

  bool cuts_rows_;
};

namespace detail {

/// The group of one: its collectives are never called.
template <class Env>
class group_of_one final : public tensor_group<Env> {
  using typename tensor_group<Env>::view;
  using typename tensor_group<Env>::sums;

 public:
  group_of_one() noexcept : tensor_group<Env>({}, false) {}

 private:
  void do_sum(view) override {}
  void do_reduce_rows(view) override {}
  void do_gather_rows(view, view, interval) override {}
  void do_sum_of_sums(sums) override {}
  void do_max(sums) override {}
};

}  // namespace detail

template <class Env>
tensor_group<Env>& tensor_group<Env>::one() {
  static detail::group_of_one<Env> group;
  return group;
}

}  // namespace trireme
