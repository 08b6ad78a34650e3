// federated [FOLDER] [--rounds N] [--clients N] [--chosen N] [--alpha A] [--proximal MU] [--linear] [--dump FOLDER]
//
// Trains a classifier by federated averaging: CLIENTS (10), each of them a rank, have samples that nobody else sees. In
// each of N rounds (20), CHOSEN clients (3) pass once over their samples in steps of 32, and the mean of their
// parameters, weighted by their samples, goes to all. FOLDER has the files of MNIST or Fashion-MNIST
// (train-images-idx3-ubyte and the other three, uncompressed); without it the program makes samples of its own. Classes
// are divided among clients by Dirichlet's distribution with parameter A (0.3): the smaller, the fewer classes a client
// knows. MU (0) is the factor of FedProx. With --linear the model has no hidden layer; with --dump the samples of all
// clients and the parameters before and after the last round are written to a folder as raw numbers.
//
// test: --rounds 12
// test: --rounds 8 --proximal 0.1 --clients 4 --chosen 2
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "trireme/core/rng.hpp"
#include "trireme/formats/idx.hpp"
#include "trireme/parallel/federated.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace idx = formats::idx;

namespace {

struct options {
  std::string folder, dump;
  std::int64_t rounds = 20;
  int clients = 10, chosen = 3;
  double alpha = 0.3, proximal = 0;
  bool linear = false;
};

options parsed(std::vector<std::string> const& arguments) {
  options out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& name = arguments[i];
    if (!name.starts_with("--")) {
      out.folder = name;
      continue;
    }
    if (name == "--linear") {
      out.linear = true;
      continue;
    }
    if (i + 1 == arguments.size()) throw config_error(text("federated: ", name, " needs a value"));
    auto const& value = arguments[++i];
    std::size_t read = 0;
    double number = 0;
    if (name != "--dump") {
      try {
        number = std::stod(value, &read);
      } catch (std::exception const&) {
        read = 0;
      }
      if (read != value.size()) throw config_error(text("federated: ", name, " ", value, "; give a number"));
    }
    if (name == "--dump") {
      out.dump = value;
    } else if (name == "--rounds") {
      out.rounds = static_cast<std::int64_t>(number);
    } else if (name == "--clients") {
      out.clients = static_cast<int>(number);
    } else if (name == "--chosen") {
      out.chosen = static_cast<int>(number);
    } else if (name == "--alpha") {
      out.alpha = number;
    } else if (name == "--proximal") {
      out.proximal = number;
    } else {
      throw config_error(text("federated: there is no option ", name,
                              "; the first lines of examples/federated.cpp list "
                              "them"));
    }
  }
  if (out.rounds < 1 || out.clients < 1 || out.chosen < 1 || out.alpha <= 0)
    throw config_error("federated: --rounds, --clients and --chosen must be at least 1, and --alpha more than 0");
  return out;
}

/// Rows of numbers, and a class for each.
struct rows {
  std::int64_t width = 0;
  std::vector<float> inputs;
  std::vector<std::int32_t> classes;

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(classes.size()); }
  [[nodiscard]] samples part(std::int64_t first, std::int64_t n) const {
    return {erase_type(tensor_view<float const>(inputs.data() + first * width, {n, width})),
            erase_type(tensor_view<std::int32_t const>(classes.data() + first, {n})),
            {}};
  }
  void add(rows const& from, std::int64_t row) {
    inputs.insert(inputs.end(), from.inputs.begin() + row * width, from.inputs.begin() + (row + 1) * width);
    classes.push_back(from.classes[static_cast<std::size_t>(row)]);
  }
};

rows read(std::string const& images, std::string const& labels) {
  auto const pixels = idx::read(images), kinds = idx::read(labels);
  if (pixels.extents.rank() != 3 || kinds.extents.rank() != 1 || pixels.extents[0] != kinds.extents[0])
    throw config_error(text(images, " and ", labels, " are not images and a label for each"));
  rows out{pixels.extents[1] * pixels.extents[2], {}, {}};
  for (auto const pixel : pixels.values) out.inputs.push_back((static_cast<float>(pixel) / 255 - 0.29F) / 0.35F);
  out.classes.assign(kinds.values.begin(), kinds.values.end());
  return out;
}
/// Clouds of points around ten centres.
rows points(std::int64_t count, std::uint64_t seed) {
  rows out{16, {}, {}};
  auto const draw = [](std::uint64_t from, std::uint64_t n, std::uint64_t i) {
    return unit_float(random_block({from, n}, 0, i, 0)[0]) - 0.5F;
  };
  for (std::int64_t n = 0; n < count; ++n) {
    auto const kind = static_cast<std::uint64_t>(n % 10);
    for (std::uint64_t i = 0; i < 16; ++i)
      out.inputs.push_back(2 * draw(1, kind, i) + 2 * draw(seed, static_cast<std::uint64_t>(n), i));
    out.classes.push_back(static_cast<std::int32_t>(kind));
  }
  return out;
}

/// The samples of each class go to clients in shares that are drawn from Dirichlet's distribution. Each client has
/// some.
std::vector<rows> divided(rows const& all, std::int32_t classes, options const& what) {
  std::vector<rows> out(static_cast<std::size_t>(what.clients), rows{all.width, {}, {}});
  std::mt19937_64 random(7);
  std::gamma_distribution<double> gamma(what.alpha);
  std::vector<std::vector<double>> ends;  // by class: where the shares of clients end
  for (std::int32_t c = 0; c < classes; ++c) {
    auto& of = ends.emplace_back();
    double sum = 0;
    for (int client = 0; client < what.clients; ++client) of.push_back(sum += gamma(random) + 1e-9);
    for (auto& each : of) each /= sum;
  }
  for (std::int64_t row = 0; row < all.count(); ++row) {
    auto const& of = ends[static_cast<std::size_t>(all.classes[static_cast<std::size_t>(row)])];
    auto const where = std::uniform_real_distribution<double>()(random);
    auto const client = std::min(std::upper_bound(of.begin(), of.end(), where) - of.begin(), std::ssize(out) - 1);
    out[static_cast<std::size_t>(client)].add(all, row);
  }
  for (auto& each : out) {
    if (each.count() == 0) each.add(all, 0);
  }
  return out;
}

template <class T>
void dump(std::string const& path, std::vector<T> const& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<char const*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}
/// Collective: each parameter in a file of its own.
template <class Trainer>
void dump_parameters(Trainer& trainer, std::string const& prefix) {
  trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
    if (trainer.world().rank() == 0) dump(prefix + name, std::vector<float>(values.begin(), values.end()));
  });
}

int run(options const& what) {
  bool const own = what.folder.empty();
  auto const all =
      own ? points(2000, 2) : read(what.folder + "/train-images-idx3-ubyte", what.folder + "/train-labels-idx1-ubyte");
  auto const test =
      own ? points(500, 3) : read(what.folder + "/t10k-images-idx3-ubyte", what.folder + "/t10k-labels-idx1-ubyte");
  auto const classes = 1 + *std::max_element(all.classes.begin(), all.classes.end());
  auto const parts = divided(all, classes, what);
  constexpr std::int64_t batch = 32;
  std::int64_t most = 0;
  for (auto const& each : parts) most = std::max(most, each.count());
  parallel::federated const how{
      .period = (most + batch - 1) / batch, .chosen = what.chosen, .proximal = what.proximal, .seed = 1};
  nn::mlp_with<nn::loss::cross_entropy> const model{
      .inputs = all.width,
      .hidden = what.linear ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{64},
      .outputs = classes};
  if (!what.dump.empty()) {
    std::filesystem::create_directories(what.dump);
    for (int c = 0; c < what.clients; ++c) {
      dump(text(what.dump, "/inputs.", c), parts[static_cast<std::size_t>(c)].inputs);
      dump(text(what.dump, "/classes.", c), parts[static_cast<std::size_t>(c)].classes);
    }
  }
  double right = 0;
  trireme::launch(comm::threads{.ranks = what.clients}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.1, .momentum = 0}, world, how);
    auto const& mine = parts[static_cast<std::size_t>(world.rank())];
    data::in_memory const held(tensor_view<float const>(test.inputs.data(), {test.count(), test.width}),
                               tensor_view<std::int32_t const>(test.classes.data(), {test.count()}));
    for (std::int64_t round = 0; round < what.rounds; ++round) {
      bool const in = how.chooses(round, world.rank(), world.size());
      if (!what.dump.empty() && round + 1 == what.rounds) {
        dump_parameters(trainer, what.dump + "/before.");
        std::vector<std::int64_t> chosen(static_cast<std::size_t>(world.size()));
        chosen[static_cast<std::size_t>(world.rank())] = in ? mine.count() : 0;
        world.all_gather(tensor_view<std::int64_t>(chosen));
        if (world.rank() == 0) dump(what.dump + "/chosen", chosen);
      }
      for (std::int64_t step = 0; step < how.period; ++step) {
        auto const first = step * batch, n = in ? std::clamp<std::int64_t>(mine.count() - first, 0, batch) : 0;
        if (n > 0)
          trainer.step(mine.part(first, n));
        else
          trainer.step(std::span<samples const>());
      }
      auto const [seen] = trainer.evaluate(held, 256, metric::confusion(classes));
      if (world.rank() != 0) continue;
      right = seen.accuracy();
      fmt::print("round {}: {:.1f} % of the held-out samples right\n", round + 1, 100 * right);
    }
    if (!what.dump.empty()) dump_parameters(trainer, what.dump + "/after.");
  });
  return own && !what.linear && right < 0.6 ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(parsed({arguments + 1, arguments + count}));
  } catch (std::exception const& problem) {
    fmt::print(stderr, "{}\n", problem.what());
    return 1;
  }
}
