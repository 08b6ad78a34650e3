#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/ops/update_batch.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/partition.hpp"

namespace trireme {

/// The moments of the parameters that this rank updates: for an element-wise optimizer one vector per moment and
/// bucket, for an optimizer of whole tensors one tensor per moment and parameter, in the shapes that the optimizer
/// gives them. A parameter made of several tensors (parameter_info::fused, stacked) is updated one tensor after the
/// other.
///
/// Threads  one owner; the exchange must outlive it.
/// Errors   config_error if an optimizer needs whole tensors and this rank holds only a part of one.
template <class Env, class Optimizer>
class optimizer_state {
 public:
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;

  /// @param exchange  made with bucket_requirements_of(optimizer).
  template <class Exchange>
  explicit optimizer_state(Exchange const& exchange, Optimizer const& optimizer = Optimizer{})
      : plan_(exchange.plan()),
        own_(exchange.own()),
        learner_(exchange.learner()),
        whole_(!element_optimizer<Optimizer, Env> || wants_whole_tensors(optimizer)) {
    for (auto const& name : optimizer.moment_names) names_.emplace_back(name);
    tensors_.resize(plan_.entries().size());
    for (int b = 0; b < plan_.trained_buckets(); ++b) {
      if (whole_) {
        own_.for_each_range(state_scope::kept, b, [&](auto const& range) { add(range, optimizer); });
      } else {
        for (std::size_t m = 0; m < names_.size(); ++m)
          moments_.emplace_back().values = tensor<master, space>(shape{own_.owned(b).count});
      }
    }
    clear();
  }
  optimizer_state(optimizer_state const&) = delete;
  optimizer_state& operator=(optimizer_state const&) = delete;

  /// Resets the moments to their values before the first step.
  void clear() {
    for (auto const& each : moments_) {
      if (!each.values.view().empty()) ops::on<space>::fill(each.values.view(), 0.0);
    }
  }

  /// Bytes    of this rank's moments, and of the scratch memory for updates of whole tensors.
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t sum = 0;
    for (auto const& each : moments_) sum += static_cast<std::int64_t>(each.values.view().bytes());
    return sum + static_cast<std::int64_t>(scratch_.peak_bytes());
  }

  /// Updates everything that this rank owns.
  /// @param scale     of gradients: the clipping factor divided by the loss scale.
  /// @param measured  of statistics that layers measure (parameter_info::running): 1 / the loss scale.
  /// @param updates   number of earlier updates; -1: every step was one.
  template <class Exchange>
  void update(Exchange& exchange, Optimizer const& optimizer, std::int64_t step, double scale, double measured = 1,
              std::int64_t updates = -1) {
    ops::update_batch<space> batch;
    for (auto const& each : exchange.segments()) {
      update_segment<Env> segment = each;
      if (segment.info->running > 0) {
        follow(segment, measured);
        continue;
      }
      segment.gradient.scale *= scale;
      segment.updates = updates;
      if constexpr (whole_tensor_optimizer<Optimizer, Env>) {
        if (whole_) {
          update_tensors(segment, tensors_of(each.range), optimizer, step);
          continue;
        }
      }
      views_.clear();
      for (std::size_t m = 0; m < names_.size(); ++m) views_.push_back(moment_of(m, each.bucket, each.range));
      segment.moments = views_;
      if constexpr (element_optimizer<Optimizer, Env>) optimizer.update(segment, step);
    }
    batch.finish();
  }

  /// Visits the moments of a piece that this rank updates; see contract/state.hpp.
  template <class F>
  void visit_range(int bucket, parallel::bucket_plan::tensor_range const& range, F&& f) const {
    if (bucket >= plan_.trained_buckets() || plan_.at(range.entry).info.running > 0) return;
    if (whole_ && range.in_entry > 0) return;  // a tensor's moments belong to the owner of its first element
    auto const& info = plan_.at(range.entry).info;
    for (std::size_t m = 0; m < names_.size() && !whole_; ++m) {
      auto const values = moment_of(m, bucket, range);
      if (!values.empty())
        f(names_[m] + "/" + info.name, state_location{info, range.in_entry, false, 0, learner_}, values);
    }
    if (!whole_) return;
    auto const& all = tensors_of(range);
    for (std::size_t i = 0; i < all.infos.size() * names_.size(); ++i) {
      auto const& one = moments_[all.moments + i];
      if (one.values.view().empty()) continue;
      f(names_[i % names_.size()] + "/" + one.info.name, state_location{one.info, 0, false, 0, learner_},
        one.values.view().flat());
    }
  }
  template <class F>
  void visit_state(state_scope scope, F&& f) const {
    auto const visit = [&](int b, parallel::bucket_plan::tensor_range const& range) { visit_range(b, range, f); };
    own_.for_each_range_of(scope, plan_.trained_buckets(), visit);
  }

