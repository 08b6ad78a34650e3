#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/compression/one_of.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression::detail {

/// A summable or gatherable compressor with the interface of a collective one: it encodes its gradients as one piece,
/// and one collective sends the payload.
template <class Env, class Comm, class Codec>
class one_piece {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using view = tensor_view<gradient, space>;
  using state = compressor_state<Codec, Env>;
  static constexpr bool summable = summable_compressor<Codec, Env>;
  static constexpr bool identity = lossless_identity<Codec> && std::is_same_v<gradient, typename Env::reduce>;

  template <bool Summable, class State>
  struct payload_of {
    using type = std::byte;
  };
  template <class State>
  struct payload_of<true, State> {
    using type = typename State::wire;
  };
  using payload_element = typename payload_of<summable, state>::type;
  static auto start_for_type(Comm& world) {
    if constexpr (identity) {
      return world.all_reduce_async(view{}, reduction::sum{});
    } else if constexpr (summable) {
      return world.all_reduce_async(tensor_view<payload_element, space>{}, reduction::sum{});
    } else {
      return world.all_gather_async(tensor_view<std::uint8_t, space>{});
    }
  }
  using request = decltype(start_for_type(std::declval<Comm&>()));

 public:
  one_piece(Codec const& codec, bucket_form const& form, Comm& world)
      : world_(world), codec_(make_compressor_state<Codec, Env>(codec, form)) {
    auto const n = form.elements;
    if constexpr (identity) {
      return;
    } else if constexpr (has_payload_elements<state>) {
      sent_ = message_tensor<payload_element, space>(world, shape{codec_.payload_elements(n)});
    } else if constexpr (summable) {
      sent_ = message_tensor<payload_element, space>(world, shape{n});
    } else {
      sent_ = message_tensor<payload_element, space>(world, shape{world.size() * codec_.payload_bytes(n)});
    }
  }

  void at_gradient(encoded_gradient const& which) requires(has_at_gradient<state>) { codec_.at_gradient(which); }
  void begin(view piece, [[maybe_unused]] double scale) {
    piece_ = piece;
    if constexpr (requires { codec_.at_scale(scale); }) codec_.at_scale(scale);
    if constexpr (identity) {
      pending_.emplace(world_.all_reduce_async(piece_, reduction::sum{}));
    } else if constexpr (summable) {
      codec_.encode(piece_, sent_.view(), 0);
      pending_.emplace(world_.all_reduce_async(sent_.view(), reduction::sum{}));
    } else {
      bytes_of_rank_ = codec_.payload_bytes(piece_.size());
      codec_.encode(piece_, payload(world_.rank()), 0);
      auto* const from = reinterpret_cast<std::uint8_t*>(sent_.view().address());
      pending_.emplace(
          world_.all_gather_async(tensor_view<std::uint8_t, space>(from, shape{world_.size() * bytes_of_rank_})));
    }
  }
  [[nodiscard]] bool test() { return !pending_ || pending_->test(); }
  bool turn() {
    if (!pending_) return true;
    trireme::order(*pending_);
    pending_.reset();
    if constexpr (identity) {
      return true;
    } else if constexpr (summable) {
      codec_.decode(sent_.view(), piece_);
    } else {
      for (int rank = 0; rank < world_.size(); ++rank)  // in rank order: equal bits everywhere
        codec_.decode(payload(rank), piece_, rank > 0);
    }
    return true;
  }
  [[nodiscard]] static constexpr bool takes_rounds() noexcept { return false; }
  void commit() {
    if constexpr (has_commit<state>) codec_.commit();
  }
  template <class F>
  void visit_state(state_scope scope, F&& f) requires requires(state& own) {
    own.visit_state(scope, f);
  }
  { codec_.visit_state(scope, f); }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t own = 0;
    if constexpr (requires { codec_.bytes(); }) own = codec_.bytes();
    return own + static_cast<std::int64_t>(sent_.view().bytes());
  }

 private:
  [[nodiscard]] tensor_view<payload_element, space> payload(int rank) {
    return sent_.view().flat(rank * bytes_of_rank_, bytes_of_rank_);
  }

  Comm& world_;
  state codec_;
  std::int64_t bytes_of_rank_ = 0;       // of the payload that is sent
  tensor<payload_element, space> sent_;  // the payload; those of all ranks if they are gathered
  view piece_;
  std::optional<request> pending_;
};

/// The run state of a compressor that chooses another one for each tensor: the tensors of a bucket that have the same
/// compressor are one part, which is copied to memory of its own, unless it is the whole bucket.
/// @models collective_compressor
template <class Env, class Comm>
class parts_of_bucket {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using view = tensor_view<gradient, space>;
  using kernels = ops::on<space>;
  using visitor = std::function<void(std::string const&, state_location const&, view)>;

