// Pictures that a loader reads, for scripts/benchmark loader.
//   loader_pictures make FOLDER N               writes N JPEG files of about 500 x 375 in FOLDER, of 4 classes
//   loader_pictures read FOLDER WORKERS ROUNDS  samples per second of each round, an epoch: 256 x 256, of which 224 x
//                                              224 are cut at random, flipped by chance
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "trireme/core/rng.hpp"
#include "trireme/data/augment.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/picture_folders.hpp"

using namespace trireme;

namespace {

int make(std::string const& folder, int count) {
  for (int n = 0; n < count; ++n) {
    auto const directory = folder + "/class" + std::to_string(n % 4);
    ::mkdir(directory.c_str(), 0777);
    int const width = 460 + n * 7 % 80, height = 340 + n * 11 % 70;
    std::vector<JSAMPLE> bytes(static_cast<std::size_t>(width * height * 3));
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        auto const noise =
            random_block({1, static_cast<std::uint64_t>(n)}, 0, static_cast<std::uint64_t>(y * width + x), 0);
        for (std::size_t c = 0; c < 3; ++c) {
          auto const wave = std::sin(0.02 * x * static_cast<double>(c + 1)) * std::cos(0.03 * y + n);
          auto const number = 128 + 90 * wave + static_cast<double>(noise[c] % 25) - 12;
          bytes[(static_cast<std::size_t>(y * width + x)) * 3 + c] = static_cast<JSAMPLE>(number);
        }
      }
    }
    auto* const file = std::fopen((directory + "/" + std::to_string(n) + ".jpg").c_str(), "wb");
    if (file == nullptr) return 1;
    jpeg_compress_struct jpeg{};
    jpeg_error_mgr errors{};
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = static_cast<JDIMENSION>(width);
    jpeg.image_height = static_cast<JDIMENSION>(height);
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 90, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < jpeg.image_height) {
      JSAMPROW line = bytes.data() + static_cast<std::size_t>(jpeg.next_scanline) * static_cast<std::size_t>(width) * 3;
      jpeg_write_scanlines(&jpeg, &line, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    std::fclose(file);
  }
  return 0;
}

int read(std::string const& folder, int workers, int rounds) {
  using steady = std::chrono::steady_clock;
  auto const data = data::augment(data::picture_folders{.directory = folder, .height = 256, .width = 256}.open(),
                                  data::crop{.height = 224, .width = 224}, data::flip{});
  data::loader from(data, {.batch = 32, .workers = workers});
  auto const epoch = [&] {
    for (std::int64_t i = 0; i < from.batches_per_epoch(); ++i) static_cast<void>(from.next());
  };
  epoch();  // the files come into the cache
  for (int round = 0; round < rounds; ++round) {
    auto const start = steady::now();
    epoch();
    std::printf("%.1f\n",
                static_cast<double>(data.size()) / std::chrono::duration<double>(steady::now() - start).count());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::string const what = count > 1 ? arguments[1] : "";
  if (what == "make" && count == 4) return make(arguments[2], std::atoi(arguments[3]));
  if (what == "read" && count == 5) return read(arguments[2], std::atoi(arguments[3]), std::atoi(arguments[4]));
  std::fprintf(stderr, "usage: loader_pictures make FOLDER N | read FOLDER WORKERS ROUNDS\n");
  return 2;
}
