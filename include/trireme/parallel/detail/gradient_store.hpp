#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/squares.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/detail/buffer_pool.hpp"
#include "trireme/parallel/detail/chosen_transport.hpp"
#include "trireme/parallel/detail/partial_sums.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/exchange_report.hpp"

namespace trireme::parallel::detail {

/// The memory of gradients. Each bucket has a lane, a gradient of its size, for each use of its tensors (several uses
/// only if a tied tensor is alone in it). Resident lanes keep their memory, pooled lanes borrow it from open() to
/// close(). Frozen parameters have no lane: layers write their gradients like all others, into one shared block.
template <class Env, class Comm, strategy Strategy, class Compressor>
class bucket_gradients {
 public:
  using space = typename Env::space;
  using element = typename Env::gradient;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  using bucket_transport = transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool sharded = Strategy::gradients == distribution::shard;

  /// The memory of a lane, and its transport to the other ranks.
  struct buffer {
    trireme::tensor<element, space> values;
    std::optional<bucket_transport> wire;
  };
  struct bucket_gradient {
    int bucket = 0;
    bool sent = true;       // reduced on its own
    std::vector<int> uses;  // the uses whose gradients are here
    int reports = 0;        // calls of ready() that complete it
    int missing = 0;
    std::unique_ptr<buffer> open;
    partial_sums<buffer> sums;              // sums in the tree over this rank's micro-batches
    trireme::tensor<element, space> shard;  // this rank's slice of the gradients reduced in this step
    std::int64_t rounds = 0;                // micro-batches reported, or (sharded) reduced, in this step
    bool flying = false;
    std::int64_t epoch = 0;  // units opened before it was sent
    double start_time = 0;
    double done_time = 0;
    std::uint64_t start_ns = 0;
    std::string_view label;
  };

  bucket_gradients(bucket_plan const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                   Compressor const& compressor, bool pooled)
      : plan_(plan), uses_(uses), world_(world), compressor_(compressor), pool_(plan), pooled_(pooled) {
    std::size_t count = 0;
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      first_.push_back(count);
      count += plan.at(plan.buckets()[static_cast<std::size_t>(b)].entries.front()).uses.size();
    }
    gradients_ = std::vector<bucket_gradient>(count);
    for (std::size_t b = 0; b < first_.size(); ++b) {
      auto const end = b + 1 < first_.size() ? first_[b + 1] : count;
      for (auto l = first_[b]; l < end; ++l) make(l, static_cast<int>(b), static_cast<int>(end - first_[b]));
    }
    bind_frozen();
  }
  bucket_gradients(bucket_gradients const&) = delete;
  bucket_gradients& operator=(bucket_gradients const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return pooled_; }
  [[nodiscard]] std::vector<bucket_gradient>& all() noexcept { return gradients_; }
  /// The lane of the first uses, which gets the bucket's sum.
  [[nodiscard]] bucket_gradient& first(int bucket) { return gradients_[first_[static_cast<std::size_t>(bucket)]]; }
  [[nodiscard]] bucket_gradient const& first(int bucket) const {
    return gradients_[first_[static_cast<std::size_t>(bucket)]];
  }
  /// The lane in which missing reports of a use are counted.
  [[nodiscard]] bucket_gradient& of_use(int use) { return gradients_[gradient_of_use_[static_cast<std::size_t>(use)]]; }

  [[nodiscard]] std::int64_t elements(bucket_gradient const& it) const {
    return plan_.buckets()[static_cast<std::size_t>(it.bucket)].elements;
  }
  [[nodiscard]] view whole(bucket_gradient const& it) const { return it.open->values.view().flat(0, elements(it)); }
  /// The gradient of one use within its open lane.
  [[nodiscard]] view of_use(bucket_gradient const& it, int use) const {
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    return whole(it).flat(entry.offset, entry.size());
  }

  /// Clears the gradients of frozen parameters, so that they do not grow over the steps.
  void clear_frozen() {
    if (!unread_.view().empty()) kernels::fill(unread_.view(), 0.0);
  }