 protected:
  struct codec {
    codec() = default;
    codec(codec const&) = delete;
    codec& operator=(codec const&) = delete;
    virtual ~codec() = default;
    virtual void at_gradient(encoded_gradient const& which) = 0;
    virtual void begin(view piece, double scale) = 0;
    virtual bool test() = 0;
    virtual bool turn() = 0;
    virtual void commit() = 0;
    virtual void visit_state(state_scope scope, visitor const& f) = 0;
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
    [[nodiscard]] virtual bool takes_rounds() const = 0;
  };
  /// @param codecs  how many there are to choose from.
  /// @param which   the number of the codec for the tensor of an info.
  /// @param make    the codec of a number, made for a bucket_form.
  template <class Which, class Make>
  parts_of_bucket(bucket_form const& form, std::size_t codecs, Which&& which, Make&& make) {
    for (std::size_t c = 0; c < codecs; ++c) {
      part mine;
      bucket_form packed;
      for (auto const& each : form.tensors) {
        if (which(*each.info) != c) continue;
        auto const size = each.info->extents.size();
        mine.copied.push_back({each.offset, packed.elements, size});
        packed.tensors.push_back({each.info, packed.elements});
        packed.elements += size;
      }
      if (mine.copied.empty()) continue;
      mine.whole = mine.copied.size() == form.tensors.size();
      if (mine.whole) {
        mine.copied.clear();
      } else {
        mine.packed = tensor<gradient, space>(shape{packed.elements});
      }
      mine.with = make(c, mine.whole ? form : packed);
      parts_.push_back(std::move(mine));
    }
  }
  template <class Codec>
  [[nodiscard]] static std::unique_ptr<codec> made(Codec const& description, bucket_form const& form, Comm& world) {
    static_assert(compressor<Codec, Env, Comm>,
                  "trireme::compression::by_size and by_name: what they choose from must be compressors that work in "
                  "the communicator's memory; see docs/write_a_policy.md");
    if constexpr (has_collective_state<Codec, Env, Comm>) {
      return std::make_unique<holder<typename Codec::template instance<Env, Comm>>>(description, form, world);
    } else {
      return std::make_unique<holder<one_piece<Env, Comm, Codec>>>(description, form, world);
    }
  }
  template <class... Codecs>
  [[nodiscard]] static std::unique_ptr<codec> made(one_of<Codecs...> const& description, bucket_form const& form,
                                                   Comm& world) {
    return std::visit([&](auto const& chosen) { return made(chosen, form, world); }, description.chosen);
  }

 public:
  void at_gradient(encoded_gradient const& which) {
    auto own = which;
    for (std::size_t i = 0; i < parts_.size(); ++i) {  // the bucket is sent once a step: the parts are told apart here
      own.micro_batch = static_cast<std::int64_t>(i);
      parts_[i].with->at_gradient(own);
    }
  }
  void begin(view bucket, double scale) {
    bucket_ = bucket;
    for (auto& it : parts_) {
      for (auto const& each : it.copied)
        kernels::copy(each.in(it.packed), tensor_view<gradient const, space>(each.in(bucket)));
      it.with->begin(it.whole ? bucket : it.packed.view(), scale);
      it.pending = true;
    }
  }
  [[nodiscard]] bool test() {
    bool all = true;
    for (auto& it : parts_) all = (!it.pending || it.with->test()) && all;
    return all;
  }
  bool turn() {
    bool all = true;
    for (auto& it : parts_) {
      if (!it.pending) continue;
      it.pending = !it.with->turn();
      all = all && !it.pending;
      if (it.pending) continue;
      for (auto const& each : it.copied)
        kernels::copy(each.in(bucket_), tensor_view<gradient const, space>(each.in(it.packed)));
    }
    return all;
  }
  void commit() {
    for (auto& it : parts_) it.with->commit();
  }
  void visit_state(state_scope scope, visitor const& f) {
    for (auto& it : parts_) it.with->visit_state(scope, f);
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (auto const& it : parts_) sum += it.with->bytes() + static_cast<std::int64_t>(it.packed.view().bytes());
    return sum;
  }
  [[nodiscard]] bool takes_rounds() const {
    bool any = false;
    for (auto const& it : parts_) any = any || it.with->takes_rounds();
    return any;
  }

 private:
  template <class Held>
  struct holder final : codec {
    template <class Description>
    holder(Description const& description, bucket_form const& form, Comm& world) : held(description, form, world) {}
    void at_gradient([[maybe_unused]] encoded_gradient const& which) override {
      if constexpr (has_at_gradient<Held>) held.at_gradient(which);
    }
    void begin(view piece, double scale) override { held.begin(piece, scale); }
    bool test() override { return held.test(); }
    bool turn() override { return held.turn(); }
    void commit() override { held.commit(); }
    void visit_state([[maybe_unused]] state_scope scope, [[maybe_unused]] visitor const& f) override {
      if constexpr (requires { held.visit_state(scope, f); }) held.visit_state(scope, f);
    }
    [[nodiscard]] std::int64_t bytes() const override { return held.bytes(); }
    [[nodiscard]] bool takes_rounds() const override {
      if constexpr (requires { held.takes_rounds(); }) {
        return held.takes_rounds();
      } else {
        return true;
      }
    }
    Held held;
  };
  struct place {
    std::int64_t in_bucket, in_part, size;
    [[nodiscard]] view in(view bucket) const { return bucket.flat(in_bucket, size); }
    [[nodiscard]] view in(tensor<gradient, space> const& packed) const { return packed.view().flat(in_part, size); }
  };
  struct part {
    bool whole = false;  // it is the bucket
    bool pending = false;
    std::vector<place> copied;  // the tensors, if there are others in the bucket
    tensor<gradient, space> packed;
    std::unique_ptr<codec> with;
  };

  view bucket_;
  std::vector<part> parts_;
};

/// The type of a description as its text names it.
[[nodiscard]] inline std::string type_of_text(std::string const& description) {
  return description.substr(0, description.find('{'));
}

}  // namespace trireme::compression::detail
