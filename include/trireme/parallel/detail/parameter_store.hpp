#pragma once

#include <cstdint>
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
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme {

namespace parallel::detail {

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

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool keeps_master = !std::is_same_v<param_element, master_element>;
  /// Ranks of one address space reduce, update and publish by reading and writing each other's buckets.
  static constexpr bool can_be_direct =
      sharded && lossless_identity<Compressor> && std::is_same_v<gradient_element, typename Env::reduce> &&
      has_peers<Comm, gradient_element, space> && has_peers<Comm, param_element, space>;

  parameter_store(parameter_store const&) = delete;
  parameter_store& operator=(parameter_store const&) = delete;

  [[nodiscard]] parallel::layout const& plan() const noexcept { return layout_; }
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  [[nodiscard]] int use_count() const noexcept {
    return static_cast<int>(uses_.empty() ? foreign_.size() : uses_.size());
  }

  /// Fills every parameter with its start, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : layout_.entries()) {
      tensor<master_element, space> whole(shape{entry.size()});
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        kernels::initialise(whole.view().flat(here, n), entry.info.start, seed, hash_name(entry.info.name), first);
      });
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
  /// As before the first step: nothing is left to tell.
  void forget_residuals() {
    for (int bucket = 0; bucket < static_cast<int>(buckets_.size()); ++bucket) {
      if (auto const residual = residual_of(bucket); !residual.empty()) kernels::fill(residual, 0.0);
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
      auto const values = parameter_values(entry);
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        sum += kernels::hash(tensor_view<param_element const, space>(values.flat(here, n)), hash_name(entry.info.name),
                             first);
      });
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

 protected:
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

  parameter_store(std::vector<parameter<Env>*> uses, Comm& world, Strategy const& strategy,
                  Compressor const& compressor)
      : world_(world), layout_(infos(uses), elements(strategy), world.size()), uses_(std::move(uses)) {
    allocate(compressor);
    bind();
  }
  parameter_store(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world,
                  Strategy const& strategy, Compressor const& compressor)
      : world_(world), layout_(infos(parameters), elements(strategy), world.size()), foreign_(std::move(parameters)) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    allocate(compressor);
  }
  ~parameter_store() = default;

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
      state->gradient = message_tensor<gradient_element, space>(world_, shape{bucket.elements});
      kernels::fill(state->gradient.view(), 0.0);
      if (foreign_.empty() || sharded) {
        state->value = message_tensor<param_element, space>(world_, shape{bucket.elements});
        kernels::fill(state->value.view(), 0.0);
      }
      if constexpr (keeps_master) {
        state->master = tensor<master_element, space>(shape{owned_range(b).second});
        kernels::fill(state->master.view(), 0.0);
      }
      for (int const e : bucket.entries) state->uses += static_cast<int>(layout_.at(e).uses.size());
      state->transport = std::make_unique<bucket_transport>(compressor, state->gradient.view(), world_);
      if constexpr (can_be_direct) {
        if (direct()) {
          state->peer_gradients = world_.peers(state->gradient.view());
          state->peer_values = world_.peers(state->value.view());
        }
      }
      buckets_.push_back(std::move(state));
    }
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
  std::vector<tensor_view<param_element, space>> outputs_;
  std::vector<parallel::detail::gather_request_t<Comm, param_element, space, sharded>> pending_;  // kept: no allocation
};

}  // namespace parallel::detail

}  // namespace trireme
