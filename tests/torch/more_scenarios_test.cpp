// test-ranks: 2
// test-timeout: 180
#include "trireme/interop/torch.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <thread>

#include "scenarios.hpp"
#include "trireme/comm/lend.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/processes.hpp"

// Further cases of docs/torch_scenarios.md, in the form of scenarios_test.cpp.

using namespace scenarios;

namespace {

constexpr auto any_number = interop::step_backwards::any;

struct mean_square {
  template <class Net>
  void operator()(Net& net, int rank) const {
    net->forward(batch(rank)).square().mean().backward();
  }
};
constexpr mean_square loss_of{};

void clear(torch::nn::Module& net) {
  for (auto& each : net.parameters()) each.mutable_grad().reset();
}
/// As gradients_of, with zeros where there is none, and sparse ones made dense.
Tensor dense_gradients(torch::nn::Module const& net) {
  std::vector<Tensor> rows;
  for (auto const& each : net.parameters()) {
    auto const& own = each.grad();
    rows.push_back(own.defined() ? own.to_dense().flatten().clone() : torch::zeros({each.numel()}));
  }
  return torch::cat(rows);
}
/// Steps of one net, each compared with the mean of the ranks' gradients.
template <class Net, class Loss>
double some_steps(any_world& world, options const& how, Loss&& loss) {
  Net net;
  fill(*net, 3);
  auto ddp = interop::data_parallel(net, world, how);
  double worst = 0;
  for (int step = 0; step < 3; ++step) {
    clear(*net);
    loss(net, world.rank(), &ddp);
    ddp.finish();
    Tensor sum;
    for (int rank = 0; rank < world.size(); ++rank) {
      Net own;
      fill(*own, 3);
      loss(own, rank, static_cast<decltype(&ddp)>(nullptr));
      auto const row = dense_gradients(*own);
      sum = sum.defined() ? sum + row : row;
    }
    worst = std::max(worst, distance(dense_gradients(*net), sum / world.size()));
  }
  return worst;
}
/// 0 if the action throws an error with these words.
template <class Action>
double refused(Action&& action, std::string_view words) {
  return contains(sentence_of([&] { static_cast<void>(action()); }), words) ? 0 : 1;
}
/// Steps of an optimizer of torch's beside those of one process with all samples.
template <class Make, class Optimizer>
double like_one_process(any_world& world, Make&& make, Tensor const& x, Optimizer&& optimizer) {
  auto const train = [&](auto& net, Tensor const& in, auto&& end) {
    auto steps = optimizer(net->parameters());
    for (int step = 0; step < 4; ++step) {
      steps.zero_grad();
      net->forward(in).square().mean().backward();
      end();
      steps.step();
    }
    return values_of(*net);
  };
  auto single = make(), net = make();
  fill(*single, 3), fill(*net, 3);
  auto ddp = interop::data_parallel(net, world);
  auto const own = x.chunk(world.size())[static_cast<std::size_t>(world.rank())];
  return distance(train(net, own, [&] { ddp.finish(); }), train(single, x, [] {}));
}

struct recurrent_impl : torch::nn::Module {
  recurrent_impl() {
    auto const how = torch::nn::LSTMOptions(5, 6).num_layers(2).batch_first(true).bidirectional(true);
    cells = register_module("cells", torch::nn::LSTM(how));
    head = register_module("head", torch::nn::Linear(12, 2));
  }
  Tensor forward(Tensor const& x) { return head(std::get<0>(cells->forward(x))); }
  torch::nn::LSTM cells{nullptr};
  torch::nn::Linear head{nullptr};
};
struct attention_impl : torch::nn::Module {
  attention_impl() {
    heads = register_module("heads", torch::nn::MultiheadAttention(5, 1));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  }
  Tensor forward(Tensor const& x) {
    auto const t = x.transpose(0, 1);
    return norm(std::get<0>(heads->forward(t, t, t)) + t);
  }
  torch::nn::MultiheadAttention heads{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
struct words_impl : torch::nn::Module {
  words_impl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(true)));
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  Tensor forward(Tensor const& tokens) { return head(table(tokens)); }
  Tensor loss(int rank) { return forward(torch::tensor({1, 7, 7, 3 + rank})).square().sum(); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};
using words = torch::nn::ModuleHolder<words_impl>;
struct parts_impl : torch::nn::Module {
  parts_impl() {
    for (auto const* name : {"a", "b", "c"}) all.push_back(register_module(name, torch::nn::Linear(5, 5)));
  }
  Tensor forward(Tensor x, std::string const& which) {
    for (char const each : which) x = torch::tanh(all[static_cast<std::size_t>(each - 'a')](x));
    return x;
  }
  std::vector<torch::nn::Linear> all{};
};
using parts = torch::nn::ModuleHolder<parts_impl>;
torch::nn::Sequential normalised() {
  torch::nn::Sequential net(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4));
  fill(*net, 3);
  return net;
}
Tensor pairs(std::int64_t rank) {
  return torch::complex(numbers({3}, 5 + static_cast<std::uint64_t>(rank)), numbers({3}, 9));
}

std::vector<scenario> const of_graphs{
    {"three modules, losses in another order and of other branches on each rank",
     [](any_world& world) {
       auto const size = world.size();
       auto const loss = [](parts& of, int index, int rank) {
         auto const branch = std::string(1, static_cast<char>('a' + (rank + index) % 3));
         of->forward(batch(rank + index), branch).square().mean().backward();
       };
       options const how{.unused_parameters = true};
       parts nets[3];
       for (auto& each : nets) fill(*each, 3);
       auto a = interop::data_parallel(nets[0], world, how), b = interop::data_parallel(nets[1], world, how),
            c = interop::data_parallel(nets[2], world, how);
       for (int i = 0; i < 3; ++i) loss(nets[(i + world.rank()) % 3], (i + world.rank()) % 3, world.rank());
       a.finish(), b.finish(), c.finish();
       double worst = 0;
       for (int i = 0; i < 3; ++i) {
         auto const expected = mean_of_ranks<parts>(size, [&](parts& net, int rank) { loss(net, i, rank); });
         worst = std::max(worst, distance(torch::nan_to_num(gradients_of(*nets[i]), 0), expected));
       }
       return worst;
     }},
    {"a layer of two wrapped modules",
     [](any_world& world) {
       parts encoder, decoder;
       fill(*encoder, 3), fill(*decoder, 4);
       decoder->all[0] = decoder->replace_module("a", encoder->all[0]);
       auto a = interop::data_parallel(encoder, world), b = interop::data_parallel(decoder, world);
       auto const loss = [&](int rank) {
         return encoder->forward(batch(rank), "abc").square().mean() + decoder->forward(batch(rank), "abc").sum();
       };
       Tensor sum = torch::zeros({3 * 30});
       for (int rank = 0; rank < world.size(); ++rank)
         sum += torch::cat([&] {
           std::vector<Tensor> rows;
           for (auto const& each : torch::autograd::grad({loss(rank)}, encoder->parameters()))
             rows.push_back(each.flatten());
           return rows;
         }());
       loss(world.rank()).backward();
       a.finish(), b.finish();
       return distance(gradients_of(*encoder), sum / world.size());
     }},
    {"two objects for one module, with gradients in buckets",
     [](any_world& world) {
       parts net;
       fill(*net, 3);
       options const how{.unused_parameters = true, .gradients_in_buckets = true};
       auto a = interop::data_parallel(net, world, how), b = interop::data_parallel(net, world, how);
       auto const loss = [](parts& of, int rank) {
         of->forward(batch(rank), rank % 2 == 0 ? "ab" : "ac").square().mean().backward();
       };
       auto const expected = 2 * mean_of_ranks<parts>(world.size(), loss);
       double worst = 0;
       for (int step = 0; step < 3; ++step) {
         for (auto& each : net->parameters())
           if (each.grad().defined()) each.mutable_grad().zero_();
         {
           auto const of_a = a.no_sync();
           auto const of_b = b.no_sync();
           loss(net, world.rank());
         }
         loss(net, world.rank());
         a.finish(), b.finish();
         worst = std::max(worst, distance(torch::nan_to_num(gradients_of(*net), 0), expected));
       }
       return worst;
     }},
    {"several backward() of one graph, with .backwards = any",
     [](any_world& world) {
       return one_step<perceptron>(world,
                                   [](perceptron& net, int rank) {
                                     auto const y = net->forward(batch(rank));
                                     y.square().mean().backward({}, true);
                                     y.abs().sum().backward();
                                   },
                                   {.backwards = any_number});
     }},
    {"backward() of two losses at once, and of one parameter only",
     [](any_world& world) {
       return one_step<perceptron>(world,
                                   [](perceptron& net, int rank) {
                                     torch::autograd::backward(
                                         {net->forward(batch(rank)).mean(), net->forward(batch(rank + 4)).sum()}, {});
                                   }) +
              one_step<perceptron>(world,
                                   [](perceptron& net, int rank) {
                                     net->forward(batch(rank))
                                         .square()
                                         .mean()
                                         .backward({}, false, false, std::vector<Tensor>{net->first->weight});
                                   },
                                   {.unused_parameters = true});
     }},
    {"backward() in a thread of the rank's own",
     [](any_world& world) {
       return one_step<perceptron>(world,
                                   [](perceptron& net, int rank) { std::thread([&] { loss_of(net, rank); }).join(); });
     }},
    {"a hook that clamps, and one that sums over the ranks",
     [](any_world& world) {
       double const clamped = one_step<perceptron>(world, [](perceptron& net, int rank) {
         auto const hook = net->first->weight.register_hook([](Tensor const& g) { return g.clamp(-0.01, 0.01); });
         loss_of(net, rank);
         net->first->weight.remove_hook(hook);
       });
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       for (auto& each : net->parameters()) {
         each.register_hook([&](Tensor const& g) { return interop::all_reduce(world, g.clone(), reduction::mean{}); });
       }
       loss_of(net, world.rank());
       ddp.finish();
       return clamped + distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), loss_of));
     }},
    {"a batch without samples on one rank",
     [](any_world& world) {
       return one_step<perceptron>(world, [](perceptron& net, int rank) {
         net->forward(numbers({rank == 0 ? 0 : 3, 5}, 3)).square().sum().backward();
       });
     }},
    {"an LSTM, and attention, with optimizers of torch's",
     [](any_world& world) {
       auto const x = numbers({30, 3, 5}, 1);
       auto const recurrent = [] { return std::make_shared<recurrent_impl>(); };
       auto const attention = [] { return std::make_shared<attention_impl>(); };
       return like_one_process(world, recurrent, x,
                               [](auto const& all) {
                                 return torch::optim::SGD(all, torch::optim::SGDOptions(0.05).momentum(0.9));
                               }) +
              like_one_process(world, attention, x, [](auto const& all) {
                return torch::optim::Adagrad(all, torch::optim::AdagradOptions(1e-3).weight_decay(0.01));
              });
     }},
    {"an expert of a group of ranks in a module of all ranks",
     [](any_world& world) {
       parts net;
       fill(*net, 3);
       auto group = world.split(world.rank() % 2, 0);
       auto all = interop::data_parallel(net, world, {.left_alone = "c.*"});
       auto expert = interop::data_parallel(net->all[2], group);
       auto const loss = [](parts& of, int rank) { of->forward(batch(rank), "abc").square().mean().backward(); };
       loss(net, world.rank());
       all.finish(), expert.finish();
       auto const of_all = mean_of_ranks<parts>(world.size(), loss);
       auto const of_group =
           mean_of_ranks<parts>(group.size(), [&](parts& of, int rank) { loss(of, 2 * rank + world.rank() % 2); });
       auto const found = gradients_of(*net);
       return distance(found.slice(0, 0, 60), of_all.slice(0, 0, 60)) +
              distance(found.slice(0, 60), of_group.slice(0, 60));
     }},
    {"micro-batches of a static graph that differs between ranks",
     [](any_world& world) {
       return some_steps<parts>(world, {.static_graph = true}, [](parts& net, int rank, auto* ddp) {
         auto const once = [&] { net->forward(batch(rank), rank == 0 ? "ab" : "cb").square().mean().backward(); };
         if (ddp != nullptr) {
           auto const quiet = ddp->no_sync();
           once();
         }
         once();
         if (ddp == nullptr) once();
       });
     }},
};

