#pragma once

// A compressor as its user would write it after docs/write_a_policy.md, with public headers alone.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/trireme.hpp>

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
    using space = typename Env::space;
    using kernels = ops::on<space>;
    using gradients = tensor_view<typename Env::gradient, space>;
    using request = decltype(std::declval<Comm&>().all_gather_async(tensor_view<std::uint8_t, space>{}));

   public:
    instance(sign const& description, bucket_form const& form, Comm& world)
        : memory_(description.memory), world_(world) {
      for (auto const& [info, offset] : form.tensors) {
        parts_.push_back({info, offset, info->extents.size(), one_number(*info)});
        bytes_ += 4 + (info->extents.size() + 7) / 8;
      }
      payloads_ = tensor<std::uint8_t, space>(shape{bytes_ * world.size()});
      for (auto* const each : {&residual_, &next_residual_}) *each = tensor<float, space>(shape{form.elements});
      for (auto* const each : {&length_, &next_length_})
        *each = tensor<float, space>(shape{static_cast<std::int64_t>(parts_.size())});
      for (auto* const each : {&residual_, &length_}) kernels::fill(each->view(), 0.0);
    }

    void begin(gradients gradient, double scale) {
      gradient_ = gradient;
      kernels::with_values(
          [&](auto values, auto residual, auto next, auto length, auto next_length, auto payload) {
            auto* to = payload.data();
            for (std::size_t t = 0; t < parts_.size(); ++t) {
              auto const first = static_cast<std::size_t>(parts_[t].offset);
              auto const n = static_cast<std::size_t>(parts_[t].count);
              to = encode(values.subspan(first, n), residual.subspan(first, n), next.subspan(first, n), length[t],
                          next_length[t], static_cast<float>(scale), to);
            }
          },
          gradient, residual_.view(), next_residual_.view(), length_.view(), next_length_.view(),
          payloads_.view().flat(bytes_ * world_.rank(), bytes_));
      pending_.emplace(world_.all_gather_async(payloads_.view()));
    }
    bool test() { return !pending_ || pending_->test(); }
    bool turn() {
      if (!pending_) return true;
      pending_->wait();
      pending_.reset();
      kernels::with_values(
          [&](auto values, auto payloads) {
            std::uint8_t const* from = payloads.data();
            for (int rank = 0; rank < world_.size(); ++rank)  // in one order on every rank
              for (auto const& part : parts_)
                from =
                    decode(values.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.count)),
                           from, rank > 0);
          },
          gradient_, payloads_.view());
      return true;
    }
    void commit() {
      std::swap(residual_, next_residual_);
      std::swap(length_, next_length_);
    }
    template <class F>
    void visit_state(state_scope, F&& f) {  // each rank has its own
      for (std::size_t t = 0; t < parts_.size(); ++t) {
        auto const& part = parts_[t];
        f("residual/" + part.info->name, state_location{*part.info, 0, true},
          residual_.view().flat(part.offset, part.count));
        f("sign_length/" + part.info->name, state_location{part.length_info, 0, true},
          length_.view().flat(static_cast<std::int64_t>(t), 1));
      }
    }
    std::int64_t bytes() const {
      return static_cast<std::int64_t>(payloads_.view().bytes() + 2 * residual_.view().bytes() +
                                       2 * length_.view().bytes());
    }

   private:
    struct part {
      parameter_info const* info;
      std::int64_t offset, count;
      parameter_info length_info;
    };
    static parameter_info one_number(parameter_info const& info) {
      parameter_info one;
      one.name = info.name;
      one.extents = {1};
      return one;
    }

    // The residual and the lengths are kept without the factor of the gradients.
    template <class Values, class Residual, class Next>
    std::uint8_t* encode(Values values, Residual residual, Next next, float length, float& next_length, float scale,
                         std::uint8_t* to) const {
      auto const n = values.size();
      double mean = 0;
      for (std::size_t i = 0; i < n; ++i) {
        next[i] = static_cast<float>(values[i]) / scale + residual[i];
        mean += std::abs(static_cast<double>(next[i])) / static_cast<double>(n);
      }
      next_length =
          length == 0 ? static_cast<float>(mean) : memory_ * length + (1 - memory_) * static_cast<float>(mean);
      float const told = next_length * scale;
      std::memcpy(to, &told, 4);
      std::uint8_t* const bits = to + 4;
      std::fill(bits, bits + (n + 7) / 8, std::uint8_t{0});
      for (std::size_t i = 0; i < n; ++i) {
        bool const negative = next[i] < 0;
        if (negative) bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1U << i % 8);
        next[i] -= negative ? -next_length : next_length;
      }
      return bits + (n + 7) / 8;
    }
    template <class Values>
    static std::uint8_t const* decode(Values values, std::uint8_t const* from, bool add) {
      float length = 0;
      std::memcpy(&length, from, 4);
      auto const* const bits = from + 4;
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = (add ? values[i] : 0) + ((bits[i / 8] >> i % 8 & 1U) != 0 ? -length : length);
      return bits + (values.size() + 7) / 8;
    }

    float memory_;
    Comm& world_;
    std::vector<part> parts_;
    tensor<float, space> residual_, next_residual_, length_, next_length_;
    tensor<std::uint8_t, space> payloads_;
    std::int64_t bytes_ = 0;  // of one rank's payload
    gradients gradient_;
    std::optional<request> pending_;
  };
};

inline std::string to_string(sign const& c) { return text("user::sign{.memory = ", c.memory, "f}"); }

}  // namespace user