  /// Gives a lane zeroed memory, unless it has some.
  void open(bucket_gradient& it) {
    if (it.open != nullptr) return;
    it.open = pool_.take(elements(it), [&](std::int64_t n) {
      auto made = std::make_unique<buffer>();
      made->values = message_tensor<element, space>(world_, shape{pooled_ ? n : elements(it)});
      if (it.sent) {
        made->wire.emplace(compressor_, form_of(it, made->values.view().size()), world_);
        payload_bytes_ += made->wire->bytes();
      }
      return made;
    });
    kernels::fill(whole(it), 0.0);
    bind(it, whole(it));
  }
  void close(bucket_gradient& it) {
    if (it.open == nullptr) return;
    bind(it, {});
    give_back(it, std::move(it.open));
  }
  /// Resets the state of compressors to that before the first step.
  void forget_state() {
    if constexpr (keeps_state<bucket_transport>) {
      for (auto& it : gradients_) {
        if (!pooled_ && it.sent) it.open->wire.emplace(compressor_, form_of(it, elements(it)), world_);
      }
    }
  }
  /// Returns a lane's memory to the pool.
  void give_back(bucket_gradient const& it, std::unique_ptr<buffer> memory) {
    pool_.give(elements(it), std::move(memory));
  }
  /// Points the gradients of a lane's uses into `values`, or to nothing.
  void bind(bucket_gradient const& it, view values) {
    if (uses_.empty()) return;
    for (int const use : it.uses) {
      auto const& entry = plan_.at(plan_.entry_of_use(use));
      uses_[static_cast<std::size_t>(use)]->gradient =
          values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
    }
  }

  /// Bytes of permanent gradients, and of borrowed ones: buffers, and the memory of compressors.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& it : gradients_) {
      sum += static_cast<std::int64_t>(it.shard.view().bytes());
      if (!pooled_) sum += static_cast<std::int64_t>(it.open->values.view().bytes());
    }
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    auto const unread = static_cast<std::int64_t>(unread_.view().bytes());
    return (pooled_ ? pool_.elements() * static_cast<std::int64_t>(sizeof(element)) : 0) + payload_bytes_ + unread;
  }

 private:
  // Memory of pooled lanes is used for several buckets.
  [[nodiscard]] bucket_form form_of(bucket_gradient const& it, std::int64_t elements) const {
    bucket_form form{elements, {}};
    if (pooled_) return form;
    for (int const e : plan_.buckets()[static_cast<std::size_t>(it.bucket)].entries)
      form.tensors.push_back({&plan_.at(e).info, plan_.at(e).offset});
    return form;
  }
  // Resident lanes of a tied tensor are added, then reduced; pooled ones are reduced one by one, then added.
  void make(std::size_t l, int bucket, int ways) {
    auto& it = gradients_[l];
    auto const which = l - first_[static_cast<std::size_t>(bucket)];
    it.bucket = bucket;
    it.sent = pooled_ || which == 0;
    auto const counted = it.sent ? l : l - which;
    for (int const e : plan_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const use = plan_.at(e).uses[which];
      it.uses.push_back(use);
      auto const at = static_cast<std::size_t>(use);
      if (at >= gradient_of_use_.size()) gradient_of_use_.resize(at + 1);
      gradient_of_use_[at] = counted;
    }
    it.reports = static_cast<int>(it.uses.size()) * (it.sent && !pooled_ ? ways : 1);
    if (!pooled_) open(it);
    if constexpr (sharded) {
      it.shard = trireme::tensor<element, space>(shape{plan_.slice_elements(bucket)});
      kernels::fill(it.shard.view(), 0.0);
    }
  }

  void bind_frozen() {
    std::int64_t longest = 0;
    for (auto const& entry : plan_.entries()) longest = entry.frozen ? std::max(longest, entry.size()) : longest;
    if (longest == 0 || uses_.empty()) return;
    unread_ = trireme::tensor<element, space>(shape{longest});
    clear_frozen();
    for (auto const& entry : plan_.entries()) {
      for (std::size_t u = 0; entry.frozen && u < entry.uses.size(); ++u) {
        uses_[static_cast<std::size_t>(entry.uses[u])]->gradient =
            unread_.view().flat(0, entry.size()).reshaped(entry.info.extents);
      }
    }
  }

  bucket_plan const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  Compressor compressor_;
  buffer_pool<buffer> pool_;
  bool pooled_;
  std::vector<bucket_gradient> gradients_;
  std::vector<std::size_t> first_;  // by bucket
  std::vector<std::size_t> gradient_of_use_;
  std::int64_t payload_bytes_ = 0;
  trireme::tensor<element, space> unread_;  // gradients of frozen parameters
};

