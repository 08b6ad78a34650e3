#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme {

/// A parameter whose value and gradient lie in memory of the caller.
template <class T, class Space = host>
struct foreign_parameter {
  std::string name;
  tensor_view<T, Space> value;
  tensor_view<T, Space> gradient;
};

/// What is known once all gradients are exchanged; equal on every rank.
struct exchange_result {
  double norm = 0;         ///< global norm of the reduced gradient (NaN if it was not asked for)
  bool finite = true;      ///< whether every gradient of every rank is finite
  std::int64_t votes = 0;  ///< sum of what the ranks passed to finish()
};

/// How much of the exchange happened while backward was still running, in seconds since the exchange was made.
struct exchange_times {
  double covered = 0;
  double exposed = 0;
  [[nodiscard]] double hidden() const noexcept { return covered + exposed > 0 ? covered / (covered + exposed) : 0; }
};

/// Owns the memory of parameters and gradients, and makes the gradients of all ranks one.
///
/// A step:  begin(); backward calls ready(use) as each gradient becomes final; finish(); for_each_segment(update);
///          publish(). Only the last micro-batch of a step calls ready: gradients accumulate without an exchange
///          before.
/// Shapes   buckets of about Strategy::bucket_bytes, filled in the order in which backward finishes; a tied tensor has
///          a bucket of its own, and each of its uses a gradient of its own, added in the order of the uses.
/// Ranks    collective: the same calls in the same order on every rank, but ready() may come at any time.
/// Numerics gradients are summed in rank order; the norm is exact but for the rounding of blocks of 1024 squares, so it
///          does not depend on the number of shards.
/// Threads  one owner; not copied, not moved.
/// Errors   comm_error from the communicator; config_error if the ranks' parameters differ at the start.
template <class Env, class Comm, strategy Strategy, class Compressor>
class basic_exchange {
 public:
  using space = typename Env::space;
  using param_element = typename Env::param;
  using gradient_element = typename Env::gradient;
  using master_element = typename Env::master;
  using kernels = ops::on<space>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool keeps_master = !std::is_same_v<param_element, master_element>;
  /// Ranks of one address space reduce, update and publish by reading and writing each other's buckets.
  static constexpr bool can_be_direct =
      sharded && lossless_identity<Compressor> && std::is_same_v<gradient_element, typename Env::reduce> &&
      has_peers<Comm, gradient_element, space> && has_peers<Comm, param_element, space>;

  /// Takes over the parameters of a model: gives them memory, and binds them to it.
  basic_exchange(std::vector<parameter<Env>*> uses, Comm& world, Strategy const& strategy, Compressor const& compressor)
      : world_(world), layout_(infos(uses), elements(strategy), world.size()), uses_(std::move(uses)) {
    allocate(compressor);
    bind();
  }

