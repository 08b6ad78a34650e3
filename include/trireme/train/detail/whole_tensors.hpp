#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::detail {

struct named_shape {
  std::string name;
  shape extents;
};

/// Collective. The tensors that any rank has a part of, each once, with their whole extents, in the order of the ranks.
template <class Comm>
[[nodiscard]] std::vector<named_shape> tensors_of_everyone(Comm& world, parallel::layout const& own) {
  std::string names;
  std::vector<std::int64_t> numbers;  // of each tensor: the letters of its name, its rank, its extents
  for (auto const& entry : own.entries()) {
    auto const& whole = entry.info.whole_extents();
    names += entry.info.name;
    numbers.push_back(static_cast<std::int64_t>(entry.info.name.size()));
    numbers.push_back(whole.rank());
    numbers.insert(numbers.end(), whole.extents().begin(), whole.extents().end());
  }
  std::vector<named_shape> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::int64_t sizes[2] = {static_cast<std::int64_t>(names.size()), static_cast<std::int64_t>(numbers.size())};
    world.broadcast(tensor_view<std::int64_t>(sizes, shape{2}), rank);
    std::vector<std::uint8_t> letters(static_cast<std::size_t>(sizes[0]));
    std::vector<std::int64_t> theirs(static_cast<std::size_t>(sizes[1]));
    if (rank == world.rank()) {
      std::copy(names.begin(), names.end(), letters.begin());
      theirs = numbers;
    }
    world.broadcast(tensor_view<std::uint8_t>(letters), rank);
    world.broadcast(tensor_view<std::int64_t>(theirs), rank);
    auto letter = letters.begin();
    for (auto number = theirs.begin(); number != theirs.end();) {
      named_shape each{{letter, letter + *number}, {}};
      letter += *number++;
      for (auto left = *number++; left > 0; --left) each.extents.push_back(*number++);
      bool const known =
          std::any_of(all.begin(), all.end(), [&](auto const& other) { return other.name == each.name; });
      if (!known) all.push_back(std::move(each));
    }
  }
  return all;
}

/// Collective over everyone. Calls f(name, extents, values) with the whole master value of each tensor of the model, on
/// every rank in the same order, whatever part of it lies here. Where replicas differ it is that of the first.
/// @tparam T  what the values are rounded to.
template <class T = float, class Exchange, class F>
void for_each_whole_tensor(Exchange const& exchange, F&& f) {
  auto& world = exchange.everyone();
  auto const& plan = exchange.plan();
  std::map<std::string, std::vector<std::pair<int, parallel::layout::piece>>> here;  // what this rank answers for
  bool const answers = !Exchange::replicas_differ || exchange.world().rank() == 0;   // else the first replica does
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    auto const [first, count] = exchange.accounted_range(bucket);
    for (auto const piece : plan.pieces(bucket, first, count)) {
      auto const& info = plan.at(piece.entry).info;
      if (answers && info.answers) here[info.name].emplace_back(bucket, piece);
    }
  }
  for (auto const& tensor : tensors_of_everyone(world, plan)) {
    std::vector<double> sum(static_cast<std::size_t>(tensor.extents.size()));  // zero where others answer
    for (auto const& [bucket, piece] : here[tensor.name]) {
      auto const own = exchange.master_of(bucket, piece);
      using view = std::remove_const_t<decltype(own)>;
      std::vector<typename view::value_type> values(static_cast<std::size_t>(piece.count));
      ops::on<typename view::space>::download(std::span(values), own);
      for_each_run(plan.at(piece.entry).info, piece.in_entry, piece.count,
                   [&, begin = piece.in_entry](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
                     std::copy_n(values.begin() + (in_part - begin), n, sum.begin() + in_whole);
                   });
    }
    world.all_reduce(tensor_view<double>(sum), reduction::sum{});
    std::vector<T> const values(sum.begin(), sum.end());
    f(tensor.name, tensor.extents, std::span<T const>(values));
  }
}

}  // namespace trireme::detail
