#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/parallel/local_exchange.hpp"

namespace trireme::parallel {

/// Local steps with an outer optimizer: each rank trains on its own samples without any exchange of gradients; after
/// every `period` steps the ranks average how far they have moved, and take that as the gradient of an outer step.
///
/// Method   [Douillard et al., "DiLoCo", 2023]: inner AdamW, outer Nesterov. With an outer rate of 1 and no outer
///          momentum it is local SGD [Stich, 2019], whose parameters are averaged.
/// Bytes    2 n (p-1)/p elements of the master type, n parameters, p ranks, once in `period` steps. Memory: two more
///          tensors of the size of the masters, and one as a buffer.
/// Ranks    parameters and moments belong to the rank, and only parameters are equal after an outer step: save a
///          model after a multiple of `period` steps. evaluate() is the mean over ranks, each with its own parameters.
///          A checkpoint may be taken at any step; as many ranks go on with it.
/// Numerics the norm that clipping looks at is the root mean square of the ranks' norms. With a period of 1, inner SGD
///          without momentum, outer rate 1 and no outer momentum a step is that of parallel::data within rounding; with
///          AdamW it is not, for the mean of AdamW steps is not the AdamW step of the mean gradient.
/// Needs    has_all_reduce of the master type. No compressor: there are no gradients to compress.
struct diloco {
  using policy_category = slot::parallel;
  std::int64_t period = 100;                           ///< steps from one outer step to the next
  double outer_learning_rate = 0.7;                    ///< learning rate of the outer steps
  double outer_momentum = 0.9;                         ///< Nesterov's
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< parameters averaged together, in bytes of gradients
  int ways = 0;                                        ///< ranks that split samples; 0 = what is left of the world
  friend bool operator==(diloco const&, diloco const&) = default;

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr bool local_steps = true;
  static constexpr std::string_view name = "diloco";

  template <class Env, class Comm, class Compressor>
  class instance;
};

[[nodiscard]] inline std::string to_string(diloco const& d) {
  return text("parallel::diloco{.period = ", d.period, ", .outer_learning_rate = ", d.outer_learning_rate,
              ", .outer_momentum = ", d.outer_momentum, ", .bucket_bytes = ", d.bucket_bytes,
              d.ways != 0 ? text(", .ways = ", d.ways) : "", "}");
}

/// An outer optimizer over what ranks that step alone have done.
template <class Env, class Comm, class Compressor>
class diloco::instance : public local_exchange<Env, Comm, Compressor> {
  using base = local_exchange<Env, Comm, Compressor>;
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;
  using kernels = ops::on<space>;

 public:
  template <class Parameters, class... More>
  instance(Parameters all, Comm& replicas, diloco const& what, Compressor const& compressor, More&&... more)
      : base(std::move(all), replicas, what.bucket_bytes, compressor, std::forward<More>(more)...), what_(what) {
    if (what.period < 1) {
      throw config_error(text("trireme::parallel::diloco: .period = ", what.period,
                              "; say after how many steps the ranks meet, at least 1"));
    }
    for (int b = 0; b < this->plan().trained_buckets(); ++b) {
      shape const form{this->plan().buckets()[static_cast<std::size_t>(b)].elements};
      outer_.emplace_back(form);
      velocity_.emplace_back(form);
      moved_.push_back(message_tensor<master, space>(replicas, form));
    }
    restart();
  }

  [[nodiscard]] std::int64_t period() const noexcept { return what_.period; }
  [[nodiscard]] bool end(std::int64_t step) {
    if ((step + 1) % what_.period != 0) return false;
    this->for_each_tensor([&](int b, layout::piece const& piece) {
      auto const moved = part(moved_, b, piece);
      copy(moved, this->master_of(b, piece));
      kernels::scale(moved, -1.0);
      kernels::add(moved, constant(part(outer_, b, piece)));
    });
    for (auto const& each : moved_) this->world().all_reduce(each.view(), reduction::sum{});
    this->for_each_tensor([&](int b, layout::piece const& piece) {
      auto const sum = constant(part(moved_, b, piece));
      kernels::sgd(part(outer_, b, piece), part(velocity_, b, piece),
                   gradient_terms<master, space>{{&sum, 1}, 1.0 / static_cast<double>(this->world().size())},
                   std::span<tensor_view<typename Env::param, space> const>{},
                   outer_step(this->plan().at(piece.entry).info));
      copy(this->master_of(b, piece), part(outer_, b, piece));
    });
    this->refresh_parameters();
    return true;
  }

  void initialise(std::uint64_t seed) {
    base::initialise(seed);
    restart();
  }
  void broadcast(int root = 0) {
    base::broadcast(root);
    restart();
  }
  using base::broadcast;

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    base::visit_state(scope, f);
    if (scope == state_scope::answered && this->world().rank() != 0) return;  // the same on all replicas
    for (int b = 0; b < this->plan().trained_buckets(); ++b) {
      this->for_each_state_piece(scope, b, [&](layout::piece const& piece) {
        auto const& info = this->plan().at(piece.entry).info;
        f("outer_value/" + info.name, state_place{info, piece.in_entry}, part(outer_, b, piece));
        f("outer_velocity/" + info.name, state_place{info, piece.in_entry}, part(velocity_, b, piece));
      });
    }
  }
  [[nodiscard]] exchange_memory memory() const {
    auto sum = base::memory();
    for (auto const& each : moved_) {
      auto const bytes = static_cast<std::int64_t>(each.view().bytes());
      sum.masters += 2 * bytes;
      sum.buffers += bytes;
    }
    return sum;
  }

 private:
  using tensors = std::vector<trireme::tensor<master, space>>;

  // From the parameters as they are: the ranks have not moved.
  void restart() {
    for (auto const& each : velocity_) kernels::fill(each.view(), 0.0);
    for (auto const& each : moved_) kernels::fill(each.view(), 0.0);
    this->for_each_tensor(
        [&](int b, layout::piece const& piece) { copy(part(outer_, b, piece), this->master_of(b, piece)); });
  }
  // Running means become the mean over the ranks.
  [[nodiscard]] ops::sgd_numbers outer_step(parameter_info const& info) const {
    if (info.running > 0) return {.learning_rate = 1};
    return {.learning_rate = what_.outer_learning_rate, .momentum = what_.outer_momentum, .nesterov = true};
  }
  static view part(tensors const& of, int bucket, layout::piece const& piece) {
    return of[static_cast<std::size_t>(bucket)].view().flat(piece.in_bucket, piece.count);
  }
  static tensor_view<master const, space> constant(view all) { return all; }
  static void copy(view to, view from) { kernels::copy(to, constant(from)); }

  diloco what_;
  tensors outer_;     // values after the last outer step
  tensors velocity_;  // of the outer optimizer
  tensors moved_;     // how far this rank, then all ranks have come since
};

}  // namespace trireme::parallel
