#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme {

/// The moments of what this rank updates: of an element-wise optimizer as many stretches a bucket as it names, of an
/// optimizer of whole tensors as many tensors a parameter, in the shapes that it gives them.
///
/// Threads  one owner; the exchange must outlive it.
/// Errors   config_error where an optimizer needs whole tensors and this rank holds a part of one.
template <class Env, class Optimizer>
class optimizer_state {
 public:
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;

  /// @param exchange  made with wishes_of(optimizer).
  template <class Exchange>
  explicit optimizer_state(Exchange const& exchange, Optimizer const& optimizer = Optimizer{})
      : plan_(exchange.plan()),
        of_rank_(Exchange::replicas_differ),
        whole_(!element_optimizer<Optimizer, Env> || wants_whole_tensors(optimizer)) {
    for (auto const& name : optimizer.moment_names) names_.emplace_back(name);
    of_entry_.resize(plan_.entries().size());
    for (int b = 0; b < plan_.trained_buckets(); ++b) {
      owned_.push_back(exchange.owned_range(b));
      accounted_.push_back(exchange.accounted_range(b));
      auto const [first, count] = owned_.back();
      if (whole_) {
        for (auto const piece : plan_.pieces(b, first, count)) add(piece, optimizer);
      } else {
        for (std::size_t m = 0; m < names_.size(); ++m) moments_.push_back({{}, tensor<master, space>(shape{count})});
      }
    }
    clear();
  }
  optimizer_state(optimizer_state const&) = delete;
  optimizer_state& operator=(optimizer_state const&) = delete;

  /// As before the first step.
  void clear() {
    for (auto const& each : moments_) {
      if (!each.values.view().empty()) ops::on<space>::fill(each.values.view(), 0.0);
    }
  }

