// classify_images [FOLDER] [EPOCHS] [RANKS]
// classify_images --data FOLDER [EPOCHS] [RANKS] [--size PIXELS]
//
// Trains a ResNet-20 on images in the files of MNIST or Fashion-MNIST (train-images-idx3-ubyte and the other three,
// uncompressed) in FOLDER, for EPOCHS passes over them (10) on RANKS threads (2). After each pass it prints the loss
// and the share of test images classified correctly. If FOLDER is missing or -, the program writes small test pictures
// of three kinds, with noise in a fifth of the pixels, to the working directory, and trains a smaller network on them.
//
// With --data the images are PNG and JPEG files, in a folder for each class, resized to squares of PIXELS (64). They
// are flipped and cut at random. FOLDER/train and FOLDER/val hold those to train on and to test with; without folders
// of these names a tenth of the images in FOLDER are held out. With --data - the program writes its pictures as PNG
// files.
//
// test: - 3 2
// test: --data - 4 2
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/core/rng.hpp"
#include "trireme/formats/idx.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/trireme.hpp"

#ifdef CLASSIFY_IMAGES_PICTURES
#include "picture_folder.hpp"
#endif

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

constexpr std::int64_t side = 12;  // of the program's own pictures

/// Squares, rings and crosses of many sizes at many positions.
void draw_pictures(std::int64_t count, std::uint64_t seed, idx::array& pixels, idx::array& kinds) {
  pixels = {{count, side, side}, {}}, kinds = {{count}, {}};
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
}
void write_pictures(std::string const& images, std::string const& labels, std::int64_t count, std::uint64_t seed) {
  idx::array pixels, kinds;
  draw_pictures(count, seed, pixels, kinds);
  idx::write(images, pixels);
  idx::write(labels, kinds);
}

int number(char const* text, int least) {
  int value = 0;
  auto const [end, problem] = std::from_chars(text, text + std::strlen(text), value);
  if (problem != std::errc{} || *end != '\0' || value < least) throw std::invalid_argument(text);
  return value;
}

/// @returns the share of test images that are classified correctly.
double train(nn::convnet const& model, data::any_dataset const& data, data::any_dataset const& test, std::int64_t batch,
             int epochs, int ranks) {
  auto const each = data.size() / batch;
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
  return last;
}

/// On images in the files of MNIST.
int train_on_files(std::string folder, int epochs, int ranks) {
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
  data::in_memory const data(known.images.view(), known.classes.view()),
      test(unseen.images.view(), unseen.classes.view());
  return train(model, data, test, own ? 64 : 128, epochs, ranks) > 0.8 || !own ? 0 : 1;
}

/// On PNG and JPEG files in a folder for each class.
int train_on_folders([[maybe_unused]] std::string folder, [[maybe_unused]] std::int64_t pixels,
                     [[maybe_unused]] int epochs, [[maybe_unused]] int ranks) {
#ifdef CLASSIFY_IMAGES_PICTURES
  bool const own = folder == "-";
  if (own) {
    folder = "pictures";
    pixels = side;
    idx::array drawn, kinds;
    draw_pictures(1536, 1, drawn, kinds);
    for (std::size_t n = 0; n < kinds.values.size(); ++n) {
      char const* const names[] = {"square", "ring", "cross"};
      write_png(text(folder, "/", names[kinds.values[n]], "/", n, ".png"), side,
                std::span(drawn.values).subspan(n * side * side, side * side));
    }
  }
  auto const parts = picture_parts_of(folder, pixels);
  nn::convnet const model{
      .images = {pixels, pixels, 3}, .classes = parts.classes, .blocks = own ? 1 : 3, .channels = own ? 8 : 16};
  auto const changed =
      data::augment(parts.training, data::crop{.padding = std::max<std::int64_t>(1, pixels / 8)}, data::flip{});
  auto const batch = std::min<std::int64_t>(own ? 64 : 128, changed.size());
  return train(model, changed, parts.held_out, batch, epochs, ranks) > 0.7 || !own ? 0 : 1;
#else
  fmt::print(stderr, "classify_images: --data needs libpng and libjpeg, which were not there when it was built\n");
  return 77;
#endif
}

}  // namespace

int main(int count, char** arguments) {
  try {
    std::vector<std::string> plain;
    std::string folder;
    int pixels = 64;
    for (int i = 1; i < count; ++i) {
      std::string const given = arguments[i];
      bool const takes_value = given == "--data" || given == "--size";
      if (takes_value && i + 1 == count) throw std::invalid_argument(given + " needs a value");
      if (!takes_value && given.starts_with("--")) throw std::invalid_argument(given);
      if (given == "--data") {
        folder = arguments[++i];
      } else if (given == "--size") {
        pixels = number(arguments[++i], 8);
      } else {
        plain.push_back(given);
      }
    }
    if (!folder.empty()) plain.insert(plain.begin(), folder);
    if (plain.empty()) plain.emplace_back("-");
    if (plain.size() > 3) throw std::invalid_argument("too many arguments");
    auto const epochs = plain.size() > 1 ? number(plain[1].c_str(), 1) : 10;
    auto const ranks = plain.size() > 2 ? number(plain[2].c_str(), 1) : 2;
    return folder.empty() ? train_on_files(plain[0], epochs, ranks) : train_on_folders(folder, pixels, epochs, ranks);
  } catch (std::invalid_argument const& problem) {
    fmt::print(stderr,
               "classify_images: {}\nusage: classify_images [FOLDER|-] [EPOCHS] [RANKS]\n"
               "       classify_images --data FOLDER|- [EPOCHS] [RANKS] [--size PIXELS]\n",
               problem.what());
    return 2;
  } catch (std::exception const& problem) {
    fmt::print(stderr, "classify_images: {}\n", problem.what());
    return 1;
  }
}
