#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "trireme/compression/detail/parts_of_bucket.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"

namespace trireme::compression {

/// Chooses a compressor for each tensor by its name:
/// by_name<none, error_feedback<top_k>, power_sgd>{.list = {{.names = "*wte* *wpe*", .codec = error_feedback<top_k>{}},
/// {.names = "*.weight", .codec = power_sgd{}}}, .rest = none{}}. The first entry with a matching pattern is used.
///
/// Shapes   the tensors of a bucket that belong to the same entry are encoded as one piece.
/// Bytes    those of the chosen compressors for their tensors, in one collective (power_sgd: two) per bucket and entry.
///          Under parallel::zero<1>, too, every rank gets the sum of the whole bucket. Kept: the state of all of them,
///          and, in buckets with tensors of several entries, a copy of the gradient.
/// Ranks    as the chosen ones.          Numerics  as the chosen ones.
/// Errors   config_error if one of the compressors is not valid, or if a pattern matches no parameter.
/// @models  collective_compressor        @see compression::by_size
template <class... Codecs>
struct by_name {
  using policy_category = slot::compression;
  using codec_type = std::variant<Codecs...>;
  struct entry {
    std::string names{};  ///< patterns, separated by spaces; * matches any characters, ? one
    codec_type codec{};
    friend bool operator==(entry const&, entry const&) = default;
  };
  std::vector<entry> list{};
  codec_type rest{};  ///< of the tensors whose names match no pattern
  friend bool operator==(by_name const&, by_name const&) = default;

  void validate() const {
    auto const valid = [](auto const& one) { expect_valid(one); };
    for (auto const& each : list) std::visit(valid, each.codec);
    std::visit(valid, rest);
  }
  /// See compressor.hpp.
  void expect_momentum(double of_optimizer) const {
    auto const expect = [&](auto const& one) { trireme::expect_momentum(one, of_optimizer); };
    for (auto const& each : list) std::visit(expect, each.codec);
    std::visit(expect, rest);
  }
  /// See name_pattern.
  template <class F>
  void for_each_pattern(F&& f) const {
    for (auto const& each : list) f(name_pattern{"compression::by_name: .names", each.names});
  }

  template <class Env, class Comm>
  class instance : public detail::parts_of_bucket<Env, Comm> {
    using base = detail::parts_of_bucket<Env, Comm>;

   public:
    instance(by_name const& description, bucket_form const& form, Comm& world)
        : base(
              form, description.list.size() + 1,
              [&](parameter_info const& info) {
                std::size_t first = 0;
                while (first < description.list.size() && !matches_any(description.list[first].names, info.name))
                  ++first;
                return first;
              },
              [&](std::size_t which, bucket_form const& form_of_part) {
                auto const& chosen = which < description.list.size() ? description.list[which].codec : description.rest;
                return std::visit([&](auto const& one) { return base::made(one, form_of_part, world); }, chosen);
              }) {}
  };
};

template <class... Codecs>
[[nodiscard]] std::string to_string(by_name<Codecs...> const& c) {
  auto const written = [](auto const& codec) {
    return std::visit([](auto const& one) { return describe(one); }, codec);
  };
  std::string types, list;
  ((types += text(types.empty() ? "" : ", ", detail::type_of_text(describe(Codecs{})))), ...);
  for (auto const& each : c.list)
    list += text(list.empty() ? "" : ", ", "{.names = \"", each.names, "\", .codec = ", written(each.codec), "}");
  return text("compression::by_name<", types, ">{.list = {", list, "}, .rest = ", written(c.rest), "}");
}

}  // namespace trireme::compression