  /// Bytes of the moments of this rank, and of what the update of one whole tensor has taken besides.
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t sum = 0;
    for (auto const& each : moments_) sum += static_cast<std::int64_t>(each.values.view().bytes());
    return sum + static_cast<std::int64_t>(scratch_.peak_bytes());
  }

  /// Updates everything that this rank owns.
  /// @param scale     of gradients: the clipping factor, divided by the loss scale.
  /// @param measured  of what layers have measured (parameter_info::running): 1 / the loss scale.
  template <class Exchange>
  void update(Exchange& exchange, Optimizer const& optimizer, std::int64_t step, double scale, double measured = 1) {
    exchange.for_each_segment([&](int bucket, parallel::layout::piece const& piece, update_segment<Env>& segment) {
      if (segment.info->running > 0) return follow(segment, measured);
      views_.clear();
      for (std::size_t m = 0; m < names_.size(); ++m) views_.push_back(moment_of(m, bucket, piece));
      segment.moments = views_;
      segment.gradient.scale *= scale;
      if constexpr (whole_tensor_optimizer<Optimizer, Env>) {
        if (whole_) return update_tensor(segment, optimizer, step);
      }
      if constexpr (element_optimizer<Optimizer, Env>) optimizer.update(segment, step);
    });
  }

  /// The moments of a piece that this rank updates: as contract/state.hpp says.
  template <class F>
  void visit_piece(int bucket, parallel::layout::piece const& piece, F&& f) const {
    if (bucket >= plan_.trained_buckets() || plan_.at(piece.entry).info.running > 0) return;
    if (whole_ && piece.in_entry > 0) return;  // whoever answers for a tensor's first element answers for its moments
    auto const& info = plan_.at(piece.entry).info;
    for (std::size_t m = 0; m < names_.size(); ++m) {
      auto const values = moment_of(m, bucket, piece);
      if (values.empty()) continue;
      auto const name = names_[m] + "/" + info.name;
      if (whole_) {
        f(name, state_place{moments_[of_entry(piece) + m].info, 0, of_rank_}, values.flat());
      } else {
        f(name, state_place{info, piece.in_entry, of_rank_}, values);
      }
    }
  }
  template <class F>
  void visit_state(state_scope scope, F&& f) const {
    for (int b = 0; b < plan_.trained_buckets(); ++b) {
      bool const kept = scope == state_scope::kept;
      auto const [first, count] = (kept ? owned_ : accounted_)[static_cast<std::size_t>(b)];
      for (auto const piece : plan_.pieces(b, first, count)) {
        if (kept || of_rank_ || plan_.at(piece.entry).info.answers) visit_piece(b, piece, f);
      }
    }
  }

 private:
  struct moment {
    parameter_info info;  // of the moment itself, where there is one a tensor
    tensor<master, space> values;
  };

  [[nodiscard]] std::size_t of_entry(parallel::layout::piece const& piece) const {
    return of_entry_[static_cast<std::size_t>(piece.entry)];
  }
  [[nodiscard]] view moment_of(std::size_t which, int bucket, parallel::layout::piece const& piece) const {
    if (whole_) return moments_[of_entry(piece) + which].values.view();
    auto const at = static_cast<std::size_t>(bucket);
    return moments_[at * names_.size() + which].values.view().flat(piece.in_bucket - owned_[at].first, piece.count);
  }

  void add(parallel::layout::piece const& piece, Optimizer const& optimizer) {
    auto const& info = plan_.at(piece.entry).info;
    if (info.running > 0) return;
    if (info.is_part() || piece.count != info.extents.size()) refuse(info);
    of_entry_[static_cast<std::size_t>(piece.entry)] = moments_.size();
    if constexpr (has_moment_shape<Optimizer>) {
      for (std::size_t m = 0; m < names_.size(); ++m) {
        auto const extents = optimizer.moment_shape(m, info);
        auto& made = moments_.emplace_back(moment{info, {}});
        made.info.extents = extents;
        if (extents.size() > 0) made.values = tensor<master, space>(extents);
      }
    }
  }
  [[noreturn]] static void refuse(parameter_info const& info) {
    if (!info.is_part()) {
      throw config_error(text("trireme::optimizer_state: the optimizer needs whole tensors, but the exchange cuts \"",
                              info.name, "\" between ranks; pass it the optimizer, too"));
    }
    throw config_error(
        text("trireme::trainer: the optimizer needs whole tensors, but each rank holds only a part of \"", info.name,
             "\"; use one that works element by element, such as optim::adamw, or leave ",
             "parallel::", info.dealt.empty() ? "tensor" : info.dealt, " out"));
  }

  // One step of a running mean, or of what follows signs.
  void follow(update_segment<Env> const& segment, double scale) {
    using kernels = ops::on<space>;
    auto const value = segment.value;
    double const by = segment.info->running;
    if constexpr (requires {
                    kernels::scale(value, 0.0);
                    kernels::each(value, value, [](auto x) { return x; });
                  }) {
      if (segment.info->by_sign) {
        auto const against = [by](auto x, auto measured) {
          return x - static_cast<decltype(x)>(by) * static_cast<decltype(x)>((measured > 0) - (measured < 0));
        };
        kernels::each(value, value, sum_of_terms(segment), against);
        scratch_.reset();
      } else {
        kernels::scale(value, 1 - by);
        for (auto const& term : segment.gradient.terms)
          kernels::accumulate(value, term, by * scale * segment.gradient.scale);
      }
      for (auto const& output : segment.outputs) kernels::copy(output, tensor_view<master const, space>(value));
    } else {
      throw config_error(
          text("trireme::optimizer_state: \"", segment.info->name,
               "\" is a running mean of what a layer measures, but ops::on has no scale() for this memory"));
    }
  }

  // In scratch memory if there are several.
  tensor_view<typename Env::gradient const, space> sum_of_terms(update_segment<Env> const& segment) {
    if (segment.gradient.terms.size() == 1) return segment.gradient.terms.front();
    auto const sum = scratch_.template take<typename Env::gradient>({segment.value.size()});
    ops::on<space>::reduce(std::span(&sum, 1), segment.gradient.terms);
    return sum;
  }

  void update_tensor(update_segment<Env> const& segment, Optimizer const& optimizer, std::int64_t step) {
    auto const& info = *segment.info;
    optimizer.update(tensor_update<Env>{info, segment.value.reshaped(info.extents), segment.moments,
                                        sum_of_terms(segment).reshaped(info.extents), segment.gradient.scale,
                                        segment.outputs, scratch_},
                     step);
    scratch_.reset();
  }

  parallel::layout const& plan_;
  bool of_rank_;
  bool whole_;
  std::vector<std::string> names_;
  std::vector<interval> owned_, accounted_;  // by bucket
  std::vector<moment> moments_;              // by bucket or by tensor, then by name
  std::vector<std::size_t> of_entry_;        // the first of a tensor's
  std::vector<view> views_;                  // kept: no allocation in a step
  arena<space> scratch_;
};

}  // namespace trireme