 private:
  struct moment {
    parameter_info info;  // of the moment itself, if the moment is one tensor
    tensor<master, space> values;
  };
  // The tensors of one parameter, for an optimizer of whole tensors.
  struct tensors {
    std::optional<tensors_within> within;
    std::vector<parameter_info> infos;  // of the tensors that are side by side
    std::size_t moments = 0;            // the first moment of the first tensor; those of the next one follow
  };

  [[nodiscard]] tensors const& tensors_of(parallel::bucket_plan::tensor_range const& range) const {
    return tensors_[static_cast<std::size_t>(range.entry)];
  }
  [[nodiscard]] view moment_of(std::size_t which, int bucket, parallel::bucket_plan::tensor_range const& range) const {
    auto const& all = moments_[static_cast<std::size_t>(bucket) * names_.size() + which].values;
    return own_.in_slice(all.view(), bucket, range);
  }

  void add(parallel::bucket_plan::tensor_range const& range, Optimizer const& optimizer) {
    auto const& info = plan_.at(range.entry).info;
    if (info.running > 0) return;
    if (is_cut(info) || range.count != info.extents.size()) refuse(info);
    auto& all = tensors_[static_cast<std::size_t>(range.entry)];
    all.moments = moments_.size();
    auto const& within = all.within.emplace(info);
    for (std::size_t band = 0; band < within.bands(); ++band) {
      auto const& one = all.infos.emplace_back(within.info(band));
      if constexpr (has_moment_shape<Optimizer>) {
        for (std::size_t m = 0; m < names_.size(); ++m) {
          auto& made = moments_.emplace_back(moment{info, {}});
          if (within.bands() > 1) made.info.name += text("[", band, "]");
          made.info.whole = made.info.first = {};
          made.info.extents = optimizer.moment_shape(m, one);
          if (info.stacked && made.info.extents.size() > 0) stack(made.info, info);
          if (made.info.extents.size() > 0) made.values = tensor<master, space>(made.info.extents);
        }
      }
    }
  }
  // Whether the rank holds only a part of a tensor in it. A stacked one may be cut along its first axis, between
  // tensors.
  [[nodiscard]] static bool is_cut(parameter_info const& info) {
    for (int axis = info.stacked ? 1 : 0; axis < info.whole.rank(); ++axis) {
      if (info.extents[axis] != info.whole[axis]) return true;
    }
    return false;
  }
  // Makes the moments of all tensors of a stack, or of a part of it, one tensor.
  static void stack(parameter_info& moments, parameter_info const& of) {
    auto const one = moments.extents;
    moments.extents = {of.is_shard() ? of.whole[0] : of.extents[0]};
    for (auto const extent : one.extents()) moments.extents.push_back(extent);
    if (of.is_shard()) moments = shard_of(moments, 0, {of.first[0], of.extents[0]});
  }
  [[noreturn]] static void refuse(parameter_info const& info) {
    if (!is_cut(info)) {
      throw config_error(text("trireme::optimizer_state: the optimizer needs whole tensors, but the exchange cuts \"",
                              info.name, "\" between ranks; pass the optimizer to make_exchange as well"));
    }
    throw config_error(
        text("trireme::trainer: the optimizer needs whole tensors, but each rank holds only a part of \"", info.name,
             "\"; use one that works element by element, such as optim::adamw, or leave ",
             "parallel::", info.distributed.empty() ? "tensor" : info.distributed, " out"));
  }