  /// Works for parameters that live in the caller's memory: gradients are copied into buckets when they are ready, the
  /// reduced ones are copied back by finish().
  basic_exchange(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world, Strategy const& strategy,
                 Compressor const& compressor)
      : world_(world), layout_(infos(parameters), elements(strategy), world.size()), foreign_(std::move(parameters)) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    allocate(compressor);
  }

  basic_exchange(basic_exchange const&) = delete;
  basic_exchange& operator=(basic_exchange const&) = delete;

  [[nodiscard]] parallel::layout const& plan() const noexcept { return layout_; }
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b]->label = timeline.intern(text("bucket ", b));
  }
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  [[nodiscard]] int use_count() const noexcept {
    return static_cast<int>(uses_.empty() ? foreign_.size() : uses_.size());
  }

  /// Fills every parameter with its start, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : layout_.entries()) {
      tensor<master_element, space> whole(shape{entry.size()});
      kernels::initialise(whole.view(), entry.info.start, seed, hash_name(entry.info.name));
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's.
  void verify_replicas() {
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world_.size()));
    hashes[static_cast<std::size_t>(world_.rank())] = hash_of_parameters();
    world_.all_gather(tensor_view<std::uint64_t>(hashes));
    for (int rank = 1; rank < world_.size(); ++rank) {
      if (hashes[static_cast<std::size_t>(rank)] == hashes[0]) continue;
      throw config_error(
          text("trireme::exchange: the parameters of rank ", rank,
               " differ from those of rank 0; start every rank from the same seed, or call broadcast()"));
    }
  }

  /// Collective. Gives every rank the parameters of `root`.
  void broadcast(int root = 0) {
    for (auto const& entry : layout_.entries()) {
      world_.broadcast(parameter_values(entry), root);
      if constexpr (keeps_master) {
        tensor<master_element, space> whole(shape{entry.size()});
        kernels::copy(whole.view(), tensor_view<param_element const, space>(parameter_values(entry)));
        load(entry, tensor_view<master_element const, space>(whole));
      }
    }
  }

  /// Starts a step: gradients are zero again.
  void begin() {
    for (auto& each : buckets_) {
      kernels::fill(each->gradient.view(), 0.0);
      each->missing = each->uses;
    }
    for (auto& each : second_uses_) kernels::fill(each.gradient.view(), 0.0);
    next_ = 0;
    weight_ = 1.0 / world_.size();
  }

  /// With parameters in the caller's memory: how much this rank's gradients weigh in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples says n / N.
  void weight(double share) noexcept { weight_ = share; }

  /// Says that the gradient of one use is final. The bucket's exchange starts as soon as all of its gradients are, and
  /// the buckets before it have started.
  void ready(int use) {
    auto const start = now();
    if (!foreign_.empty()) take_in(use);
    --buckets_[static_cast<std::size_t>(layout_.at(layout_.entry_of_use(use)).bucket)]->missing;
    start_complete_buckets();
    progress();
    if constexpr (!progresses_alone<Comm>) times_.covered += now() - start;
  }
  void ready(std::string_view name) {
    for (int use = 0; use < use_count(); ++use) {
      if (layout_.at(layout_.entry_of_use(use)).info.name == name) return ready(use);
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }

  /// Adds the caller's gradients to the buckets without saying that they are final: one more micro-batch.
  void accumulate() requires(!keeps_master) {
    for (int use = 0; use < static_cast<int>(foreign_.size()); ++use) take_in(use);
  }

  /// Collective. Completes the exchange: afterwards the segments' gradients are the sums over all ranks.
  ///
  /// @param votes  a number of one's own that is summed over the ranks (a wish to stop, say).
  /// @param want_norm  the norm costs nothing where gradients are reduced before the update anyway; without it, ranks
  ///                   that share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    auto const start = now();
    for (auto& each : buckets_) each->missing = 0;  // a rank without samples has reported nothing
    start_complete_buckets();
    if constexpr (progresses_alone<Comm>) {
      for (auto const& each : buckets_)
        times_.covered += std::max(0.0, std::min(start, each->done_time) - each->start_time);
    }
    exact_sum squares;
    if (direct()) {
      finish_direct(squares, want_norm);
    } else {
      for (std::size_t b = 0; b < buckets_.size(); ++b) {
        buckets_[b]->transport->wait();
        record_bucket(*buckets_[b]);
        kernels::sum_of_squares(slice(b, buckets_[b]->gradient.view()), squares);
      }
    }
    auto const result = vote(squares, votes, want_norm || !direct());
    if (!foreign_.empty()) give_back_gradients();
    times_.exposed += now() - start;
    return result;
  }

  /// Calls f(bucket, first, update_segment) for every stretch of a parameter that this rank updates; `first` counts
  /// elements in the bucket. The segment's moments are for the caller to fill in, its scale to multiply.
  template <class F>
  void for_each_segment(F&& f) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const [first, count] = owned_range(static_cast<int>(b));
      layout_.for_each_piece(static_cast<int>(b), first, count, [&](parallel::layout::piece const& piece) {
        update_segment<Env> segment;
        segment.value = master_of(static_cast<int>(b), piece);
        segment.gradient = {gradient_terms_of(static_cast<int>(b), piece), 1.0};
        segment.outputs = outputs_of(static_cast<int>(b), piece);
        segment.decays = layout_.at(piece.entry).info.decays;
        f(static_cast<int>(b), piece, segment);
      });
    }
  }

  /// The elements of a bucket that this rank updates: (first, count).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> owned_range(int bucket) const noexcept {
    return sharded ? accounted_range(bucket)
                   : std::pair{std::int64_t{0}, layout_.buckets()[static_cast<std::size_t>(bucket)].elements};
  }
  /// The elements of a bucket that this rank answers for in hashes and checkpoints: each element is answered for once.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> accounted_range(int bucket) const noexcept {
    auto const n = layout_.slice_elements(bucket);
    return {world_.rank() * n, n};
  }

  /// Collective. Makes the updated values the parameters of every rank.
  void publish() {
    auto const start = now();
    if constexpr (sharded) {
      if (direct()) {
        world_.barrier();
      } else {
        gather_values();
      }
    }
    times_.exposed += now() - start;
  }

  /// The master value of a piece, wherever it lives.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket, parallel::layout::piece const& piece) const {
    auto const& state = *buckets_[static_cast<std::size_t>(bucket)];
    if constexpr (keeps_master) {
      return state.master.view().flat(piece.in_bucket - owned_range(bucket).first, piece.count);
    } else {
      if (!foreign_.empty()) return foreign_of(piece.entry).value.flat(piece.in_entry, piece.count);
      return state.value.view().flat(piece.in_bucket, piece.count);
    }
  }
  /// What error feedback keeps for one bucket, or an empty view.
  [[nodiscard]] tensor_view<gradient_element, space> residual_of(int bucket) {
    if constexpr (has_residual<compressor_state<Compressor, Env>>) {
      return buckets_[static_cast<std::size_t>(bucket)]->transport->compressor().residual();
    } else {
      return {};
    }
  }
  /// Makes the parameters that layers read follow master values that were written from outside (a checkpoint).
  /// Collective.
  void refresh_parameters() {
    for_each_segment([](int, parallel::layout::piece const&, update_segment<Env> const& segment) {
      for (auto const& output : segment.outputs)
        kernels::copy(output, tensor_view<master_element const, space>(segment.value));
    });
    publish();
  }
  /// Collective. Calls f(entry, values) with the whole master value of each tensor; the view is valid during the call.
  template <class F>
  void for_each_master(F&& f) {
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      tensor<master_element, space> whole(shape{layout_.buckets()[static_cast<std::size_t>(b)].elements});
      auto const [first, count] = accounted_range(b);
      layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
        kernels::copy(whole.view().flat(piece.in_bucket, piece.count),
                      tensor_view<master_element const, space>(master_of(b, piece)));
      });
      world_.all_gather(whole.view());
      for (int const e : layout_.buckets()[static_cast<std::size_t>(b)].entries) {
        auto const& entry = layout_.at(e);
        f(entry, tensor_view<master_element const, space>(whole.view().flat(entry.offset, entry.size())));
      }
    }
  }
  /// The global hash of this rank's copy of all parameters.
  [[nodiscard]] std::uint64_t hash_of_parameters() const {
    std::uint64_t sum = 0;
    for (auto const& entry : layout_.entries()) {
      sum += kernels::hash(tensor_view<param_element const, space>(parameter_values(entry)), hash_name(entry.info.name),
                           0);
    }
    return sum;
  }
  /// Whether this rank's gradient of a tensor is finite.
  [[nodiscard]] bool has_finite_gradient(parallel::layout::entry const& entry) const {
    auto const whole = buckets_[static_cast<std::size_t>(entry.bucket)]->gradient.view();
    return kernels::finite(tensor_view<gradient_element const, space>(whole.flat(entry.offset, entry.size())));
  }
  /// A tensor as this rank's layers see it.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(parallel::layout::entry const& entry) const {
    if (!foreign_.empty()) return foreign_[static_cast<std::size_t>(entry.uses.front())].value.flat();
    return buckets_[static_cast<std::size_t>(entry.bucket)]->value.view().flat(entry.offset, entry.size());
  }

 private:
  using bucket_transport = parallel::detail::transport<Env, Comm, Strategy, Compressor>;
  struct bucket_state {
    tensor<gradient_element, space> gradient;
    tensor<param_element, space> value;
    tensor<master_element, space> master;  // the owned range, where parameters are not their own master
    std::unique_ptr<bucket_transport> transport;
    std::vector<tensor_view<gradient_element, space>> peer_gradients;
    std::vector<tensor_view<param_element, space>> peer_values;
    int uses = 0;
    int missing = 0;
    double start_time = 0;
    double done_time = 0;
    std::uint64_t start_ns = 0;
    std::string_view label;
  };
  static constexpr double not_done = std::numeric_limits<double>::infinity();
  struct second_use {
    int use;
    tensor<gradient_element, space> gradient;
  };

  static std::vector<parameter_info> infos(std::vector<parameter<Env>*> const& uses) {
    std::vector<parameter_info> all;
    for (auto const* use : uses) all.push_back(use->info);
    return all;
  }
  static std::vector<parameter_info> infos(std::vector<foreign_parameter<param_element, space>> const& parameters) {
    std::vector<parameter_info> all;
    for (auto const& each : parameters) {
      if (each.value.size() != each.gradient.size()) {
        throw config_error(text("trireme::exchange: parameter \"", each.name, "\" has ", each.value.size(),
                                " values but ", each.gradient.size(), " gradients"));
      }
      for (auto const& other : all) {
        if (other.name == each.name) {
          throw config_error(text("trireme::exchange: two parameters are named \"", each.name, "\""));
        }
      }
      all.push_back({each.name, each.value.extents(), {}, each.value.rank() > 1});
    }
    return all;
  }
  static std::int64_t elements(Strategy const& strategy) {
    auto const count =
        static_cast<std::int64_t>(strategy.bucket_bytes) / static_cast<std::int64_t>(sizeof(gradient_element));
    if (count < 1) {
      throw config_error(
          text("trireme::exchange: bucket_bytes is ", strategy.bucket_bytes, "; it must hold a gradient"));
    }
    return count;
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  [[nodiscard]] bool direct() const noexcept { return can_be_direct && foreign_.empty(); }
  [[nodiscard]] foreign_parameter<param_element, space> const& foreign_of(int entry) const {
    return foreign_[static_cast<std::size_t>(layout_.at(entry).uses.front())];
  }
  template <class T>
  [[nodiscard]] tensor_view<T, space> slice(std::size_t bucket, tensor_view<T, space> whole) const {
    auto const [first, count] = accounted_range(static_cast<int>(bucket));
    return whole.flat(first, count);
  }

  void allocate(Compressor const& compressor) {
    for (int b = 0; b < static_cast<int>(layout_.buckets().size()); ++b) {
      auto const& bucket = layout_.buckets()[static_cast<std::size_t>(b)];
      auto state = std::make_unique<bucket_state>();
      state->gradient = tensor<gradient_element, space>(shape{bucket.elements});
      kernels::fill(state->gradient.view(), 0.0);
      if (foreign_.empty() || sharded) {
        state->value = tensor<param_element, space>(shape{bucket.elements});
        kernels::fill(state->value.view(), 0.0);
      }
      if constexpr (keeps_master) {
        state->master = tensor<master_element, space>(shape{owned_range(b).second});
        kernels::fill(state->master.view(), 0.0);
      }
      for (int const e : bucket.entries) state->uses += static_cast<int>(layout_.at(e).uses.size());
      state->transport =
          std::make_unique<bucket_transport>(compressor, state->gradient.view(), world_.size(), world_.rank());
      if constexpr (can_be_direct) {
        if (direct()) {
          state->peer_gradients = world_.peers(state->gradient.view());
          state->peer_values = world_.peers(state->value.view());
        }
      }
      buckets_.push_back(std::move(state));
    }
    terms_.reserve(static_cast<std::size_t>(world_.size()));
    outputs_.reserve(static_cast<std::size_t>(world_.size()));
  }

  void bind() {
    for (auto const& entry : layout_.entries()) {
      auto& state = *buckets_[static_cast<std::size_t>(entry.bucket)];
      for (std::size_t k = 0; k < entry.uses.size(); ++k) {
        auto& use = *uses_[static_cast<std::size_t>(entry.uses[k])];
        use.value = state.value.view().flat(entry.offset, entry.size()).reshaped(entry.info.extents);
        if (k == 0) {
          use.gradient = state.gradient.view().flat(entry.offset, entry.size()).reshaped(entry.info.extents);
        } else {
          second_uses_.push_back({entry.uses[k], tensor<gradient_element, space>(entry.info.extents)});
          use.gradient = second_uses_.back().gradient.view();
        }
      }
    }
  }

  void take_in(int use) {
    auto const& entry = layout_.at(layout_.entry_of_use(use));
    auto& state = *buckets_[static_cast<std::size_t>(entry.bucket)];
    kernels::accumulate(
        state.gradient.view().flat(entry.offset, entry.size()),
        tensor_view<param_element const, space>(foreign_[static_cast<std::size_t>(use)].gradient.flat()), weight_);
  }

  // In order, so that every rank starts the same collectives in the same order.
  void start_complete_buckets() {
    for (; next_ < buckets_.size() && buckets_[next_]->missing == 0; ++next_) {
      auto& state = *buckets_[next_];
      add_uses(static_cast<int>(next_));
      state.start_time = now();
      state.done_time = not_done;
      if (timeline_ != nullptr) state.start_ns = observe::timeline::now();
      if (!direct()) state.transport->begin(world_);
    }
  }
  void add_uses(int bucket) {
    for (int const e : layout_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const& entry = layout_.at(e);
      for (std::size_t k = 1; k < entry.uses.size(); ++k) {
        auto const& first = *uses_[static_cast<std::size_t>(entry.uses[0])];
        auto const& other = *uses_[static_cast<std::size_t>(entry.uses[k])];
        kernels::add(first.gradient.flat(), tensor_view<gradient_element const, space>(other.gradient.flat()));
      }
    }
  }
  void progress() {
    if (direct()) return;
    for (std::size_t b = 0; b < next_; ++b) {
      auto& state = *buckets_[b];
      if (state.transport->test() && state.done_time == not_done) state.done_time = now();
    }
  }

  void record_bucket(bucket_state const& state) {
    if (timeline_ == nullptr) return;
    timeline_->record({state.label, "exchange", state.start_ns, observe::timeline::now(), 1});
  }

  // Fused, no rank sees the sum before the update: each checks all of its own gradients, and the vote is the barrier.
  void finish_direct(exact_sum& squares, bool want_norm) {
    fused_ = !want_norm;
    if (fused_) {
      for (auto const& state : buckets_) {
        if (kernels::finite(tensor_view<gradient_element const, space>(state->gradient.view()))) continue;
        squares.add(std::numeric_limits<double>::infinity());
      }
      return;
    }
    world_.barrier();                                              // everybody's gradients are final
    constexpr std::int64_t chunk = 32 * parallel::block_elements;  // stays in the second-level cache
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const& state = *buckets_[b];
      auto const [first, count] = accounted_range(static_cast<int>(b));
      for (std::int64_t at = first; at < first + count; at += chunk) {
        auto const n = std::min(chunk, first + count - at);
        auto const own = state.gradient.view().flat(at, n);
        terms_.clear();
        for (auto const& peer : state.peer_gradients) terms_.push_back(peer.flat(at, n));
        kernels::reduce(std::span<tensor_view<gradient_element, space> const>(&own, 1),
                        std::span<tensor_view<gradient_element const, space> const>(terms_), reduction::sum{});
        kernels::sum_of_squares(tensor_view<gradient_element const, space>(own), squares);
      }
      record_bucket(state);
    }
  }

  // One collective for everything that must be decided together before any state changes.
  exchange_result vote(exact_sum& squares, std::int64_t votes, bool norm_known) {
    auto const limbs = squares.state();
    ballot_.assign(limbs.begin(), limbs.end());
    ballot_.push_back(votes);
    world_.all_reduce(tensor_view<std::int64_t>(ballot_), reduction::sum{});
    std::copy(ballot_.begin(), ballot_.end() - 1, limbs.begin());
    bool const finite = squares.non_finite() == 0;
    double const norm = norm_known ? std::sqrt(squares.value()) : std::numeric_limits<double>::quiet_NaN();
    return {norm, finite, ballot_.back()};
  }

  void give_back_gradients() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const [first, count] = owned_range(static_cast<int>(b));
      layout_.for_each_piece(static_cast<int>(b), first, count, [&](parallel::layout::piece const& piece) {
        kernels::copy(foreign_of(piece.entry).gradient.flat(piece.in_entry, piece.count),
                      tensor_view<gradient_element const, space>(
                          buckets_[b]->gradient.view().flat(piece.in_bucket, piece.count)));
      });
    }
  }

  std::span<tensor_view<gradient_element const, space> const> gradient_terms_of(int bucket,
                                                                                parallel::layout::piece const& piece) {
    auto const& state = *buckets_[static_cast<std::size_t>(bucket)];
    terms_.clear();
    if (direct() && fused_) {
      for (auto const& peer : state.peer_gradients) terms_.push_back(peer.flat(piece.in_bucket, piece.count));
    } else {
      terms_.push_back(state.gradient.view().flat(piece.in_bucket, piece.count));
    }
    return terms_;
  }
  std::span<tensor_view<param_element, space> const> outputs_of(int bucket, parallel::layout::piece const& piece) {
    auto const& state = *buckets_[static_cast<std::size_t>(bucket)];
    outputs_.clear();
    if (direct()) {
      for (int rank = 0; rank < world_.size(); ++rank) {
        if (!keeps_master && rank == world_.rank()) continue;  // the value itself
        outputs_.push_back(state.peer_values[static_cast<std::size_t>(rank)].flat(piece.in_bucket, piece.count));
      }
    } else if (keeps_master) {
      outputs_.push_back(state.value.view().flat(piece.in_bucket, piece.count));
    }
    return outputs_;
  }

  void gather_values() {
    pending_.clear();
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!foreign_.empty()) copy_foreign(b, true);
      pending_.push_back(world_.all_gather_async(buckets_[b]->value.view()));
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      pending_[b].wait();
      if (!foreign_.empty()) copy_foreign(b, false);
    }
  }
  // Between the caller's values and the bucket they are gathered in: own pieces in, all pieces out.
  void copy_foreign(std::size_t bucket, bool in) {
    auto const whole = buckets_[bucket]->value.view();
    auto const [first, count] =
        in ? accounted_range(static_cast<int>(bucket)) : std::pair{std::int64_t{0}, whole.size()};
    layout_.for_each_piece(static_cast<int>(bucket), first, count, [&](parallel::layout::piece const& piece) {
      auto const theirs = foreign_of(piece.entry).value.flat(piece.in_entry, piece.count);
      auto const ours = whole.flat(piece.in_bucket, piece.count);
      kernels::copy(in ? ours : theirs, tensor_view<param_element const, space>(in ? theirs : ours));
    });
  }

  // Gives a whole tensor of master values to this rank: its part of the masters, and what its layers read.
  void load(parallel::layout::entry const& entry, tensor_view<master_element const, space> whole) {
    kernels::copy(parameter_values(entry), whole);
    if constexpr (keeps_master) {
      auto const [first, count] = owned_range(entry.bucket);
      layout_.for_each_piece(entry.bucket, first, count, [&](parallel::layout::piece const& piece) {
        if (&layout_.at(piece.entry) != &entry) return;
        kernels::copy(master_of(entry.bucket, piece), whole.flat(piece.in_entry, piece.count));
      });
    }
  }

  Comm& world_;
  parallel::layout layout_;
  std::vector<parameter<Env>*> uses_;
  std::vector<foreign_parameter<param_element, space>> foreign_;
  std::vector<std::unique_ptr<bucket_state>> buckets_;
  std::vector<second_use> second_uses_;
  std::vector<tensor_view<gradient_element const, space>> terms_;
  std::vector<tensor_view<param_element, space>> outputs_;
  std::vector<parallel::detail::gather_request_t<Comm, param_element, space, sharded>> pending_;  // kept: no allocation
  std::vector<std::int64_t> ballot_;
  std::size_t next_ = 0;
  double weight_ = 1;
  bool fused_ = false;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme
