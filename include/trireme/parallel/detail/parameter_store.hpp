#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/direct_sums.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/gradient_store.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/detail/value_outputs.hpp"
#include "trireme/parallel/detail/value_store.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// The memory of parameters and gradients, in buckets, and what can be said of it between steps. The exchange (its only
/// heir) adds the steps.
template <class Env, class Comm, strategy Strategy, class Compressor>
class parameter_store {
 public:
  using space = typename Env::space;
  using param_element = typename Env::param;
  using gradient_element = typename Env::gradient;
  using master_element = typename Env::master;
  using kernels = ops::on<space>;
  using outputs = value_outputs<Env, Comm, Strategy>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool shards_parameters = Strategy::parameters == distribution::shard;
  static constexpr bool keeps_master = outputs::keeps_master;
  /// Ranks of one address space sum gradients by reading each other's.
  static constexpr bool can_be_direct =
      outputs::can_write_peers && Strategy::gradients == distribution::replicate && lossless_identity<Compressor> &&
      std::is_same_v<gradient_element, typename Env::reduce> && has_peers<Comm, gradient_element, space>;

  parameter_store(parameter_store const&) = delete;
  parameter_store& operator=(parameter_store const&) = delete;

  [[nodiscard]] parallel::layout const& plan() const noexcept { return layout_; }
  /// The ranks that gradients are summed over.
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  /// The ranks that vote.
  [[nodiscard]] Comm& everyone() const noexcept { return everyone_; }
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  [[nodiscard]] int use_count() const noexcept {
    return uses_.empty() ? foreign_.count() : static_cast<int>(uses_.size());
  }

