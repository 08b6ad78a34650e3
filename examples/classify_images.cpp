// classify_images [FOLDER] [EPOCHS] [RANKS]
//
// Trains a ResNet-20 on images in the files of MNIST or Fashion-MNIST (train-images-idx3-ubyte and the other three,
// uncompressed) in FOLDER, for EPOCHS passes over them (10) on RANKS threads (2). After each pass it prints the loss
// and the share of test images classified correctly. If FOLDER is missing or -, the program writes small test pictures
// of three kinds, with noise in a fifth of the pixels, to the working directory, and trains a smaller network on them.
//
// test: - 3 2
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/core/rng.hpp"
#include "trireme/formats/idx.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace idx = formats::idx;

namespace {

/// Images as numbers around 0, and a class for each.
struct pictures {
  tensor<float> images;  // (n, height, width)
  tensor<std::int32_t> classes;

  [[nodiscard]] std::int64_t count() const { return images.extents()[0]; }
};

pictures read(std::string const& images, std::string const& labels) {
  auto const pixels = idx::read(images), kinds = idx::read(labels);
  if (pixels.extents.rank() != 3 || kinds.extents.rank() != 1 || pixels.extents[0] != kinds.extents[0])
    throw config_error(text(images, " and ", labels, " are not images and a label for each"));
  pictures out{tensor<float>(pixels.extents), tensor<std::int32_t>(kinds.extents)};
  std::transform(pixels.values.begin(), pixels.values.end(), out.images.span().begin(),
                 [](std::uint8_t pixel) { return (static_cast<float>(pixel) / 255 - 0.29F) / 0.35F; });
  std::copy(kinds.values.begin(), kinds.values.end(), out.classes.span().begin());
  return out;
}

/// Writes squares, rings and crosses of many sizes at many positions.
void write_pictures(std::string const& images, std::string const& labels, std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t side = 12;
  idx::array pixels{{count, side, side}, {}}, kinds{{count}, {}};
  for (std::int64_t n = 0; n < count; ++n) {
    auto const draw = [&](std::uint32_t what, std::uint64_t i) {
      return random_block({seed, static_cast<std::uint64_t>(n)}, what, i, 0)[0];
    };
    auto const kind = n % 3, radius = 2 + static_cast<std::int64_t>(draw(0, 0) % 3);
    auto const middle = [&](std::uint64_t axis) {
      return radius + static_cast<std::int64_t>(draw(1, axis) % static_cast<std::uint32_t>(side - 2 * radius));
    };
    auto const top = middle(0), left = middle(1);
    kinds.values.push_back(static_cast<std::uint8_t>(kind));
    for (std::int64_t i = 0; i < side * side; ++i) {
      auto const down = std::abs(i / side - top), right = std::abs(i % side - left), far = std::max(down, right);
      bool const inside = kind == 0   ? far <= radius
                          : kind == 1 ? far == radius
                                      : far <= radius && (down == 0 || right == 0);
      auto const noise = draw(2, static_cast<std::uint64_t>(i));
      bool const lit = noise % 5 == 0 ? noise / 5 % 2 == 0 : inside;
      pixels.values.push_back(lit ? 255 : 0);
    }
  }
  idx::write(images, pixels);
  idx::write(labels, kinds);
}

int number(char const* text, int least) {
  int value = 0;
  auto const [end, problem] = std::from_chars(text, text + std::strlen(text), value);
  if (problem != std::errc{} || *end != '\0' || value < least) throw std::invalid_argument(text);
  return value;
}

int train(std::string folder, int epochs, int ranks) {
  bool const own = folder == "-";
  if (own) {
    folder = ".";
    write_pictures("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 1536, 1);
    write_pictures("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 512, 2);
  }
  auto const known = read(folder + "/train-images-idx3-ubyte", folder + "/train-labels-idx1-ubyte");
  auto const unseen = read(folder + "/t10k-images-idx3-ubyte", folder + "/t10k-labels-idx1-ubyte");
  auto const& size = known.images.extents();
  nn::convnet const model{.images = {size[1], size[2], 1},
                          .classes = 1 + *std::max_element(known.classes.span().begin(), known.classes.span().end()),
                          .blocks = own ? 1 : 3,
                          .channels = own ? 8 : 16};
  std::int64_t const batch = own ? 64 : 128, each = known.count() / batch;
  data::in_memory const data(known.images.view(), known.classes.view()),
      test(unseen.images.view(), unseen.classes.view());
  double last = 0;
  trireme::launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer =
        make_trainer(model,
                     optim::sgd{.schedule = optim::cosine{.peak = 0.1, .warmup = each / 4, .total = epochs * each},
                                .weight_decay = 5e-4},
                     world);
    for (int epoch = 1; epoch <= epochs; ++epoch) {
      auto const done = trainer.fit(data, {.steps = epochs * each, .batch = batch, .stop_after = epoch * each});
      auto const [seen] = trainer.evaluate(test, 256, metric::confusion(model.classes));
      if (world.rank() != 0) continue;
      last = seen.accuracy();
      fmt::print("epoch {}: loss {:.4f}, {:.2f} % of the test images right, {:.1f} s\n", epoch, done.last_loss,
                 100 * last, done.seconds);
      std::fflush(stdout);
    }
  });
  return !own || last > 0.8 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count > 4) throw std::invalid_argument("too many arguments");
    return train(count > 1 ? arguments[1] : "-", count > 2 ? number(arguments[2], 1) : 10,
                 count > 3 ? number(arguments[3], 1) : 2);
  } catch (std::invalid_argument const& problem) {
    fmt::print(stderr, "classify_images: {}\nusage: classify_images [FOLDER|-] [EPOCHS] [RANKS]\n", problem.what());
    return 2;
  } catch (std::exception const& problem) {
    fmt::print(stderr, "classify_images: {}\n", problem.what());
    return 1;
  }
}
