// test-alone: safetensors_test.py runs it
// test-timeout: 240
#include "trireme/interop/torch.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "../formats/scratch.hpp"
#include "torch_cases.hpp"

// What a loop around a module needs besides data_parallel: batches, files, and statistics over all ranks.

using namespace torch_cases;

namespace {

/// What a loader deals out in one pass, in the order of its batches.
template <class Loader>
std::vector<std::int64_t> epoch_from(Loader& loader) {
  std::vector<std::int64_t> all;
  for (auto& batch : loader)
    for (std::int64_t i = 0; i < batch.data.numel(); ++i) all.push_back(batch.data[i].template item<std::int64_t>());
  return all;
}
auto loader_of(std::int64_t samples, interop::distributed_sampler const& order, std::size_t workers = 0) {
  auto data = torch::data::datasets::TensorDataset(torch::arange(samples))
                  .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  return torch::data::make_data_loader(std::move(data), order,
                                       torch::data::DataLoaderOptions(4).workers(workers).enforce_ordering(true));
}

}  // namespace

TEST_CASE("a distributed sampler gives every sample once, in a different order in each epoch", "[torch]") {
  using passes = std::vector<std::vector<std::int64_t>>;
  auto const dealt = [](int ranks, interop::distributed_sampler_options const& options, std::size_t workers) {
    return on_ranks<passes>(ranks, [&](auto& world) {
      interop::distributed_sampler const order(23, world, options);
      auto loader = loader_of(23, order, workers);
      passes all;
      for (int epoch = 0; epoch < 3; ++epoch) all.push_back(epoch_from(*loader));
      if (order.epoch() != 2) throw std::runtime_error("a copy does not know the loader's epoch");
      return all;
    });
  };
  auto const epoch_of = [](std::vector<passes> const& ranks, std::size_t epoch) {
    std::multiset<std::int64_t> all;
    for (auto const& each : ranks) all.insert(each[epoch].begin(), each[epoch].end());
    return all;
  };
  auto const alone = dealt(1, {.seed = 5}, 0);
  auto const padded = dealt(3, {.seed = 5}, 2);
  auto const dropped = dealt(3, {.seed = 5, .ends = interop::uneven_ends::drop}, 0);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    auto const with = epoch_of(padded, epoch), without = epoch_of(dropped, epoch);
    CHECK(with.size() == 24);
    CHECK(std::set(with.begin(), with.end()).size() == 23);
    CHECK(without.size() == 21);
    CHECK(std::set(without.begin(), without.end()).size() == 21);
    for (std::size_t i = 0; i < 24; ++i)  // one order for any number of ranks
      CHECK(padded[i % 3][epoch][i / 3] == alone[0][epoch][i % 23]);
  }
  CHECK(alone[0][0] != alone[0][1]);
  CHECK(alone[0][1] != alone[0][2]);
  CHECK(dealt(1, {.seed = 6}, 0)[0][0] != alone[0][0]);
  CHECK(dealt(2, {.shuffle = false}, 0)[1][2] == std::vector<std::int64_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 0});
}

TEST_CASE("a distributed sampler resumes in the middle of an epoch", "[torch]") {
  comm::self_world world;
  interop::distributed_sampler order(23, world);
  auto loader = loader_of(23, order, 2);
  auto const first = epoch_from(*loader), second = epoch_from(*loader), third = epoch_from(*loader);

  interop::distributed_sampler again(23, world);
  auto other = loader_of(23, again, 2);
  again.set_epoch(1, 8);
  CHECK(epoch_from(*other) == std::vector(second.begin() + 8, second.end()));
  CHECK(epoch_from(*other) == third);
  again.set_epoch(0);
  CHECK(epoch_from(*other) == first);

  torch::serialize::OutputArchive saved;
  again.set_epoch(2, 4);
  again.reset();
  again.save(saved);
  std::stringstream file;
  saved.save_to(file);
  torch::serialize::InputArchive found;
  found.load_from(file);
  order.load(found);
  CHECK(epoch_from(*loader) == std::vector(third.begin() + 4, third.end()));

  CHECK(sentence_of([&] { order.set_epoch(1, 24); }) ==
        "trireme::interop::distributed_sampler: set_epoch() after 24 samples of this rank, but it has 23 in an epoch");
  CHECK(sentence_of([&] { interop::distributed_sampler(0, world); }) ==
        "trireme::interop::distributed_sampler: 0 samples leave none for each of 1 rank");
  auto const differ = on_ranks<std::string>(2, [&](auto& both) {
    return sentence_of([&] { interop::distributed_sampler(both.rank() == 0 ? 23 : 22, both); });
  });
  CHECK(differ[0] ==
        "trireme::interop::distributed_sampler: the number of samples is 23 on rank 0 but 22 on rank 1; give all ranks "
        "the same data and options");
  auto const none = on_ranks<std::string>(2, [&](auto& both) {
    return sentence_of([&] { interop::distributed_sampler(1, both, {.ends = interop::uneven_ends::drop}); });
  });
  CHECK(none[1] ==
        "trireme::interop::distributed_sampler: 1 sample leaves none for each of 2 ranks; pad the end, or use fewer "
        "ranks");
}

