// test-timeout: 300
// A compressor as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/trireme.hpp"

namespace user {

using namespace trireme;

/// One bit a gradient: its sign [Seide et al., 2014]. The sign stands for a length that each tensor has, a running mean
/// of the magnitudes; what a step leaves out is added to the next gradient.
struct sign {
  using policy_category = slot::compression;
  float memory = 0.9F;  // of the running mean
  friend bool operator==(sign const&, sign const&) = default;

  template <class Env, class Comm>
  class instance {
    using gradients = tensor_view<typename Env::gradient>;
    using request = decltype(std::declval<Comm&>().all_gather_async(tensor_view<std::uint8_t>{}));

   public:
    instance(sign const& description, bucket_form const& form, Comm& world)
        : memory_(description.memory),
          world_(world),
          residual_(static_cast<std::size_t>(form.elements)),
          next_residual_(residual_),
          next_length_(form.tensors.size()) {
      for (auto const& [info, offset] : form.tensors) {
        parts_.push_back({info, offset, one_number(*info), {0.0F}});
        bytes_ += 4 + (info->extents.size() + 7) / 8;
      }
      payloads_.resize(static_cast<std::size_t>(bytes_ * world.size()));
    }

    void begin(gradients gradient, double scale) {
      gradient_ = gradient;
      scale_ = static_cast<float>(scale);
      auto* to = payloads_.data() + bytes_ * world_.rank();
      for (std::size_t t = 0; t < parts_.size(); ++t) to = encode(t, to);
      pending_.emplace(world_.all_gather_async(tensor_view<std::uint8_t>(payloads_)));
    }
    bool test() { return !pending_ || pending_->test(); }
    bool turn() {
      if (!pending_) return true;
      pending_->wait();
      pending_.reset();
      auto const* from = payloads_.data();
      for (int rank = 0; rank < world_.size(); ++rank)  // in one order on every rank
        for (auto const& part : parts_) from = decode(part, from, rank > 0);
      return true;
    }
    void commit() {
      std::swap(residual_, next_residual_);
      for (std::size_t t = 0; t < parts_.size(); ++t) parts_[t].length[0] = next_length_[t];
    }
    template <class F>
    void visit_state(state_scope, F&& f) {  // each rank has its own
      for (auto& part : parts_) {
        f("residual/" + part.info->name, state_place{*part.info, 0, true},
          tensor_view<float>(residual_).flat(part.offset, part.info->extents.size()));
        f("sign_length/" + part.info->name, state_place{part.length_info, 0, true}, tensor_view<float>(part.length));
      }
    }
    std::int64_t bytes() const {
      return static_cast<std::int64_t>(payloads_.size() + 4 * (2 * residual_.size() + 2 * parts_.size()));
    }

   private:
    struct part {
      parameter_info const* info;
      std::int64_t offset;
      parameter_info length_info;
      std::vector<float> length;
    };
    static parameter_info one_number(parameter_info const& info) {
      parameter_info one;
      one.name = info.name;
      one.extents = {1};
      return one;
    }

    // The residual and the lengths are kept without the factor of the gradients.
    std::uint8_t* encode(std::size_t t, std::uint8_t* to) {
      auto const& part = parts_[t];
      auto const n = part.info->extents.size();
      auto const value = [&](std::int64_t i) {
        auto const at = part.offset + i;
        return gradient_[at] / scale_ + residual_[static_cast<std::size_t>(at)];
      };
      double mean = 0;
      for (std::int64_t i = 0; i < n; ++i) mean += std::abs(static_cast<double>(value(i))) / static_cast<double>(n);
      auto const length = part.length[0] == 0 ? static_cast<float>(mean)
                                              : memory_ * part.length[0] + (1 - memory_) * static_cast<float>(mean);
      next_length_[t] = length;
      float const told = length * scale_;
      std::memcpy(to, &told, 4);
      std::uint8_t* const bits = to + 4;
      std::fill(bits, bits + (n + 7) / 8, std::uint8_t{0});
      for (std::int64_t i = 0; i < n; ++i) {
        bool const negative = value(i) < 0;
        if (negative) bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1 << i % 8);
        next_residual_[static_cast<std::size_t>(part.offset + i)] = value(i) - (negative ? -length : length);
      }
      return bits + (n + 7) / 8;
    }
    std::uint8_t const* decode(part const& part, std::uint8_t const* from, bool add) {
      auto const n = part.info->extents.size();
      float length = 0;
      std::memcpy(&length, from, 4);
      auto const* const bits = from + 4;
      for (std::int64_t i = 0; i < n; ++i) {
        auto& to = gradient_[part.offset + i];
        to = (add ? to : 0) + ((bits[i / 8] >> i % 8 & 1) != 0 ? -length : length);
      }
      return bits + (n + 7) / 8;
    }

    float memory_;
    Comm& world_;
    std::vector<part> parts_;
    std::vector<float> residual_, next_residual_, next_length_;
    std::vector<std::uint8_t> payloads_;
    std::int64_t bytes_ = 0;
    gradients gradient_;
    float scale_ = 1;
    std::optional<request> pending_;
  };
};

std::string to_string(sign const& c) { return text("user::sign{.memory = ", c.memory, "f}"); }

}  // namespace user

#include "../compression/compressed_training.hpp"
#include "../watchdog.hpp"

using namespace trireme;

TEST_CASE("a user's sign compressor learns with one bit a gradient, and goes on bit for bit", "[policies]") {
  watchdog const watch("sign compressor", std::chrono::seconds(240));
  for (int const ranks : {1, 2, 4}) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      parallel::data const small{.bucket_bytes = 4096};
      auto& mine = found[static_cast<std::size_t>(world.rank())];
      mine = compressed::learns(world, 0.5, small, user::sign{}) + compressed::resumes(world, small, user::sign{}) +
             compressed::resumes(world, parallel::zero<1>{.bucket_bytes = 4096}, user::sign{});
    });
    CHECK(found == std::vector<std::string>(found.size()));
  }
}

TEST_CASE("a user's sign compressor sends one bit a gradient and a number a tensor", "[policies]") {
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    std::vector<float> values(8000), gradients(8000, 1.0F);
    auto exchange = make_exchange(
        std::vector{foreign_parameter<float>{"w", tensor_view<float>(values), tensor_view<float>(gradients)}}, world,
        user::sign{});
    exchange.begin();
    exchange.ready("w");
    auto const before = world.traffic().bytes_sent;
    exchange.finish();
    auto const sent = world.traffic().bytes_sent - before;
    bool const few = sent < 8000 / 8 + 4 + 2048;  // the vote
    bool const right = gradients[0] == 1 && gradients[7999] == 1;
    if (world.rank() == 0) CHECK((few && right));
  });
}