  // One step of a running mean, or of an update that follows signs.
  void follow(update_segment<Env> const& segment, double scale) {
    using kernels = ops::on<space>;
    auto const value = segment.value;
    double const by = segment.info->running;
    using measured = tensor_view<typename Env::gradient const, space>;
    if constexpr (requires(measured sum) { kernels::step_against_sign(value, sum, by); }) {
      if (segment.info->by_sign) {
        kernels::step_against_sign(value, sum_of_terms(segment), by);
        scratch_.reset();
      } else {
        kernels::scale(value, 1 - by);
        for (auto const& term : segment.gradient.terms)
          kernels::accumulate(value, term, by * scale * segment.gradient.scale);
      }
      for (auto const& output : segment.outputs) kernels::copy(output, tensor_view<master const, space>(value));
    } else {
      throw config_error(text("trireme::optimizer_state: \"", segment.info->name,
                              "\" is measured by a layer, which needs ops::on<Space>::step_against_sign(); "
                              "this memory space has none"));
    }
  }

  // Uses scratch memory if there are several.
  tensor_view<typename Env::gradient const, space> sum_of_terms(update_segment<Env> const& segment) {
    if (segment.gradient.terms.size() == 1) return segment.gradient.terms.front();
    auto const sum = scratch_.template take<typename Env::gradient>({segment.value.size()});
    ops::on<space>::reduce(std::span(&sum, 1), segment.gradient.terms);
    return sum;
  }

  // One tensor after the other. A tensor that is not contiguous in the parameter is copied out, and its new value is
  // copied back.
  void update_tensors(update_segment<Env> const& segment, tensors const& all, Optimizer const& optimizer,
                      std::int64_t step) {
    auto const& within = *all.within;
    auto const gradient = sum_of_terms(segment);
    bool const alone = within.whole() && within.count() == 1;
    for (std::int64_t place = 0; place < within.count(); ++place) {
      for (std::size_t band = 0; band < within.bands(); ++band) {
        auto const& info = all.infos[band];
        auto const mark = scratch_.mark();
        auto const value = taken_out(segment.value, within, place, band, info.extents);
        views_.clear();
        for (std::size_t m = 0; m < names_.size(); ++m)
          views_.push_back(of_place(moments_[all.moments + band * names_.size() + m].values.view(), place, within));
        optimizer.update(tensor_update<Env>{info, value, views_, taken_out(gradient, within, place, band, info.extents),
                                            segment.gradient.scale, alone ? segment.outputs : no_outputs(), scratch_,
                                            segment.updates},
                         step);
        if (!within.whole()) {
          auto const at = within.rows(place, band);
          ops::on<space>::copy_blocks(segment.value, {at.first, 0, at.row}, value, {0, 0, at.width},
                                      {1, at.count, at.width});
        }
        scratch_.rewind(mark);
      }
    }
    for (auto const& output : alone ? no_outputs() : segment.outputs)
      ops::on<space>::copy(output, tensor_view<master const, space>(segment.value));
    scratch_.reset();
  }
  [[nodiscard]] static std::span<tensor_view<typename Env::param, space> const> no_outputs() { return {}; }
  template <class T>
  [[nodiscard]] tensor_view<T, space> taken_out(tensor_view<T, space> from, tensors_within const& within,
                                                std::int64_t place, std::size_t band, shape const& extents) {
    if (within.whole()) return from.flat(place * extents.size(), extents.size()).reshaped(extents);
    auto const out = scratch_.template take<std::remove_const_t<T>>(extents);
    auto const at = within.rows(place, band);
    ops::on<space>::copy_blocks(out, {0, 0, at.width}, from, {at.first, 0, at.row}, {1, at.count, at.width});
    return out;
  }
  // The moment of one tensor of a stack: without the first axis.
  [[nodiscard]] static view of_place(view all, std::int64_t place, tensors_within const& within) {
    if (all.empty() || !within.stacked()) return all;
    shape one;
    for (auto const extent : all.extents().extents().subspan(1)) one.push_back(extent);
    return all.flat(place * one.size(), one.size()).reshaped(one);
  }

  parallel::bucket_plan const& plan_;
  parallel::partition const& own_;
  std::int64_t learner_;  // -1: ranks do not take steps apart
  bool whole_;
  std::vector<std::string> names_;
  std::vector<moment> moments_;   // by bucket or by tensor, then by name
  std::vector<tensors> tensors_;  // by entry, of an optimizer of whole tensors
  std::vector<view> views_;       // kept so that a step allocates nothing
  arena<space> scratch_;
};

}  // namespace trireme