std::vector<scenario> const of_tensors{
    {"lazily conjugated gradients",
     [](any_world& world) {
       double worst = 0;
       for (auto const type : {at::kComplexFloat, at::kComplexDouble}) {
         torch::nn::Linear net(5, 3);
         fill(*net, 3);
         auto const w = net->register_parameter("w", torch::zeros({3}, type));
         auto ddp = interop::data_parallel(net, world);
         auto const loss = [&](int rank) {  // lazy on ranks with an even number alone
           auto const of = rank % 2 == 0 ? torch::conj(w) : w * 1;
           return torch::real(of * pairs(rank)).sum();
         };
         (loss(world.rank()) + net->forward(batch(0)).sum()).backward();
         ddp.finish();
         Tensor sum = torch::zeros({3}, type);
         for (int rank = 0; rank < world.size(); ++rank) sum += rank % 2 == 0 ? pairs(rank) : torch::conj(pairs(rank));
         worst = std::max(worst, (w.grad() - sum / world.size()).abs().max().item<double>());
       }
       return worst;
     }},
    {"lazy, expanded and empty tensors in collectives",
     [](any_world& world) {
       int const last = world.size() - 1;
       auto const lazy = torch::conj(pairs(world.rank()));
       auto sum = torch::zeros({3}, at::kComplexFloat);
       for (int rank = 0; rank <= last; ++rank) sum += torch::conj(pairs(rank));
       double worst = (interop::all_reduce(world, torch::conj(pairs(world.rank()))) - sum).abs().max().item<double>();
       auto const sent = world.rank() == last ? torch::conj(pairs(last)) : torch::zeros({3}, at::kComplexFloat);
       worst += (interop::broadcast(world, sent, last) - torch::conj(pairs(last))).abs().max().item<double>();
       auto const negative = world.rank() == last ? torch::imag(torch::conj(pairs(2))) : torch::zeros({3});
       worst += distance(interop::broadcast(world, negative, last), -torch::imag(pairs(2)));
       worst += distance(torch::real(interop::all_gather(world, lazy)[last]), torch::real(pairs(last)));
       worst += refused([&] { return interop::all_reduce(world, torch::ones({1}).expand({3})); }, "is expanded");
       worst += refused([&] { return interop::broadcast(world, torch::ones({1}).expand({3})); }, "is expanded");
       static_cast<void>(interop::all_reduce(world, torch::zeros({0, 2})));
       static_cast<void>(interop::broadcast(world, torch::zeros({0}, at::kBool)));
       return worst + (interop::all_gather(world, torch::zeros({0, 2})).numel() == 0 ? 0 : 1);
     }},
    {"a table of sparse gradients: micro-batches, a dense use, and a rank that does not use it",
     [](any_world& world) {
       auto const twice = [](words& net, int rank, auto*) {
         net->loss(rank).backward();
         net->loss(rank + 5).backward();
       };
       auto const micro = [](words& net, int rank, auto* ddp) {
         if (ddp != nullptr) {
           auto const quiet = ddp->no_sync();
           net->loss(rank).backward();
         } else {
           net->loss(rank).backward();
         }
         net->loss(rank + 5).backward();
       };
       auto const dense = [](words& net, int rank, auto*) {
         (net->loss(rank) + (rank == 0 ? net->table->weight.square().sum() : torch::zeros({}))).backward();
       };
       auto const one_without = [](words& net, int rank, auto* ddp) {
         auto const loss = rank == 0 ? net->head(torch::ones({1, 4})).sum() : net->loss(rank);
         if (ddp != nullptr)
           ddp->backward(loss);
         else
           loss.backward();
       };
       return some_steps<words>(world, {.backwards = any_number}, twice) +
              some_steps<words>(world, {.static_graph = true}, twice) + some_steps<words>(world, {}, micro) +
              some_steps<words>(world, {}, dense) +
              some_steps<words>(
                  world, {.unused_parameters = true, .gradients_in_buckets = true, .loss_scale = precision::fp16{}},
                  one_without);
     }},
    {"a module in another type than when it was wrapped",
     [](any_world& world) {
       double wrong = 0;
       for (auto const type : {at::kDouble, at::kBFloat16}) {
         perceptron net;
         auto ddp = interop::data_parallel(net, world);
         net->to(type);
         net->forward(batch(0).to(type)).sum().backward();
         wrong +=
             refused([&] { return ddp.finish(); }, type == at::kDouble ? "is now of Double" : "is now of BFloat16");
       }
       return wrong;
     }},
    {"a submodule that is replaced, or removed",
     [](any_world& world) {
       perceptron net;
       auto ddp = interop::data_parallel(net, world);
       net->second = net->replace_module("second", torch::nn::Linear(7, 3));
       loss_of(net, 0);
       double const wrong =
           refused([&] { return ddp.finish(); }, "parameter \"second.weight\" requires a gradient, but");
       parts others;
       fill(*others, 3);
       auto of_others = interop::data_parallel(others, world, {.unused_parameters = true});
       others->unregister_module("c");
       others->forward(batch(world.rank()), "ab").sum().backward();
       of_others.finish();
       return wrong + difference(world, gradients_of(*others));
     }},
    {"a buffer that becomes a slice is refused, and one of another type is followed",
     [](any_world& world) {
       torch::nn::Linear net(5, 3);
       fill(*net, 3);
       auto const buffer = net->register_buffer("buffer", torch::zeros({4}));
       auto ddp = interop::data_parallel(net, world);
       buffer.set_data(torch::full({4}, 1.0 + world.rank(), at::kDouble));
       loss_of(net, 0);
       ddp.finish();
       double const wrong = distance(buffer, torch::ones({4}, at::kDouble));
       buffer.set_data(torch::zeros({4, 4}).slice(1, 0, 1).squeeze(1));
       clear(*net);
       loss_of(net, 0);
       if (world.size() == 1) return wrong;
       return wrong + refused([&] { return ddp.finish(); }, "buffer \"buffer\" has become a tensor that is not dense");
     }},
    {"nine dimensions, and only parameters without elements",
     [](any_world& world) {
       torch::nn::Linear net(5, 3), none(5, 0);
       auto const p = net->register_parameter("p", torch::ones({1, 2, 1, 2, 1, 2, 1, 2, 2}));
       auto ddp = interop::data_parallel(net, world);
       (p.sum() * (1 + world.rank()) + net->forward(batch(0)).sum()).backward();
       ddp.finish();
       auto of_none = interop::data_parallel(none, world);
       none->forward(batch(0)).sum().backward();
       of_none.finish();
       return (p.grad() - (world.size() + 1) / 2.0).abs().max().item<double>();
     }},
    {"the mean of buffers that are channels_last, half and bool",
     [](any_world& world) {
       torch::nn::Linear net(5, 3);
       auto const image = numbers({1, 3, 2, 2}, 1);
       auto const last = net->register_buffer("last", image.contiguous(at::MemoryFormat::ChannelsLast).clone());
       auto const half = net->register_buffer("half", torch::zeros({3}, at::kHalf));
       auto const flags = net->register_buffer("flags", torch::zeros({2}, at::kBool));
       auto ddp = interop::data_parallel(net, world, {.buffers = interop::step_buffers::mean});
       last.mul_(1 + world.rank()), half.fill_(world.rank()), flags.fill_(world.rank() == 0);
       loss_of(net, 0);
       ddp.finish();
       double const mean = (world.size() - 1) / 2.0;
       return distance(last, image * (1 + mean)) + distance(half.to(at::kDouble), torch::full({3}, mean, at::kDouble)) +
              (flags.all().item<bool>() ? 0 : 1);
     }},
    {"batch normalisation in eval() on one rank",
     [](any_world& world) {
       auto net = normalised();
       auto ddp = interop::data_parallel(net, world);
       if (world.rank() == 1) net->eval();
       loss_of(net, world.rank());
       ddp.finish();
       return difference(world, torch::cat({gradients_of(*net), net->buffers()[0], net->buffers()[1]}));
     }},
};