/// The gradients of all buckets, from zero to the sum over all ranks.
///
/// Resident gradients are reduced once a step. Pooled ones (sharded, or summed in a tree) have memory from open_unit()
/// until they are reduced or have become a term of the tree, in each micro-batch.
template <class Env, class Comm, strategy Strategy, class Compressor>
class gradient_store {
  using gradients = bucket_gradients<Env, Comm, Strategy, Compressor>;
  using bucket_gradient = typename gradients::bucket_gradient;
  using buffer = typename gradients::buffer;
  using kernels = typename gradients::kernels;
  using wire = typename gradients::bucket_transport;

 public:
  using space = typename gradients::space;
  using element = typename gradients::element;
  using view = typename gradients::view;
  static constexpr bool sharded = gradients::sharded;
  static constexpr bool has_tree = sums_in_tree<wire>;
  static_assert(!sharded || !is_given_once<Compressor, Env, Comm>,
                "trireme::exchange: this compressor needs each gradient once a step, "
                "but from stage 2 on parallel::zero sends every micro-batch; use parallel::zero<1>");

  /// @param direct  the reader computes the sums: nothing is sent.
  gradient_store(bucket_plan const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                 Compressor const& compressor, bool in_a_tree, bool direct)
      : plan_(plan),
        world_(world),
        gradients_(plan, uses, world, compressor, sharded || in_a_tree),
        in_a_tree_(in_a_tree),
        direct_(direct),
        in_order_(!pooled() || plan.units().empty()) {}
  gradient_store(gradient_store const&) = delete;
  gradient_store& operator=(gradient_store const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return gradients_.pooled(); }
  [[nodiscard]] bool in_a_tree() const noexcept { return in_a_tree_; }
  [[nodiscard]] bool direct() const noexcept { return direct_; }
  [[nodiscard]] exchange_times& times() noexcept { return times_; }
  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  /// Of what was encoded in this step, where a payload may leave out numbers that are not finite.
  [[nodiscard]] ops::nonfinite_flag<space>& nonfinite() noexcept { return nonfinite_; }
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (auto& it : gradients_.all()) it.label = timeline.intern(text("bucket ", it.bucket));
  }
  /// Seconds of a steady clock; on one rank, which waits for no other, always 0: reading a clock twice a parameter
  /// takes a tenth of the step of a small network.
  [[nodiscard]] double now() const {
    if (world_.size() == 1) return 0;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// Counts the seconds of f(start) as exposed: nothing else happens in them.
  template <class F>
  void exposed(F&& f) {
    auto const start = now();
    f(start);
    times_.exposed += now() - start;
  }

  /// Starts a step, whose micro-batches are the terms of this rank's part of the tree: those that it does not run add
  /// nothing.
  /// @param rounds  the most micro-batches that any rank runs: the number of reports of a lane.
  /// @param number  of the step in the run.
  /// @param keep    resident gradients are not cleared.
  void begin(exchange_step const& step, std::int64_t rounds, std::int64_t number, bool keep) {
    step_ = number;
    scale_ = step.scale;
    leaves_ = step.micro_batches;
    rounds_ = rounds;
    places_.clear();
    for (auto const place : step.places) places_.push_back(place - step.first);
    for (auto& it : gradients_.all()) {
      it.missing = it.reports;
      it.rounds = 0;
      while (it.flying) {  // of an abandoned step
        auto const now = labelled(it);
        it.flying = !it.open->wire->turn();
      }
      if (!pooled()) {
        if (!keep) kernels::fill(gradients_.whole(it), 0.0);
        continue;
      }
      gradients_.close(it);
      it.sums.clear([&](std::unique_ptr<buffer> sum) { gradients_.give_back(it, std::move(sum)); });
    }
    gradients_.clear_frozen();
    in_flight_.clear();
    next_ = 0;
    nonfinite_.clear();
  }

  /// Gives the gradients of a unit zeroed memory for one micro-batch. Meanwhile only the unit before it is being
  /// reduced.
  void open_unit(int unit) {
    if (!pooled()) return;
    make_room();
    auto const& [first, last, buckets] = plan_.units()[static_cast<std::size_t>(unit)];
    for (int use = first; use < last; ++use) {
      if (plan_.trains(use)) open(gradients_.of_use(use));
    }
  }
  /// The gradient of one use, if the caller writes it (parameters in the caller's memory).
  [[nodiscard]] view open_use(int use) {
    auto& it = gradients_.of_use(use);
    if (it.open == nullptr) {
      make_room();
      open(it);
    }
    return gradients_.of_use(it, use);
  }

  /// The gradient of one use is final for this micro-batch.
  void ready(int use) {
    if (!plan_.trains(use)) return;
    auto const start = now();
    auto& it = gradients_.of_use(use);
    --it.missing;
    if (in_order_) {
      start_in_order();
    } else if (it.missing == 0) {
      complete(it);
    }
    progress();
    if (!requests_travel_alone(world_)) times_.covered += now() - start;
  }

  /// Starts the lanes that were not reported (all, on a rank without samples) and waits for all.
  void finish(double start) {
    if (in_order_) {
      for (auto& it : gradients_.all()) it.missing = 0;
      start_in_order();
    }
    while (!in_flight_.empty()) turn_all(start);
    if (!pooled()) return;
    for (auto& it : gradients_.all()) {  // the uses of a tied tensor, in their order
      auto& first = gradients_.first(it.bucket);
      if (&first == &it) continue;
      auto const sum = sharded ? first.shard.view() : gradients_.whole(first);
      kernels::add(sum, tensor_view<element const, space>(sharded ? it.shard.view() : gradients_.whole(it)));
    }
  }

  /// After finish(): the sum over all ranks of elements [first, first + count) of a bucket; of the rank's own slice if
  /// the optimizer's state is sharded.
  [[nodiscard]] view reduced(int bucket, std::int64_t first, std::int64_t count) const {
    auto const& it = gradients_.first(bucket);
    if constexpr (sharded) {
      return it.shard.view().flat(first - world_.rank() * plan_.slice_elements(bucket), count);
    } else {
      return gradients_.whole(it).flat(first, count);
    }
  }
  /// All of a bucket's resident gradient.
  [[nodiscard]] view resident(int bucket) const { return gradients_.whole(gradients_.first(bucket)); }
  /// The step was taken: the state that compressors have prepared becomes current.
  void commit() {
    if (pooled()) return;
    for (auto& it : gradients_.all()) {
      if (it.sent) it.open->wire->commit();
    }
  }
  /// Calls f(name, place, view) for the state that the compressor of a bucket keeps between steps.
  template <class F>
  void visit_state(int bucket, state_scope scope, F&& f) const {
    if constexpr (keeps_state<wire>) {
      if (!pooled()) gradients_.first(bucket).open->wire->visit_state(scope, f);
    }
  }
  void forget_state() { gradients_.forget_state(); }
  void record_bucket(int bucket) { record_span(gradients_.first(bucket)); }

  /// Bytes of permanent gradients, and of borrowed ones: buffers, and the memory of compressors.
  [[nodiscard]] std::int64_t kept_bytes() const { return gradients_.kept_bytes(); }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept { return gradients_.buffer_bytes(); }

 private:
  void open(bucket_gradient& it) {
    if (it.flying) collect(it, now());
    gradients_.open(it);
  }
  // Waits for the lanes sent before the last unit was opened.
  void make_room() {
    while (!in_flight_.empty() && in_flight_.front()->epoch < epoch_) {
      auto const start = now();
      collect(*in_flight_.front(), start);
      times_.exposed += now() - start;
    }
    ++epoch_;
  }

  // In the order of buckets, so that every rank starts the same collectives in the same order.
  void start_in_order() {
    auto& all = gradients_.all();
    for (; next_ < all.size() && (all[next_].missing == 0 || !all[next_].sent); ++next_) {
      auto& it = all[next_];
      if (!it.sent) continue;
      if (it.open == nullptr) open(it);
      for (auto l = next_ + 1; l < all.size() && !all[l].sent; ++l)  // further uses of a tied tensor
        kernels::add(gradients_.whole(it), tensor_view<element const, space>(gradients_.whole(all[l])));
      send(it);
    }
  }
  // Completes one micro-batch of a pooled lane, with zeros if it was not opened.
  void complete(bucket_gradient& it) {
    it.missing = it.reports;
    if (in_a_tree_) {
      auto const n = gradients_.elements(it);
      auto const merge = [&](buffer& left, std::unique_ptr<buffer> right) {
        kernels::add(left.values.view().flat(0, n), tensor_view<element const, space>(right->values.view().flat(0, n)));
        gradients_.give_back(it, std::move(right));
      };
      auto const round = static_cast<std::size_t>(it.rounds++);
      if (it.open != nullptr) it.sums.add(leaves_, places_[round], std::move(it.open), merge);
      if (it.rounds < rounds_) return gradients_.bind(it, {});
      it.open = it.sums.take(leaves_, merge);
      open(it);  // if it has no memory yet
      it.rounds = 0;
    }
    send(it);
  }
  void send(bucket_gradient& it) {
    it.start_time = now();
    it.done_time = not_done;
    if (timeline_ != nullptr) it.start_ns = observe::timeline::now();
    // A lossy payload may leave out the non-finite number: check before encoding.
    if constexpr (!lossless_identity<Compressor>)
      nonfinite_.look_at(tensor_view<element const, space>(gradients_.whole(it)));
    if (direct_) return;
    if constexpr (has_at_gradient<wire>) {
      it.open->wire->at_gradient({.step = step_,
                                  .bucket = &it - gradients_.all().data(),
                                  .micro_batch = it.rounds,
                                  .rank = world_.rank(),
                                  .ranks = world_.size()});
    }
    {
      auto const now = labelled(it);
      start(*it.open->wire, gradients_.whole(it));
    }
    // Buckets are sent in one order on every rank, so rounds may begin here.
    if (takes_rounds(*it.open->wire)) turn_all(now());
    it.flying = true;
    it.epoch = epoch_;
    in_flight_.push_back(&it);
  }
  void start(wire& way, view gradient) {
    if constexpr (has_tree) {
      if (in_a_tree_) return way.begin_in_a_tree(gradient);
    }
    way.begin(gradient, scale_);
  }
  // Until the end of the scope, calls are for this bucket.
  [[nodiscard]] comm::labelled labelled(bucket_gradient const& it) {
    return comm::labelled::as_part(world_, comm::call_label::bucket(it.bucket));
  }
  void progress() {
    for (auto* const it : in_flight_) {
      if (it->open->wire->test() && exactly_equal(it->done_time, not_done)) it->done_time = now();
    }
  }
  // A round of every bucket in transit, in the order in which they were sent.
  void turn_all(double asked) {
    for (std::size_t i = 0; i < in_flight_.size();) {
      if (!turn(*in_flight_[i], asked)) ++i;  // else it has left the list
    }
  }
  void collect(bucket_gradient& it, double asked) {
    while (!turn(it, asked)) {
    }
  }
  // Waits for a round of a lane; time before `asked` was hidden behind backward.
  bool turn(bucket_gradient& it, double asked) {
    auto const now = labelled(it);
    if (!it.open->wire->turn()) return false;
    it.flying = false;
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &it));
    if (requests_travel_alone(world_)) {
      times_.covered += std::max(0.0, std::min(asked, it.done_time) - it.start_time);
    }
    record_span(it);
    if constexpr (sharded) {
      auto const n = plan_.slice_elements(it.bucket);
      auto const slice = tensor_view<element const, space>(gradients_.whole(it).flat(world_.rank() * n, n));
      if (it.rounds++ == 0) {
        kernels::copy(it.shard.view(), slice);
      } else {
        kernels::add(it.shard.view(), slice);
      }
      gradients_.close(it);
    }
    return true;
  }
  void record_span(bucket_gradient const& it) {
    if (timeline_ == nullptr) return;
    timeline_->record({it.label, "exchange", it.start_ns, observe::timeline::now(), 1});
  }

  static constexpr double not_done = std::numeric_limits<double>::infinity();
  bucket_plan const& plan_;
  Comm& world_;
  gradients gradients_;
  bool in_a_tree_;
  bool direct_;
  bool in_order_;                            // lanes are sent in bucket order, whatever the order of ready()
  std::vector<bucket_gradient*> in_flight_;  // in the order in which they were sent
  std::int64_t leaves_ = 1;
  std::int64_t rounds_ = 1;
  double scale_ = 1;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> places_;
  std::int64_t epoch_ = 0;
  std::size_t next_ = 0;
  ops::nonfinite_flag<space> nonfinite_;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme::parallel::detail
