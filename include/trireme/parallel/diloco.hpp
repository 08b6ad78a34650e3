#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel {

/// Local steps with an outer optimizer: each rank trains on its own samples without any exchange of gradients; after
/// every `period` steps the ranks average how far they have moved, and take that as the gradient of an outer step.
///
/// Method   [Douillard et al., "DiLoCo", 2023]: inner AdamW, outer Nesterov. With `.outer_rate = 1, .outer_momentum = 0`
///          it is local SGD [Stich, 2019], whose parameters are averaged.
/// Bytes    2 n (p-1)/p elements of the master type, n parameters, p ranks, once in `period` steps. Memory: two more
///          tensors of the size of the masters, and one as a buffer.
/// Ranks    parameters and moments belong to the rank, and are equal only after an outer step (parameters): save a model
///          after a multiple of `period` steps. evaluate() is the mean over ranks, each with its own parameters. A
///          checkpoint may be taken at any step; as many ranks go on with it.
/// Numerics the norm that clipping looks at is the root mean square of the ranks' norms. With a period of 1, inner SGD
///          without momentum, outer rate 1 and no outer momentum a step is that of parallel::data within rounding; with
///          AdamW it is not, for the mean of AdamW steps is not the AdamW step of the mean gradient.
/// Needs    has_all_reduce of the master type. No compressor: there are no gradients to compress.
struct diloco {
  using policy_category = slot::parallel;
  std::int64_t period = 100;    ///< steps from one outer step to the next
  double outer_rate = 0.7;      ///< learning rate of the outer steps
  double outer_momentum = 0.9;  ///< Nesterov's
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
  return text("parallel::diloco{.period = ", d.period, ", .outer_rate = ", d.outer_rate, ", .outer_momentum = ",
              d.outer_momentum, ", .bucket_bytes = ", d.bucket_bytes, d.ways != 0 ? text(", .ways = ", d.ways) : "", "}");
}

namespace detail {

/// This rank alone, made before the exchange that works in it.
template <class Comm>
struct rank_alone {
  explicit rank_alone(Comm& ranks) : alone(ranks.split(ranks.rank(), 0)) {}
  Comm alone;
};

}  // namespace detail

/// The exchange of a world of one, and the outer step over all replicas.
template <class Env, class Comm, class Compressor>
class diloco::instance : detail::rank_alone<Comm>, public basic_exchange<Env, Comm, data, Compressor> {
  using base = basic_exchange<Env, Comm, data, Compressor>;
  using space = typename Env::space;
  using master = typename Env::master;
  using kernels = ops::on<space>;

 public:
  static constexpr bool replicas_differ = true;

  template <class Parameters, class... More>
  instance(Parameters parameters, Comm& replicas, diloco const& what, Compressor const& compressor, More&&... more)
      : detail::rank_alone<Comm>(replicas),
        base(std::move(parameters), this->alone, data{.bucket_bytes = what.bucket_bytes}, compressor,
             std::forward<More>(more)...),
        what_(what),
        replicas_(replicas) {
    if (what.period < 1) {
      throw config_error(text("trireme::parallel::diloco: .period = ", what.period,
                              "; say after how many steps the ranks meet, at least 1"));
    }
    for (auto const& bucket : this->plan().buckets()) {
      outer_.emplace_back(shape{bucket.elements});
      velocity_.emplace_back(shape{bucket.elements});
      moved_.push_back(message_tensor<master, space>(replicas, shape{bucket.elements}));
    }
    restart();
  }

  [[nodiscard]] Comm& world() const noexcept { return replicas_; }
  [[nodiscard]] std::int64_t period() const noexcept { return what_.period; }
  /// The replicas' samples together weigh as much as they are, so that the mean of their gradients is that of all.
  [[nodiscard]] double sample_weight(std::int64_t samples) const noexcept {
    return static_cast<double>(replicas_.size()) / static_cast<double>(samples);
  }
  [[nodiscard]] exchange_result count(vote& vote) {
    auto result = base::count(vote);
    result.norm /= std::sqrt(static_cast<double>(replicas_.size()));
    return result;
  }
  [[nodiscard]] bool end(std::int64_t step) {
    if ((step + 1) % what_.period != 0) return false;
    for (int b = 0; b < this->bucket_count(); ++b) outer_step(b);
    this->refresh_parameters();
    return true;
  }

  void initialise(std::uint64_t seed) {
    base::initialise(seed);
    restart();
  }
  void broadcast(int root = 0) {
    for (auto const& entry : this->plan().entries()) base::broadcast(entry, replicas_, root);
    restart();
  }
  using base::broadcast;
  void verify_replicas() { base::verify_among(replicas_); }

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    this->visit_values(scope, f, true);
    if (scope == state_scope::answered && replicas_.rank() != 0) return;  // the same on all replicas
    for (int b = 0; b < this->bucket_count(); ++b) {
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
  static tensor_view<master, space> part(tensors const& of, int bucket, layout::piece const& piece) {
    return of[static_cast<std::size_t>(bucket)].view().flat(piece.in_bucket, piece.count);
  }
  template <class F>
  void for_each_owned(int bucket, F&& f) {
    auto const [first, count] = this->owned_range(bucket);
    this->plan().for_each_piece(bucket, first, count, f);
  }
  // From the parameters as they are: the ranks have not moved.
  void restart() {
    for (int b = 0; b < this->bucket_count(); ++b) {
      kernels::fill(velocity_[static_cast<std::size_t>(b)].view(), 0.0);
      kernels::fill(moved_[static_cast<std::size_t>(b)].view(), 0.0);
      for_each_owned(b, [&](layout::piece const& piece) { copy(part(outer_, b, piece), this->master_of(b, piece)); });
    }
  }
  void outer_step(int b) {
    auto const moved = moved_[static_cast<std::size_t>(b)].view();
    for_each_owned(b, [&](layout::piece const& piece) {
      auto const own = part(moved_, b, piece);
      copy(own, this->master_of(b, piece));
      kernels::scale(own, -1.0);
      kernels::add(own, constant(part(outer_, b, piece)));
    });
    replicas_.all_reduce(moved, reduction::sum{});
    for_each_owned(b, [&](layout::piece const& piece) {
      auto const sum = constant(part(moved_, b, piece));
      auto const outer = part(outer_, b, piece);
      kernels::sgd(outer, part(velocity_, b, piece),
                   gradient_terms<master, space>{{&sum, 1}, 1.0 / static_cast<double>(replicas_.size())},
                   std::span<tensor_view<typename Env::param, space> const>{},
                   ops::sgd_numbers{.rate = what_.outer_rate, .momentum = what_.outer_momentum, .nesterov = true});
      copy(this->master_of(b, piece), outer);
    });
  }
  static tensor_view<master const, space> constant(tensor_view<master, space> view) { return view; }
  static void copy(tensor_view<master, space> to, tensor_view<master, space> from) {
    kernels::copy(to, constant(from));
  }

  diloco what_;
  Comm& replicas_;
  tensors outer_;     // values after the last outer step
  tensors velocity_;  // of the outer optimizer
  tensors moved_;     // how far this rank, then all ranks have come since
};

}  // namespace trireme::parallel
