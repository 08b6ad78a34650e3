#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/same_on_all_ranks.hpp"
#include "trireme/train/detail/whole_tensors.hpp"

namespace trireme {

namespace detail {
struct refused;  // what make_trainer returns after reporting an error
}

/// Collective over `everyone`. Copies the parameters and buffers of rank `root`'s trainer to the trainers of all ranks
/// of `everyone`: for ranks that predict and do not train.
///
/// Each rank has a trainer of the same model, in any world: those that train in one, the others alone or under any
/// mesh. Trainers in root's world are not changed; the others keep their moments.
///
/// Bytes    a broadcast of each tensor, and temporary memory for the whole model on receiving ranks.
/// Ranks    all of `everyone`, which must contain every trainer's world. No rank may train during the call.
/// Errors   config_error on every rank if the trainers' parameters have other names, shapes or numbers.
///
/// @example auto group = world.split(trains ? 0 : 1 + world.rank(), 0);  // the others are each alone
///          auto trainer = make_trainer(model, optimizer, group);
///          if (trains) trainer.fit(data, options);
///          broadcast_parameters(trainer, world);
template <class Trainer, class Comm>
void broadcast_parameters(Trainer& trainer, Comm& everyone, int root = 0) {
  using master = typename Trainer::master;
  std::map<std::string, shape> tensors;  // by name, since trainers with other meshes have another order
  std::string order, all;
  for (auto const& [name, extents] : detail::tensors_of_everyone(trainer.world(), trainer.exchange().plan())) {
    order += text(name, '\n');
    tensors.emplace(name, extents);
  }
  for (auto const& [name, form] : tensors)
    all += text('"', name, "\" ", name_of(dtype_of<master>), " ", to_string(form), '\n');
  parallel::rank_value const items[] = {{"a parameter", all}};
  parallel::expect_same_on_all_ranks(everyone, "trireme::broadcast_parameters", everyone.rank(), items,
                                     "make every rank's trainer for the same model");

  std::int64_t gives = everyone.rank() == root ? 1 : 0;
  trainer.world().all_reduce(tensor_view<std::int64_t>(&gives, shape{1}), reduction::max{});
  trainer.synchronise_buffers();
  auto const send = [&](std::vector<master>& values) {
    parallel::broadcast(everyone, tensor_view<master>(values), root);
  };
  order = parallel::detail::value_of_rank(everyone, root, order);
  if (gives != 0) {
    trainer.for_each_parameter([&](auto const&, auto const&, std::span<master const> values) {
      std::vector<master> sent(values.begin(), values.end());
      send(sent);
    });
  } else {
    std::map<std::string, std::vector<master>> received;
    for (std::size_t begin = 0, end = 0; (end = order.find('\n', begin)) != order.npos; begin = end + 1) {
      auto const name = order.substr(begin, end - begin);
      auto& values = received[name];
      values.resize(static_cast<std::size_t>(tensors.at(name).size()));
      send(values);
    }
    trainer.change_parameters([&](std::string const& name, auto const&, std::span<master> values) {
      auto const& from = received.at(name);
      std::copy(from.begin(), from.end(), values.begin());
    });
  }
  trainer.synchronise_buffers(everyone, root);
}
/// For a trainer that the compiler has rejected: its one error is enough.
inline void broadcast_parameters(detail::refused&, auto&, int = 0) {}

}  // namespace trireme
