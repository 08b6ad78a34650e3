#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends each gradient matrix as a product of two narrow ones: an approximation of low rank, which improves from step
/// to step (warm start). What a step leaves out is added to the next gradient (error feedback).
///
/// Method   [Vogels et al., "PowerSGD", 2019]: one power iteration per step. P = M Q is summed over the ranks and
///          orthonormalised, Q = M^T P is summed, and P Q^T is the gradient.
/// Shapes   a tensor (n, ...) is a matrix of n rows and m columns. If `rank` (n + m) numbers are more than half of n m,
///          it is sent uncompressed, in the round of the P's, and so are tensors of one dimension or tied between
///          stages.
/// Bytes    two all-reduces per bucket, of `rank` (n + m) numbers per matrix. Kept: two residuals of the gradient's
///          size, and two Q's.
/// Ranks    each rank has its own residual; Q is the same on all of them. A single rank compresses, too.
/// Numerics lossy and biased, but if the sum of the gradients has no higher rank, the result is exact up to rounding.
///          All ranks compute the same bits, also on different CPUs.
/// Errors   config_error unless rank >= 1.
/// @models collective_compressor          @see compression::top_k
struct power_sgd {
  TRIREME_NEEDS_KERNELS("compression::power_sgd", low_rank);
  using policy_category = slot::compression;
  int rank = 4;
  friend bool operator==(power_sgd const&, power_sgd const&) = default;

  void validate() const {
    if (rank < 1) throw config_error(text("trireme::compression::power_sgd: rank ", rank, " is not at least 1"));
  }

  template <class Env, class Comm>
  class instance {
    using space = typename Env::space;
    using element = typename Env::gradient;
    using view = tensor_view<element, space>;
    using constant = tensor_view<element const, space>;
    using kernels = ops::on<space>;
    using request = decltype(std::declval<Comm&>().all_reduce_async(view{}, reduction::sum{}));

   public:
    instance(power_sgd const& description, bucket_form const& form, Comm& world) : world_(world) {
      std::int64_t const r = description.rank;
      description.validate();
      std::int64_t p_size = 0, q_size = 0, all = 0;
      for (auto const& [info, offset] : form.tensors) {
        auto const n = info->extents.rank() > 1 ? info->extents[0] : 1;
        auto const m = info->extents.size() / n;
        if (info->tied || n == 1 || 2 * r * (n + m) > n * m) {
          plain_.push_back({offset, p_size, shape{n * m}});
          p_size += n * m;
          continue;
        }
        auto q_info = *info;
        q_info.extents = {m, r};
        matrices_.push_back({info, q_info, {offset, all, {n, m}}, {0, p_size, {n, r}}, {0, q_size, {m, r}}});
        p_size += n * r;
        q_size += m * r;
        all += n * m;
      }
      sent_p_ = message_tensor<element, space>(world, shape{p_size});
      sent_q_ = message_tensor<element, space>(world, shape{q_size});
      for (auto* const each : {&residual_, &next_}) *each = numbers(shape{all});
      for (auto* const each : {&q_, &own_q_}) *each = numbers(shape{q_size});
      kernels::fill(residual_.view(), 0.0);
      for (auto const& [info, q_info, whole, p, q] : matrices_)
        kernels::initialise(q.of(q_), {initial::distribution::normal, 1.0}, 0, hash_name("power_sgd_q/" + info->name));
    }

    void begin(view gradient, double scale) {
      gradient_ = gradient;
      scale_ = scale;
      for (auto const& [info, q_info, whole, p, q] : matrices_)
        kernels::product_of_sum(p.of(sent_p_), whole.in(gradient), constant(whole.of(residual_)), scale,
                                constant(q.of(q_)));
      for (auto const& each : plain_) kernels::copy(each.of(sent_p_), constant(each.in(gradient)));
      rounds_left_ = matrices_.empty() ? 1 : 2;
      pending_.emplace(world_.all_reduce_async(sent_p_.view(), reduction::sum{}));
    }
    [[nodiscard]] bool test() { return !pending_ || (pending_->test() && rounds_left_ == 1); }
    bool turn() {
      if (!pending_) return true;
      trireme::order(*pending_);
      pending_.reset();
      if (--rounds_left_ == 1) {
        begin_second();
        return false;
      }
      // A rank does not send this part of its own gradient: M - P (M^T P)^T.
      for (auto const& [info, q_info, whole, p, q] : matrices_)
        kernels::rest_and_product(whole.of(next_), whole.in(gradient_), constant(p.of(sent_p_)), constant(q.of(own_q_)),
                                  constant(q.of(sent_q_)), 1 / scale_);
      for (auto const& each : plain_) kernels::copy(each.in(gradient_), constant(each.of(sent_p_)));
      return true;
    }
    void commit() {
      std::swap(residual_, next_);
      kernels::copy(q_.view(), constant(sent_q_.view()));
      // Only the space that it spans matters; if gradients had a lower rank, this also tries new directions.
      for (auto const& it : matrices_) kernels::orthonormalise(it.q.of(q_));
    }
    template <class F>
    void visit_state(state_scope scope, F&& f) {
      for (auto const& [info, q_info, whole, p, q] : matrices_) {
        f("residual/" + info->name, state_location{*info, 0, true, 1}, whole.of(residual_));
        if (scope == state_scope::kept || (world_.rank() == 0 && info->is_owner))
          f("power_sgd_q/" + info->name, state_location{q_info}, q.of(q_));
      }
    }
    [[nodiscard]] std::int64_t bytes() const {
      std::size_t sum = 0;
      for (auto const* const each : {&sent_p_, &sent_q_, &own_q_, &q_, &residual_, &next_}) sum += each->view().bytes();
      return static_cast<std::int64_t>(sum);
    }

   private:
    using numbers = tensor<element, space>;
    static constexpr auto no = ops::transposed::no, yes = ops::transposed::yes;
    struct part {
      std::int64_t in_bucket, first;  // its first element in the bucket, and in the list of its kind
      shape extents;
      [[nodiscard]] view in(view bucket) const { return bucket.flat(in_bucket, extents.size()).reshaped(extents); }
      [[nodiscard]] view of(numbers const& all) const {
        return all.view().flat(first, extents.size()).reshaped(extents);
      }
    };
    struct matrix {
      parameter_info const* info;
      parameter_info q_info;
      part whole, p, q;
    };
    void begin_second() {
      for (auto const& [info, q_info, whole, p, q] : matrices_) {
        kernels::orthonormalise(p.of(sent_p_));
        kernels::small_product(q.of(sent_q_), constant(whole.in(gradient_)), yes, constant(p.of(sent_p_)), no);
      }
      kernels::copy(own_q_.view(), constant(sent_q_.view()));
      pending_.emplace(world_.all_reduce_async(sent_q_.view(), reduction::sum{}));
    }

    Comm& world_;
    std::vector<matrix> matrices_;
    std::vector<part> plain_;
    numbers sent_p_, sent_q_;  // uncompressed tensors are stored with the P's
    numbers own_q_;            // this rank's part of the sum of Q's
    numbers q_;                // the start of the next step
    numbers residual_, next_;  // not sent yet; the same if the step is taken
    view gradient_;
    double scale_ = 1;
    int rounds_left_ = 0;
    std::optional<request> pending_;
  };
};

[[nodiscard]] inline std::string to_string(power_sgd const& c) {
  return text("compression::power_sgd{.rank = ", c.rank, "}");
}

}  // namespace trireme::compression