std::vector<scenario> const of_steps{
    {"a loss without the scale beside one with it, or after torch::load",
     [](any_world& world) {
       auto const words_of_it = "the loss was not scaled";
       double wrong = 0;
       for (auto const backwards : {interop::step_backwards::one, any_number}) {
         perceptron net;
         auto ddp = interop::data_parallel(net, world, {.loss_scale = precision::fp16{}, .backwards = backwards});
         {
           auto const quiet = ddp.no_sync();
           ddp.backward(net->forward(batch(0)).sum());
         }
         wrong += refused([&] { return loss_of(net, 0), 0; }, words_of_it);
       }
       perceptron net;
       auto ddp = interop::data_parallel(net, world, {.loss_scale = precision::fp16{}});
       std::stringstream file;
       torch::save(net, file), torch::load(net, file);
       loss_of(net, 0);
       return wrong + refused([&] { return ddp.finish(); }, words_of_it);
     }},
    {"a loss scale, and gradients of the last step",
     [](any_world& world) {
       perceptron net;
       auto ddp = interop::data_parallel(net, world, {.loss_scale = precision::fp16{}});
       auto const loss = [&] { ddp.backward(net->forward(batch(0)).sum()); };
       loss();
       ddp.finish();
       return refused([&] { return loss(), 0; }, "is still that of the last step, without the loss scale");
     }},
    {"objects that end between backward() and finish()",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       for (int time = 0; time < 3; ++time) {
         auto ddp = interop::data_parallel(net, world);
         loss_of(net, world.rank());
       }
       clear(*net);
       auto ddp = interop::data_parallel(net, world);
       loss_of(net, world.rank());
       ddp.finish();
       return distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), loss_of));
     }},
    {"abandon() after backward(), and frozen after it",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       for (int time = 0; time < 2; ++time) {
         loss_of(net, world.rank());
         ddp.abandon();
         clear(*net);
       }
       loss_of(net, world.rank());
       net->first->bias.requires_grad_(false);
       ddp.finish();
       return distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), loss_of));
     }},
    {"a module and an optimizer that are saved and loaded between steps",
     [](any_world& world) {
       auto const x = numbers({30, 5}, 1);
       auto const train = [](perceptron& net, Tensor const& in, auto&& end, bool loads) {
         torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2).amsgrad(true));
         for (int step = 0; step < 4; ++step) {
           optimizer.zero_grad();
           net->forward(in).square().mean().backward();
           end();
           optimizer.step();
           if (!loads || step != 1) continue;
           std::stringstream module, state;
           torch::save(net, module), torch::save(optimizer, state);
           torch::load(net, module), torch::load(optimizer, state);
         }
         return values_of(*net);
       };
       perceptron single, net;
       fill(*single, 3), fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       auto const own = x.chunk(world.size())[static_cast<std::size_t>(world.rank())];
       return distance(train(
                           net, own, [&] { ddp.finish(); }, true),
                       train(
                           single, x, [] {}, false));
     }},
    {"finish() twice",
     [](any_world& world) {
       perceptron net;
       auto ddp = interop::data_parallel(net, world);
       loss_of(net, 0);
       ddp.finish();
       return refused([&] { return ddp.finish(); }, "finish() without a backward()");
     }},
    {"join() with gradients in buckets, a loss scale, any number of backward(), or the mean of buffers",
     [](any_world& world) {
       double worst = 0;
       for (auto const& how : {options{.gradients_in_buckets = true}, options{.loss_scale = precision::fp16{}},
                               options{.backwards = any_number}, options{.buffers = interop::step_buffers::mean}}) {
         auto net = normalised();
         auto ddp = interop::data_parallel(net, world, how);
         torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
         for (int step = 0; step <= world.rank(); ++step) {
           optimizer.zero_grad();
           ddp.backward(net->forward(batch(step)).square().mean());
           ddp.finish();
           optimizer.step();
         }
         while (auto const done = ddp.join())
           if (done->finite) optimizer.step();
         worst = std::max(worst, difference(world, torch::cat({values_of(*net).to(at::kFloat), net->buffers()[0]})));
       }
       return worst;
     }},
};

auto const lent = lending([](any_world& world) { return wrong_on(world, {&of_graphs, &of_tensors, &of_steps}, 2e-6); });

}  // namespace

TEST_CASE("further cases of data parallelism are right on threads, processes and MPI", "[torch]") {
  for (int const ranks : {1, 2, 3})
    for (auto const& each : on_ranks<std::string>(ranks, lent)) CHECK(each == "");
  CHECK(launch(comm::processes{}, lent) == "");
  CHECK(launch(comm::mpi{.shared_memory = false}, lent) == "");
}
