#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/distinct_lists.hpp"
#include "trireme/train/state_shard.hpp"

namespace trireme::detail {

struct named_shape {
  std::string name;
  shape extents;
};

/// Collective. The tensors of which any rank has a part, each once, with their whole extents, in rank order.
template <class Comm>
[[nodiscard]] std::vector<named_shape> tensors_of_everyone(Comm& world, parallel::bucket_plan const& own) {
  parallel::word_list words;  // of each tensor: the length of its name, its number of axes, its extents, its name
  for (auto const& entry : own.entries()) {
    auto const& whole = entry.info.whole_extents();
    auto const& name = entry.info.name;
    words.push_back(name.size());
    words.push_back(static_cast<std::uint64_t>(whole.rank()));
    for (auto const extent : whole.extents()) words.push_back(static_cast<std::uint64_t>(extent));
    parallel::append_letters(words, name);
  }
  std::vector<named_shape> all;
  std::unordered_set<std::string> known;
  for (auto const& list : parallel::distinct_lists(world, std::span<parallel::word_list const>(&words, 1))) {
    for (auto const* at = list.words.data(); at != list.words.data() + list.words.size();) {
      auto const letters = static_cast<std::size_t>(*at++);
      shape extents;
      for (auto left = *at++; left > 0; --left) extents.push_back(static_cast<std::int64_t>(*at++));
      auto name = parallel::letters_at(at, letters);
      if (known.insert(name).second) all.push_back({std::move(name), std::move(extents)});
    }
  }
  return all;
}

/// Collective over the world of all ranks. Calls f(name, extents, values) with the whole master value of each tensor of
/// the model, on every rank in the same order, however it is distributed. Where ranks take steps apart, the first
/// learner's values are used.
/// @tparam T  the type to which the values are rounded.
template <class T = float, class Exchange, class F>
void for_each_whole_tensor(Exchange const& exchange, F&& f) {
  auto& world = exchange.everyone();
  auto const& plan = exchange.plan();
  std::map<std::string, std::vector<std::pair<int, parallel::bucket_plan::tensor_range>>>
      here;                                       // the pieces that this rank owns
  bool const is_owner = exchange.learner() <= 0;  // only the first learner contributes
  auto const buckets = is_owner ? static_cast<int>(plan.buckets().size()) : 0;
  exchange.own().for_each_range_of(state_scope::owned, buckets, [&](int bucket, auto const& range) {
    here[plan.at(range.entry).info.name].emplace_back(bucket, range);
  });
  for (auto const& tensor : tensors_of_everyone(world, plan)) {
    std::vector<double> sum(static_cast<std::size_t>(tensor.extents.size()));  // zero where other ranks contribute
    for (auto const& [bucket, range] : here[tensor.name]) {
      auto const own = exchange.master_of(bucket, range);
      using view = std::remove_const_t<decltype(own)>;
      std::vector<typename view::value_type> values(static_cast<std::size_t>(range.count));
      ops::on<typename view::space>::download(std::span(values), own);
      for_each_run(plan.at(range.entry).info, range.in_entry, range.count,
                   [&, begin = range.in_entry](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
                     std::copy_n(values.begin() + (in_part - begin), n, sum.begin() + in_whole);
                   });
    }
    world.all_reduce(tensor_view<double>(sum), reduction::sum{});
    std::vector<T> const values(sum.begin(), sum.end());
    f(tensor.name, tensor.extents, std::span<T const>(values));
  }
}

/// Copies a whole tensor into those of the pieces that belong to it, which have the same element type.
template <class T>
void upload_parts(std::span<state_shard const> shards, std::string const& name, std::span<T const> whole) {
  for (auto const& each : shards) {
    if ((each.learner < 0 ? each.name : name_without_rank(each.name)) != name) continue;
    std::vector<T> part(static_cast<std::size_t>(each.size()));
    for_each_run(each.box, each.first, each.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
      std::copy_n(whole.begin() + in_whole, n, part.begin() + (in_part - each.first));
    });
    each.upload(std::as_bytes(std::span(part)));
  }
}

}  // namespace trireme::detail
