#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/compression/detail/parts_of_bucket.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"

namespace trireme::compression {

/// Sends the gradients of small tensors with one compressor and those of large ones with another:
/// by_size<none, error_feedback<top_k>>{.bytes = 1 << 16} leaves biases and norms as they are, which have few bytes and
/// need exact gradients more than matrices do.
///
/// Shapes   a tensor is large if its gradient has at least `bytes` bytes. The tensors of a bucket with the same
///          compressor are encoded as one piece.
/// Bytes    those of Small and Large for their tensors, in one collective (power_sgd: two) each per bucket. Under
///          parallel::zero<1>, too, every rank gets the sum of the whole bucket. Kept: the state of both, and, in
///          buckets that have tensors of both sizes, a copy of the gradient.
/// Ranks    as Small and Large.          Numerics  as Small and Large.
/// Errors   config_error if `bytes` is negative, or if Small or Large is not valid.
/// @models  collective_compressor        @see compression::by_name
template <class Small, class Large>
struct by_size {
  using policy_category = slot::compression;
  Small small{};
  Large large{};
  std::int64_t bytes = 65536;  ///< of the gradient of a tensor, from which it is large
  friend bool operator==(by_size const&, by_size const&) = default;

  void validate() const {
    expect_number("compression::by_size", ".bytes", bytes, not_negative);
    expect_valid(small);
    expect_valid(large);
  }
  /// See compressor.hpp.
  void expect_momentum(double of_optimizer) const {
    trireme::expect_momentum(small, of_optimizer);
    trireme::expect_momentum(large, of_optimizer);
  }

  template <class Env, class Comm>
  class instance : public detail::parts_of_bucket<Env, Comm> {
    using base = detail::parts_of_bucket<Env, Comm>;

   public:
    instance(by_size const& description, bucket_form const& form, Comm& world)
        : base(
              form, 2,
              [&](parameter_info const& info) -> std::size_t {
                auto const size = info.extents.size() * static_cast<std::int64_t>(sizeof(typename Env::gradient));
                return size < description.bytes ? 0 : 1;
              },
              [&](std::size_t which, bucket_form const& form_of_part) {
                return which == 0 ? base::made(description.small, form_of_part, world)
                                  : base::made(description.large, form_of_part, world);
              }) {}
  };
};

template <class Small, class Large>
[[nodiscard]] std::string to_string(by_size<Small, Large> const& c) {
  auto const small = describe(c.small);
  auto const large = describe(c.large);
  return text("compression::by_size<", detail::type_of_text(small), ", ", detail::type_of_text(large),
              ">{.small = ", small, ", .large = ", large, ", .bytes = ", c.bytes, "}");
}

}  // namespace trireme::compression
