// classify_images [SOURCE|-] [EPOCHS] [RANKS] [--test SOURCE] [--size PIXELS] [--labels FILE] [--test-labels FILE]
//                 [--features NAME] [--targets NAME]
// classify_images --data SOURCE|- [EPOCHS] [RANKS] [the same options]
//
// Trains a ResNet-20 on pictures for EPOCHS passes over them (10) on RANKS threads (2). After each pass it prints the
// loss and the share of test pictures classified correctly. SOURCE is
//
//   a folder of MNIST's or Fashion-MNIST's files   train-images-idx3-ubyte and the other three, uncompressed
//   a folder or "pattern*.bin" of CIFAR's files    the binary version of CIFAR-10 or CIFAR-100
//   a folder with a folder for each class          PNG and JPEG files, resized to squares of PIXELS (64)
//   a folder or "pattern*.tar" of archives         for each sample a file .png or .jpg and a label in a file .cls
//   "pattern*.npz", "pattern*.h5"                  arrays of pictures (x, or --features) and labels (y, or --targets)
//   "pattern*.npy"                                 pictures; --labels names the file of their labels
//
// Pictures in arrays are (n, side, side) or (n, side, side, colours); bytes are divided by 255. Test pictures are those
// of --test, or those beside the others (t10k-..., test_batch.bin, test.bin, the folder val beside train), or a tenth
// of all that is held out. Pictures that are not MNIST's are flipped and cut at random with --data.
//
// If SOURCE is missing or -, the program writes small test pictures of three kinds, with noise in a fifth of the
// pixels, to the working directory, and trains a smaller network on them: in MNIST's format, or with --data as PNG
// files.
//
// test: - 3 2
// test: --data - 4 2
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/core/rng.hpp"
#include "trireme/formats/idx.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/trireme.hpp"

#include "picture_sources.hpp"  // with CLASSIFY_IMAGES_PICTURES, CLASSIFY_IMAGES_ZLIB and CLASSIFY_IMAGES_HDF5

using namespace trireme;
namespace idx = formats::idx;

namespace {

constexpr char const* usage = R"(usage: classify_images [SOURCE|-] [EPOCHS] [RANKS]
       classify_images --data SOURCE|- [EPOCHS] [RANKS] [--test SOURCE] [--size PIXELS]
           [--labels FILE] [--test-labels FILE] [--features NAME] [--targets NAME]
)";
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

int number(char const* what, std::string const& given, int least) {
  int value = 0;
  auto const* const last = given.data() + given.size();
  auto const [end, problem] = std::from_chars(given.data(), last, value);
  if (problem != std::errc{} || end != last || value < least)
    throw std::invalid_argument(text(what, " is \"", given, "\"; it is a whole number of at least ", least));
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

/// Writes the program's own pictures: files of MNIST's format, or PNG files. Says where they are.
std::string write_own(bool as_files_of_mnist) {
  if (as_files_of_mnist) {
    write_pictures("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 1536, 1);
    write_pictures("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 512, 2);
    return ".";
  }
#ifdef CLASSIFY_IMAGES_PICTURES
  idx::array drawn, kinds;
  draw_pictures(1536, 1, drawn, kinds);
  for (std::size_t n = 0; n < kinds.values.size(); ++n) {
    char const* const names[] = {"square", "ring", "cross"};
    write_png(text("pictures/", names[kinds.values[n]], "/", n, ".png"), side,
              std::span(drawn.values).subspan(n * side * side, side * side));
  }
#endif
  return "pictures";
}

/// @param changed  whether pictures are flipped and cut at random.
int train_on(picture_choice from, bool changed, int epochs, int ranks) {
  bool const own = from.data == "-";
  if (own) {
    from.data = write_own(!changed);
    from.pixels = side;
  }
  auto parts = picture_parts_of(from);
  auto const size = parts.training.input_shape();
  if (size.rank() < 2 || size.rank() > 3) {
    throw config_error(text(from.data, ": a sample is ", to_string(size),
                            ", but (side, side) or (side, side, colours) ", "is a picture"));
  }
  nn::convnet const model{.images = {size[0], size[1], size.rank() == 3 ? size[2] : 1},
                          .classes = parts.classes,
                          .blocks = own ? 1 : 3,
                          .channels = own ? 8 : 16};
  if (changed) {
    parts.training =
        data::augment(parts.training, data::crop{.padding = std::max<std::int64_t>(1, size[0] / 8)}, data::flip{});
  }
  auto const batch = std::min<std::int64_t>(own ? 64 : 128, parts.training.size());
  auto const least = changed ? 0.7 : 0.8;
  auto const right = train(model, parts.training, parts.held_out, batch, epochs, ranks);
  if (!own || right > least) return 0;
  fmt::print(stderr, "classify_images: {:.0f} % of the program's own test pictures should be right; train for longer\n",
             100 * least);
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (std::find(arguments + 1, arguments + count, std::string("--help")) != arguments + count) {
    fmt::print("{}", usage);
    return 0;
  }
  try {
    std::vector<std::string> plain;
    picture_choice from;
    std::string pixels = "64";
    std::map<std::string, std::string*, std::less<>> const options{{"--data", &from.data},
                                                                   {"--test", &from.test},
                                                                   {"--labels", &from.labels},
                                                                   {"--size", &pixels},
                                                                   {"--features", &from.features},
                                                                   {"--targets", &from.targets},
                                                                   {"--test-labels", &from.test_labels}};
    for (int i = 1; i < count; ++i) {
      std::string const given = arguments[i];
      auto const option = options.find(given);
      if (option == options.end() && given.starts_with("--")) throw std::invalid_argument("there is no " + given);
      if (option == options.end()) {
        plain.push_back(given);
        continue;
      }
      if (i + 1 == count) throw std::invalid_argument(given + " needs a value");
      *option->second = arguments[++i];
    }
    bool const changed = !from.data.empty();
    if (!changed) {
      from.data = plain.empty() ? "-" : plain.front();
      if (!plain.empty()) plain.erase(plain.begin());
    }
    if (plain.size() > 2) throw std::invalid_argument("too many arguments");
    from.pixels = number("--size", pixels, 8);
    auto const epochs = plain.empty() ? 10 : number("EPOCHS", plain[0], 1);
    auto const ranks = plain.size() < 2 ? 2 : number("RANKS", plain[1], 1);
    return train_on(from, changed, epochs, ranks);
  } catch (library_missing const& problem) {
    fmt::print(stderr, "classify_images: {}\n", problem.what());
    return 77;
  } catch (std::invalid_argument const& problem) {
    fmt::print(stderr, "classify_images: {}\n{}", problem.what(), usage);
    return 2;
  } catch (std::exception const& problem) {
    fmt::print(stderr, "classify_images: {}\n", problem.what());
    return 1;
  }
}
