#pragma once

#include <cstdint>
#include <optional>
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

/// A parameter server with bounded staleness, whose shards lie on the ranks: each rank serves one slice of the
/// parameters. It sums the gradients that all ranks push, and applies those that were pushed `staleness` steps ago; the
/// new parameters are pulled by all ranks before their next step.
///
/// Method   [Li et al., "Scaling distributed machine learning with the parameter server", 2014], with the delay fixed:
///          gradients are applied exactly `staleness` steps after they were computed, so a run is deterministic, and
///          resumes bit for bit. 0 is synchronous: parallel::zero<1> bit for bit.
/// Bytes    as parallel::zero<1>. Memory: `staleness` + 1 more gradients of the own slice.
/// Numerics the first `staleness` steps change nothing, the last `staleness` gradients of a run are not applied.
///          Clipping looks at the norm of the gradients that are applied.
/// Ranks    what it is for: to compare how a delay changes training. It hides no time here: every step still waits for
///          the step's vote, and for the slowest rank. (What a delay could hide is the time of a push between
///          machines. What absorbs slow ranks is asynchrony, which this policy does not have.)
/// Needs    as parallel::zero<1>.
struct parameter_server {
  using policy_category = slot::parallel;
  std::int64_t staleness = 0;  ///< steps between the computation of a gradient and its application
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  int ways = 0;                                        ///< ranks that split samples; 0 = what is left of the world
  friend bool operator==(parameter_server const&, parameter_server const&) = default;

  static constexpr distribution optimizer_state = distribution::shard;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "parameter_server";

  template <class Env, class Comm, class Compressor>
  class instance;
};

[[nodiscard]] inline std::string to_string(parameter_server const& p) {
  return text("parallel::parameter_server{.staleness = ", p.staleness, ", .bucket_bytes = ", p.bucket_bytes,
              p.ways != 0 ? text(", .ways = ", p.ways) : "", "}");
}

/// The exchange of zero<1>, and a ring of the gradients that wait to be applied.
template <class Env, class Comm, class Compressor>
class parameter_server::instance : public basic_exchange<Env, Comm, zero<1>, Compressor> {
  using base = basic_exchange<Env, Comm, zero<1>, Compressor>;
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using kernels = ops::on<space>;

 public:
  template <class Parameters, class... More>
  instance(Parameters all, Comm& world, parameter_server const& what, Compressor const& compressor, More&&... more)
      : base(std::move(all), world, zero<1>{.bucket_bytes = what.bucket_bytes}, compressor,
             std::forward<More>(more)...) {
    if (what.staleness < 0 || what.staleness > 1024) {
      throw config_error(text("trireme::parallel::parameter_server: .staleness = ", what.staleness,
                              "; give a number of steps from 0 to 1024"));
    }
    if (what.staleness == 0) return;
    ring_.resize(static_cast<std::size_t>(what.staleness) + 1);
    for (auto& waiting : ring_) {
      for (int b = 0; b < this->plan().trained_buckets(); ++b) {
        waiting.slices.emplace_back(shape{this->owned_range(b).count});
      }
    }
    restart();
  }

  [[nodiscard]] std::int64_t settles_after() const noexcept { return static_cast<std::int64_t>(ring_.size()) + 1; }
  /// The gradients of this step join the ring; those that have waited long enough take their place.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    if (ring_.empty()) return base::settle(taken, exchanged);
    bool const due = taken && pushed_ + 1 >= static_cast<std::int64_t>(ring_.size());
    this->close(taken, due);
    if (!taken) return std::nullopt;
    auto& newest = at(pushed_++);
    newest.numbers = exchanged;
    for_each_slice([&](int b, auto own) { kernels::copy(slice(newest, b), constant(own)); });
    if (!due) return std::nullopt;
    auto& oldest = at(pushed_);
    for_each_slice([&](int b, auto own) { kernels::copy(own, constant(slice(oldest, b))); });
    return oldest.numbers;
  }
  void initialise(std::uint64_t seed) {
    base::initialise(seed);
    restart();
  }

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    base::visit_state(scope, f);
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      for (int b = 0; b < this->plan().trained_buckets(); ++b) {
        this->for_each_state_piece(scope, b, [&](layout::piece const& piece) {
          auto const& info = this->plan().at(piece.entry).info;
          f(text("waiting_gradient.", i, "/", info.name), state_place{info, piece.in_entry},
            slice(ring_[i], b).flat(piece.in_bucket - this->owned_range(b).first, piece.count));
        });
      }
    }
  }
  template <class F>
  void visit_numbers(F&& f) {
    if (ring_.empty()) return;
    f("parameter_server/pushed", pushed_);
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      f(text("parameter_server/norm.", i), ring_[i].numbers.norm);
      f(text("parameter_server/scale.", i), ring_[i].numbers.scale);
      f(text("parameter_server/measured.", i), ring_[i].numbers.measured);
    }
  }
  [[nodiscard]] exchange_memory memory() const {
    auto sum = base::memory();
    for (auto const& waiting : ring_) {
      for (auto const& each : waiting.slices) sum.gradients += static_cast<std::int64_t>(each.view().bytes());
    }
    return sum;
  }

 private:
  /// This rank's slices of the sums of one step.
  struct step_gradients {
    std::vector<trireme::tensor<gradient, space>> slices;  // by bucket
    gradient_numbers numbers;
  };
  step_gradients& at(std::int64_t push) {
    return ring_[static_cast<std::size_t>(push % static_cast<std::int64_t>(ring_.size()))];
  }
  static tensor_view<gradient, space> slice(step_gradients const& of, int bucket) {
    return of.slices[static_cast<std::size_t>(bucket)].view();
  }
  static tensor_view<gradient const, space> constant(tensor_view<gradient, space> view) { return view; }
  template <class F>
  void for_each_slice(F&& f) {
    for (int b = 0; b < this->plan().trained_buckets(); ++b) {
      auto const [first, count] = this->owned_range(b);
      f(b, this->gradient_sum(b, first, count));
    }
  }
  void restart() {
    pushed_ = 0;
    for (auto& waiting : ring_) {
      waiting.numbers = {};
      for (auto const& each : waiting.slices) kernels::fill(each.view(), 0.0);
    }
  }

  std::vector<step_gradients> ring_;
  std::int64_t pushed_ = 0;  // gradients of steps that were taken
};

}  // namespace trireme::parallel