  /// Fills every parameter with its start, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : layout_.entries()) {
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        kernels::initialise(whole.view().flat(here, n), entry.info.start, seed, hash_name(entry.info.name), first);
      });
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's. (No rank has a copy
  /// of another's where parameters are sharded.)
  void verify_replicas() { verify_among(world_); }
  /// The same among other ranks.
  void verify_among(Comm& ranks) {
    if constexpr (shards_parameters) return;
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks.size()));
    hashes[static_cast<std::size_t>(ranks.rank())] = hash_of_parameters();
    ranks.all_gather(tensor_view<std::uint64_t>(hashes));
    for (int rank = 1; rank < ranks.size(); ++rank) {
      if (hashes[static_cast<std::size_t>(rank)] == hashes[0]) continue;
      throw config_error(
          text("trireme::exchange: the parameters of rank ", rank, " differ from those of rank 0; start every rank ",
               foreign_.empty() ? "from the same seed, or call broadcast()"
                                : "from the same values: world.broadcast(values, 0) gives it those of rank 0"));
    }
  }

  /// Collective. Gives every rank the parameters of `root` (nothing to do where each has its own slices).
  void broadcast(int root = 0) {
    for (auto const& entry : layout_.entries()) broadcast(entry, world_, root);
  }
  /// Collective over `ranks`, all of which hold the tensor alike. The same for one tensor.
  void broadcast(layout::entry const& entry, Comm& ranks, int root) {
    if constexpr (shards_parameters) return;
    auto const values = parameter_values(entry);
    if constexpr (!keeps_master) {
      ranks.broadcast(values, root);
    } else if constexpr (!sharded) {
      auto const master = masters_[static_cast<std::size_t>(entry.bucket)].view().flat(entry.offset, entry.size());
      ranks.broadcast(master, root);
      kernels::copy(values, tensor_view<master_element const, space>(master));
    } else {  // the root has not all masters: the others' become what its layers read
      ranks.broadcast(values, root);
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      kernels::copy(whole.view(), tensor_view<param_element const, space>(values));
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  /// The elements of a bucket that this rank updates: (first, count).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> owned_range(int bucket) const noexcept {
    return sharded ? accounted_range(bucket)
                   : std::pair{std::int64_t{0}, layout_.buckets()[static_cast<std::size_t>(bucket)].elements};
  }
  /// The elements of a bucket that this rank answers for in hashes and checkpoints, unless another rank of its replica
  /// answers for the tensor (info.answers): each element is answered for once.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> accounted_range(int bucket) const noexcept {
    auto const n = layout_.slice_elements(bucket);
    return {world_.rank() * n, n};
  }

  /// The master value of a piece, wherever it lives.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket, layout::piece const& piece) const {
    if constexpr (keeps_master) {
      auto const& master = masters_[static_cast<std::size_t>(bucket)];
      return master.view().flat(piece.in_bucket - owned_range(bucket).first, piece.count);
    } else {
      if (!foreign_.empty()) return foreign_.value(layout_.at(piece.entry)).flat(piece.in_entry, piece.count);
      return values_.kept(bucket, piece);
    }
  }
  /// Calls f(name, place, view) for the master values of what this rank updates; see contract/state.hpp.
  /// @param of_rank  each rank has values of its own.
  template <class F>
  void visit_values(state_scope scope, F&& f, bool of_rank = false) {
    for (int bucket = 0; bucket < bucket_count(); ++bucket) {
      for_each_state_piece(
          scope, bucket,
          [&](layout::piece const& piece) {
            auto const& info = layout_.at(piece.entry).info;
            f("value/" + info.name, state_place{info, piece.in_entry, of_rank}, master_of(bucket, piece));
          },
          of_rank);
    }
  }
  /// Calls f(piece) for each piece of a bucket whose state this rank keeps, or answers for.
  /// @param of_rank  each rank answers for its own.
  template <class F>
  void for_each_state_piece(state_scope scope, int bucket, F&& f, bool of_rank = false) const {
    bool const kept = scope == state_scope::kept;
    auto const [first, count] = kept ? owned_range(bucket) : accounted_range(bucket);
    layout_.for_each_piece(bucket, first, count, [&](layout::piece const& piece) {
      if (kept || of_rank || layout_.at(piece.entry).info.answers) f(piece);
    });
  }
  /// Compressors forget what they keep: as before the first step.
  void forget_compression() { gradients_.forget_state(); }
  /// Calls f(name, state_place, view) for what the compressor keeps for one bucket; see contract/state.hpp.
  template <class F>
  void visit_compression(int bucket, state_scope scope, F&& f) const {
    gradients_.visit_state(bucket, scope, f);
  }
  /// Collective. Calls f(entry, values) with the whole master value of each tensor; the view is valid during the call.
  template <class F>
  void for_each_master(F&& f) {
    for (int b = 0; b < bucket_count(); ++b) {
      trireme::tensor<master_element, space> whole(shape{layout_.buckets()[static_cast<std::size_t>(b)].elements});
      auto const [first, count] = accounted_range(b);
      layout_.for_each_piece(b, first, count, [&](layout::piece const& piece) {
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
  /// The global hash of this rank's copy of all parameters. Collective where parameters are sharded: of all slices.
  [[nodiscard]] std::uint64_t hash_of_parameters() const {
    std::uint64_t sum = 0;
    auto const add = [&](layout::entry const& entry, std::int64_t from, auto values) {
      for_each_run(entry.info, from, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        sum += kernels::hash(tensor_view<param_element const, space>(values.flat(here - from, n)),
                             hash_name(entry.info.name), first);
      });
    };
    if constexpr (shards_parameters) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const [first, count] = accounted_range(b);
        layout_.for_each_piece(b, first, count, [&](layout::piece const& piece) {
          add(layout_.at(piece.entry), piece.in_entry, values_.kept(b, piece));
        });
      }
      world_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    } else {
      for (auto const& entry : layout_.entries()) add(entry, 0, parameter_values(entry));
    }
    return sum;
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (of the part of it that it updates).
  [[nodiscard]] bool has_finite_gradient(layout::entry const& entry) const {
    if (entry.frozen) return true;
    auto const [first, count] = shards_gradients ? owned_range(entry.bucket) : std::pair{entry.offset, entry.size()};
    bool finite = true;
    layout_.for_each_piece(entry.bucket, first, count, [&](layout::piece const& piece) {
      if (&layout_.at(piece.entry) != &entry) return;
      finite = finite && kernels::finite(tensor_view<gradient_element const, space>(
                             gradients_.reduced(entry.bucket, piece.in_bucket, piece.count)));
    });
    return finite;
  }
  /// What has been allocated for this rank so far.
  [[nodiscard]] exchange_memory memory() const {
    exchange_memory sum{.parameters = values_.kept_bytes(),
                        .gradients = gradients_.kept_bytes(),
                        .buffers = values_.buffer_bytes() + gradients_.buffer_bytes()};
    for (auto const& master : masters_) sum.masters += static_cast<std::int64_t>(master.view().bytes());
    return sum;
  }
  /// A tensor as this rank's layers see it; empty where parameters are sharded, but while its unit holds them.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(layout::entry const& entry) const {
    if (!foreign_.empty()) return foreign_.value(entry);
    auto const whole = values_.whole(entry.bucket);
    return whole.empty() ? whole : whole.flat(entry.offset, entry.size());
  }

 protected:
  using bucket_transport = transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool shards_gradients = Strategy::gradients == distribution::shard;

  parameter_store(std::vector<parameter<Env>*> uses, Comm& world, Comm& everyone, Strategy const& strategy,
                  Compressor const& compressor, std::span<int const> unit_ends, Comm* experts,
                  layout_wishes const& wishes)
      : world_(world),
        everyone_(everyone),
        layout_(agreed({infos(uses), bucket_elements(strategy, sizeof(gradient_element)), world.size(),
                        needs_units(strategy) ? unit_ends : no_units(), of_strategy(wishes)},
                       world, everyone.rank(), strategy, compressor)),
        uses_(std::move(uses)),
        values_(layout_, uses_, world_, true),
        gradients_(layout_, uses_, world_, compressor, sums_in_a_tree(strategy),
                   experts == nullptr && may_be_direct(strategy)),
        direct_(experts == nullptr && may_be_direct(strategy)),
        outputs_(layout_, values_, foreign_, world_) {
    if (needs_units(strategy)) expect_units(strategy, !unit_ends.empty());
    if (sums_in_a_tree(strategy))
      expect_tree(strategy, world.size(), sums_in_tree<bucket_transport>, lossless_identity<Compressor>);
    allocate();
  }
  parameter_store(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world, Comm& everyone,
                  Strategy const& strategy, Compressor const& compressor, layout_wishes const& wishes)
      : world_(world),
        everyone_(everyone),
        foreign_(std::move(parameters)),
        layout_(agreed({foreign_.infos(), bucket_elements(strategy, sizeof(gradient_element)), world.size(), no_units(),
                        of_strategy(wishes)},
                       world, everyone.rank(), strategy, compressor)),
        values_(layout_, uses_, world_, sharded),
        gradients_(layout_, uses_, world_, compressor, sums_in_a_tree(strategy), false),
        outputs_(layout_, values_, foreign_, world_) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    static_assert(!shards_parameters,
                  "trireme::exchange: parameters in the caller's memory cannot be dropped between uses; use "
                  "parallel::zero<2>");
    if (sums_in_a_tree(strategy)) {
      throw config_error(
          text("trireme::exchange: ", describe(strategy),
               " needs to know the micro-batches, and a model with memory of its own does not tell them; "
               "leave .reproducible out, or describe the model in units"));
    }
    allocate();
  }
  ~parameter_store() = default;

  static std::span<int const> no_units() { return {}; }
  // Where every rank updates everything, all tensors are whole there however slices cut them.
  static layout_wishes of_strategy(layout_wishes wishes) {
    wishes.whole_tensors = wishes.whole_tensors && sharded;
    return wishes;
  }
  // Whether gradients have memory only while they are used.
  static bool needs_units(Strategy const& strategy) { return shards_gradients || sums_in_a_tree(strategy); }
  static std::vector<parameter_info> infos(std::vector<parameter<Env>*> const& uses) {
    std::vector<parameter_info> all;
    for (auto const* use : uses) all.push_back(use->info);
    return all;
  }
  [[nodiscard]] int bucket_count() const noexcept { return static_cast<int>(layout_.buckets().size()); }
  [[nodiscard]] int trained_count() const noexcept { return layout_.trained_buckets(); }
  // Where the sum is all that is wanted, and no other rank adds to it later.
  [[nodiscard]] bool may_be_direct(Strategy const& strategy) const {
    auto const& all = layout_.entries();
    return can_be_direct && !sums_in_a_tree(strategy) &&
           std::none_of(all.begin(), all.end(), [](auto const& each) { return each.info.tied; });
  }
  void allocate() {
    for (int b = 0; b < bucket_count(); ++b) {
      if constexpr (keeps_master) {
        masters_.emplace_back(shape{owned_range(b).second});
        kernels::fill(masters_.back().view(), 0.0);
      }
      if constexpr (can_be_direct) {
        if (direct_ && b < layout_.trained_buckets()) direct_sums_.add_bucket(world_, gradients_.resident(b));
      }
    }
  }

  // Gives a whole tensor of master values to this rank: its part of the masters, and what its layers read.
  void load(layout::entry const& entry, tensor_view<master_element const, space> whole) {
    if constexpr (!shards_parameters) kernels::copy(parameter_values(entry), whole);
    if constexpr (!keeps_master && !shards_parameters) return;
    auto const [first, count] = owned_range(entry.bucket);
    layout_.for_each_piece(entry.bucket, first, count, [&](layout::piece const& piece) {
      if (&layout_.at(piece.entry) != &entry) return;
      auto const part = whole.flat(piece.in_entry, piece.count);
      if constexpr (keeps_master) kernels::copy(master_of(entry.bucket, piece), part);
      if constexpr (shards_parameters) kernels::copy(values_.kept(entry.bucket, piece), part);
    });
  }

  Comm& world_;
  Comm& everyone_;
  foreign_parameters<param_element, space> foreign_;
  layout layout_;
  std::vector<parameter<Env>*> uses_;
  value_store<Env, Comm, Strategy> values_;
  gradient_store<Env, Comm, Strategy, Compressor> gradients_;
  bool direct_ = false;  // sums are formed from all ranks' buckets, in their memory
  direct_sums<gradient_element, space> direct_sums_;
  outputs outputs_;
  std::vector<trireme::tensor<master_element, space>> masters_;  // by bucket, where parameters are not masters
};

}  // namespace trireme::parallel::detail