namespace {

/// Every kind of tensor that a file may hold: tied ones, buffers of several types, a scalar (the number of batches), an
/// empty one, and one that is not dense. safetensors_test.py has the same.
struct kinds_impl : torch::nn::Module {
  kinds_impl() {
    table = register_module("table", torch::nn::Embedding(6, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    register_parameter("head", table->weight);
    wide = register_parameter("wide", torch::zeros({4, 2, 3}).transpose(0, 2));
    half = register_parameter("f16", torch::zeros({3}, at::kHalf));
    brief = register_parameter("bf16", torch::zeros({3}, at::kBFloat16));
    mask = register_buffer("mask", torch::zeros({5}, at::kBool));
    empty = register_buffer("empty", torch::zeros({0, 3}, at::kDouble));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor wide{}, half{}, brief{}, mask{}, empty{};
};
using kinds = torch::nn::ModuleHolder<kinds_impl>;

kinds some_kinds() {
  kinds net;
  torch::NoGradGuard const guard;
  std::uint64_t seed = 0;
  for (auto& each : net->parameters())
    each.copy_(numbers({100}, ++seed).slice(0, 0, each.numel()).reshape(each.sizes()));
  net->norm->running_mean.copy_(numbers({4}, 77));
  net->norm->num_batches_tracked.fill_(std::int64_t{1} << 40);
  net->mask[3] = true;
  return net;
}
bool equal(torch::nn::Module const& a, torch::nn::Module const& b) {
  auto const parameters = std::pair(a.parameters(), b.parameters()), buffers = std::pair(a.buffers(), b.buffers());
  auto const same = [](auto const& lists) {
    return std::equal(lists.first.begin(), lists.first.end(), lists.second.begin(), lists.second.end(),
                      [](auto const& x, auto const& y) { return x.equal(y); });
  };
  return same(parameters) && same(buffers);
}

}  // namespace

TEST_CASE("a module's parameters and buffers are written to a file under PyTorch's names and read back", "[torch]") {
  auto const path = std::filesystem::temp_directory_path() / text("trireme-kinds-", ::getpid());
  auto net = some_kinds();
  interop::save_safetensors(net, path);
  formats::safetensors::reader const file(path.string());
  CHECK(file.entries().size() == 12);
  CHECK(*file.note("format") == "pt");
  CHECK(file.at("norm.num_batches_tracked").extents == shape{});
  CHECK(file.at("head") != file.at("table.weight"));  // both of its names
  for (auto const& each : file.entries()) CHECK(each.begin * 8 % static_cast<std::uint64_t>(each.type.bits()) == 0);

  kinds found;
  auto const* memory = found->wide.data_ptr();
  interop::load_safetensors(found, path);
  CHECK(equal(*net, *found));
  CHECK(found->wide.data_ptr() == memory);
  CHECK(found->norm->num_batches_tracked.item<std::int64_t>() == std::int64_t{1} << 40);

  auto const with = [&](auto&& change, std::string const& bytes_of = {}) {  // writes the file anew, with other tensors
    auto entries = file.entries();
    change(entries);
    formats::safetensors::writer out(path.string(), entries);
    for (auto const& each : out.entries()) {
      std::vector<std::byte> bytes(each.bytes);
      if (auto const* same = file.find(each.name);
          same != nullptr && same->bytes == each.bytes && each.name != bytes_of)
        file.read(*same, 0, bytes);
      out.write(bytes);
    }
    out.finish();
    kinds other;
    auto const before = values_of(*other);
    auto const sentence = sentence_of([&] { interop::load_safetensors(other, path); });
    if (!sentence.empty()) CHECK(values_of(*other).equal(before));  // a file that is refused has changed nothing
    return sentence.empty() ? sentence : sentence.substr(sentence.find(path.string()) + path.string().size());
  };
  auto const named = [](auto& entries, std::string_view name) {
    return std::find_if(entries.begin(), entries.end(), [&](auto const& each) { return each.name == name; });
  };
  CHECK(with([](auto&) {}).empty());
  CHECK(with([&](auto& all) { all.erase(named(all, "head")); }).empty());  // as Python's save_model() writes it
  CHECK(with([&](auto& all) { all.erase(named(all, "table.weight")); }).empty());
  CHECK(with([](auto&) {}, "head") ==
        ": \"head\" and \"table.weight\" are one tensor in the module, but two in the file");
  CHECK(with([&](auto& all) { all.erase(named(all, "mask")); }) == ": it has no \"mask\", which the module has");
  CHECK(with([&](auto& all) { all.push_back({"more", dtype::f32, {2}}); }) == ": the module has no \"more\"");
  CHECK(with([&](auto& all) { named(all, "f16")->type = dtype::bf16; }) ==
        ": \"f16\" is BF16(3) in the file, but F16(3) in the module");
  CHECK(with([&](auto& all) {
          named(all, "wide")->extents = {4, 6};
        }) == ": \"wide\" is F32(4, 6) in the file, but F32(3, 2, 4) in the module");

  std::filesystem::resize_file(path, 40);
  CHECK(sentence_of([&] { interop::load_safetensors(found, path); }).find(path.string()) != std::string::npos);
  CHECK(equal(*net, *found));
  std::filesystem::remove(path);
  CHECK(!sentence_of([&] { interop::load_safetensors(found, path); }).empty());
  net->mask = net->register_buffer("complex", torch::zeros({2}, at::kComplexFloat));
  CHECK(
      sentence_of([&] { interop::save_safetensors(net, path); }) ==
      "trireme::interop: \"complex\" is a tensor of ComplexFloat with 1 dimensions; a file holds dense ones of up to 6 "
      "dimensions, of signed integers, bytes, bool, Half, BFloat16, Float and Double");
  CHECK(!std::filesystem::exists(path));
}

// Started by safetensors_test.py.
TEST_CASE("reads Python's file and writes one for it", "[.python]") {
  auto const* named = std::getenv("TRIREME_TORCH_FOLDER");
  REQUIRE(named != nullptr);
  std::filesystem::path const folder = named;
  kinds net;
  interop::load_safetensors(net, folder / "saved_by_python");
  interop::save_safetensors(net, folder / "saved_again");
  interop::save_safetensors(some_kinds(), folder / "saved_here");
  interop::load_safetensors(net, folder / "saved_model_by_python");
}

namespace {

/// Two normalisations, so that the order of their messages matters.
template <class Norm>
struct normed : torch::nn::Module {
  explicit normed(torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(0)) {
    using torch::nn::Conv2d, torch::nn::Conv2dOptions;
    first = register_module("first", Conv2d(Conv2dOptions(2, 3, 3).padding(1)));
    norm1 = register_module("norm1", Norm(options.num_features(3)));
    last = register_module("last", Conv2d(Conv2dOptions(3, 4, 3).padding(1)));
    norm2 = register_module("norm2", Norm(options.num_features(4)));
  }
  Tensor forward(Tensor const& x) { return norm2(last(torch::tanh(norm1(first(x))))); }
  torch::nn::Conv2d first{nullptr}, last{nullptr};
  Norm norm1{nullptr}, norm2{nullptr};
};
using whole_net = normed<torch::nn::BatchNorm2d>;
using rank_net = normed<interop::sync_batch_norm>;

/// Outputs, gradients of the input, values and buffers after some steps.
struct trained {
  Tensor out{}, slope{}, values{}, evaluated{};
  std::vector<Tensor> buffers{};
};
template <class Net, class Module, class End>
trained train(Net& net, std::shared_ptr<Module> const& module, Tensor const& x, Tensor const& target, double scale,
              End&& end) {
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  trained found;
  auto const in = x.clone().requires_grad_(true);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    in.mutable_grad() = Tensor();
    found.out = net->forward(in);
    ((found.out - target).square().sum() * scale).backward();
    end();
    optimizer.step();
  }
  found.slope = in.grad().clone() / scale;
  found.values = values_of(*module);
  for (auto const& each : module->buffers()) found.buffers.push_back(each.clone());
  module->eval();
  found.evaluated = net->forward(x).detach();
  return found;
}

}  // namespace

TEST_CASE("a batch normalisation over ranks equals that of one process over the whole batch", "[torch]") {
  auto const x = numbers({12, 2, 4, 4}, 1) * 2 + 3, target = numbers({12, 4, 4, 4}, 2);
  for (auto const& options : {torch::nn::BatchNormOptions(0), torch::nn::BatchNormOptions(0).momentum(torch::nullopt),
                              torch::nn::BatchNormOptions(0).affine(false).track_running_stats(false)}) {
    for (std::vector<std::int64_t> const& shares : {std::vector<std::int64_t>{12}, {6, 6}, {3, 4, 5}, {11, 1}}) {
      auto const single = std::make_shared<whole_net>(options);
      fill(*single, 3);
      auto const expected = train(single, single, x, target, 1.0 / 100, [] {});
      auto const ranks = static_cast<int>(shares.size());
      auto const found = on_ranks<trained>(ranks, [&](auto& world) {
        auto const net = std::make_shared<rank_net>(options);
        fill(*net, 3);
        if (interop::synchronize(net, world) != 2) throw std::runtime_error("not all are synchronised");
        auto ddp = interop::data_parallel(net, world, {.buffers = interop::step_buffers::own},
                                          parallel::data{.bucket_bytes = 64});
        auto const place = static_cast<std::size_t>(world.rank());
        // A sum over ranks of what each differentiates is the loss of all; data_parallel makes a mean of it.
        return train(ddp, net, x.split_with_sizes(shares)[place], target.split_with_sizes(shares)[place], ranks / 100.0,
                     [&] { ddp.finish(); });
      });
      std::vector<Tensor> out, slope, evaluated;
      for (auto const& each : found) {
        out.push_back(each.out), slope.push_back(each.slope), evaluated.push_back(each.evaluated);
        CHECK(distance(each.values, expected.values) < 1e-5);
        REQUIRE(each.buffers.size() == expected.buffers.size());
        for (std::size_t i = 0; i < each.buffers.size(); ++i) {
          CHECK(each.buffers[i].equal(found[0].buffers[i]));  // without an exchange
          CHECK(distance(each.buffers[i], expected.buffers[i]) < 1e-5);
        }
      }
      CHECK(distance(torch::cat(out), expected.out) < 1e-5);
      CHECK(distance(torch::cat(slope), expected.slope) < 1e-4);
      if (options.track_running_stats()) CHECK(distance(torch::cat(evaluated), expected.evaluated) < 1e-5);
    }
  }
}

TEST_CASE("a batch normalisation over ranks in double, without ranks, and without samples", "[torch]") {
  auto const x = numbers({6, 2, 4, 4}, 1).to(at::kDouble), target = numbers({6, 4, 4, 4}, 2).to(at::kDouble);
  auto const single = std::make_shared<whole_net>();
  auto const alone = std::make_shared<rank_net>();  // not synchronised
  for (torch::nn::Module* const each :
       {static_cast<torch::nn::Module*>(single.get()), static_cast<torch::nn::Module*>(alone.get())})
    fill(*each, 3), each->to(at::kDouble);
  auto const expected = train(single, single, x, target, 1, [] {});
  auto const found = train(alone, alone, x, target, 1, [] {});
  CHECK(distance(found.values, expected.values) < 1e-12);
  CHECK(distance(found.slope, expected.slope) < 1e-10);
  CHECK(distance(found.evaluated, expected.evaluated) < 1e-12);

  auto const empty = on_ranks<Tensor>(2, [&](auto& world) {
    interop::sync_batch_norm norm(2);
    interop::synchronize(norm, world);
    auto const own = (world.rank() == 0 ? x.to(at::kFloat) : torch::empty({0, 2, 4, 4})).requires_grad_(true);
    norm(own).square().sum().backward();
    return norm->running_mean.clone();
  });
  CHECK(empty[1].equal(empty[0]));
  CHECK(distance(empty[1], 0.1 * x.mean({0, 2, 3})) < 1e-6);

  comm::self_world world;
  CHECK(sentence_of([&] { interop::synchronize(single, world); }) ==
        "trireme::interop::synchronize: the module has no sync_batch_norm; use it in place of torch::nn::BatchNorm");
  CHECK(sentence_of([&] {
          alone->norm1(torch::zeros({2, 5}));
        }) == "trireme::interop::sync_batch_norm: an input of shape (2, 5) is not (n, 3, ...)");
  CHECK(sentence_of([] {
          interop::sync_batch_norm(3)(torch::zeros({1, 3}));
        }) ==
        "trireme::interop::sync_batch_norm: all ranks together have 1 values a channel, which have no variance; train "
        "on larger batches");
}

TEST_CASE("layers that are split over ranks compute the same as whole layers", "[torch]") {
  auto const tokens = torch::arange(10).remainder(6).reshape({2, 5});
  torch::nn::Embedding table(6, 4);
  torch::nn::Linear widen(4, 12), narrow(12, 3);
  for (torch::nn::Module* const each :
       {static_cast<torch::nn::Module*>(table.get()), static_cast<torch::nn::Module*>(widen.get()),
        static_cast<torch::nn::Module*>(narrow.get())})
    fill(*each, 3 + each->parameters().size());
  auto const expected = narrow(torch::tanh(widen(table(tokens))));
  expected.square().sum().backward();
  struct parts {
    Tensor out{}, table{}, widen{}, widen_bias{}, narrow{}, narrow_bias{};
  };
  for (int const ranks : {1, 2, 3}) {
    auto const found = on_ranks<parts>(ranks, [&](auto& world) {
      interop::rank_group const group(world);
      interop::vocabulary_embedding own_table(group, 6, 4);
      interop::column_linear own_widen(group, 4, 12);
      interop::row_linear own_narrow(group, 12, 3);
      auto const start = own_narrow->bias.detach().clone();
      own_table->take(table), own_widen->take(widen), own_narrow->take(narrow);
      auto const out = own_narrow(torch::tanh(own_widen(own_table(tokens))));
      out.square().sum().backward();
      if (sentence_of([&] { own_table(tokens + 1); }) !=
          "trireme::interop::vocabulary_embedding: there is a token outside [0, 6)")
        throw std::runtime_error("a token outside");
      return parts{torch::cat({out.detach().flatten(), start}),
                   own_table->weight.grad(),
                   own_widen->weight.grad(),
                   own_widen->bias.grad(),
                   own_narrow->weight.grad(),
                   own_narrow->bias.grad()};
    });
    auto const joined = [&](Tensor parts::*which, std::int64_t dimension) {
      std::vector<Tensor> all;
      for (auto const& each : found) all.push_back(each.*which);
      return torch::cat(all, dimension);
    };
    for (auto const& each : found) {
      CHECK(each.out.equal(found[0].out));  // and the bias that a row_linear begins with
      CHECK(distance(each.out.slice(0, 0, 30), expected.detach().flatten()) < 1e-5);
      CHECK(distance(each.narrow_bias, narrow->bias.grad()) < 1e-4);
    }
    CHECK(distance(joined(&parts::table, 0), table->weight.grad()) < 1e-4);
    CHECK(distance(joined(&parts::widen, 0), widen->weight.grad()) < 1e-4);
    CHECK(distance(joined(&parts::widen_bias, 0), widen->bias.grad()) < 1e-4);
    CHECK(distance(joined(&parts::narrow, 1), narrow->weight.grad()) < 1e-4);
  }
  auto const uneven = on_ranks<std::string>(2, [&](auto& world) {
    interop::rank_group const group(world);
    return sentence_of([&] { interop::row_linear(group, 5, 4); });
  });
  CHECK(uneven[1] ==
        "trireme::interop::row_linear: 5 inputs cannot be split evenly over 2 ranks; make them a "
        "multiple of 2");
}

namespace {

/// Every kind of layer that is split, beside one that is not; and the same whole. safetensors_test.py has it, too.
template <class Table, class Widen, class Narrow>
struct block_of : torch::nn::Module {
  template <class... Group>
  explicit block_of(Group const&... group) {
    table = register_module("table", Table(group..., 12, 4));
    widen = register_module("widen", Widen(group..., 4, 12));
    narrow = register_module("narrow", Narrow(group..., 12, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  Tensor forward(Tensor const& tokens) { return norm(narrow(torch::tanh(widen(table(tokens))))); }
  Table table{nullptr};
  Widen widen{nullptr};
  Narrow narrow{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
using whole_block = block_of<torch::nn::Embedding, torch::nn::Linear, torch::nn::Linear>;
using split_block = block_of<interop::vocabulary_embedding, interop::column_linear, interop::row_linear>;

/// Reads a file on some ranks, and writes it again.
std::vector<Tensor> through_ranks(int ranks, std::string const& from, std::string const& to) {
  return on_ranks<Tensor>(ranks, [&](auto& world) {
    auto const net = std::make_shared<split_block>(interop::rank_group(world));
    interop::load_safetensors(net, from, world);
    interop::save_safetensors(net, to, world);
    net->eval();
    return net->forward(torch::arange(12)).detach();
  });
}

}  // namespace

TEST_CASE("a file contains whole tensors of layers that are split over any number of ranks", "[torch]") {
  scratch folder;
  auto const net = std::make_shared<whole_block>();
  fill(*net, 5);
  {
    torch::NoGradGuard const guard;
    net->table->weight[0][0] = -0.0;
    net->norm->running_mean.copy_(numbers({4}, 6));
  }
  std::string const file = folder.path() + "/whole", again = folder.path() + "/again";
  interop::save_safetensors(net, file);
  net->eval();
  auto const expected = net->forward(torch::arange(12)).detach();
  auto const found = std::make_shared<whole_block>();
  std::string from = file;
  for (int const ranks : {3, 1, 4, 2}) {
    for (auto const& each : through_ranks(ranks, from, again)) CHECK(distance(each, expected) < 1e-5);
    interop::load_safetensors(found, again);
    CHECK(equal(*found, *net));
    CHECK(std::signbit(found->table->weight[0][0].item<float>()));
    from = again;
  }
  auto const nowhere = on_ranks<std::string>(2, [&](auto& world) {
    auto const part = std::make_shared<split_block>(interop::rank_group(world));
    return sentence_of([&] { interop::save_safetensors(part, folder.path() + "/no/such", world); });
  });
  CHECK(contains(nowhere[0], "/no"));
  CHECK(contains(nowhere[1], "the first rank could not write it"));
  auto const narrower = on_ranks<std::string>(2, [&](auto& world) {
    interop::rank_group const group(world);
    auto const own = interop::column_linear(group, 4, 6);
    auto const wide = torch::nn::Linear(4, 12);
    if (world.rank() == 0) interop::save_safetensors(wide, file);
    world.barrier();
    return sentence_of([&] { interop::load_safetensors(own, file, world); });
  });
  CHECK(contains(narrower[1], "\"weight\" is F32(12, 4) in the file, but F32(6, 4) in the module"));
}

// Started by safetensors_test.py.
TEST_CASE("passes Python's file through split layers", "[.python]") {
  auto const* named = std::getenv("TRIREME_TORCH_FOLDER");
  REQUIRE(named != nullptr);
  std::string const folder = named;
  through_ranks(3, folder + "/whole_by_python", folder + "/from_three");
  through_ranks(2, folder + "/from_three", folder + "/from_two");
}

TEST_CASE("autocast ends with its scope, and accepts only types that LibTorch supports", "[torch]") {
  torch::nn::Linear net(4, 4);
  auto const x = numbers({3, 4}, 1);
  {
    interop::autocast const outer;
    CHECK(net(x).scalar_type() == at::kBFloat16);
    {
      interop::autocast const inner(at::kBFloat16);
      CHECK(net(x).scalar_type() == at::kBFloat16);
    }
    CHECK(net(x).scalar_type() == at::kBFloat16);
  }
  CHECK(net(x).scalar_type() == at::kFloat);
  CHECK(sentence_of([&] {
          interop::autocast(at::kDouble);
        }).find("does not cast to Double on the CPU; use at::kBFloat16") != std::string::npos);
  if (!interop::detail::casts_to_float16) return;
  interop::autocast const half(at::kHalf);
  CHECK(net(x).scalar_type() == at::kHalf);
}
