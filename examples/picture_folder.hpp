// Pictures for classify_images, where libpng and libjpeg are there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/augment.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/picture_folders.hpp"

/// The pictures of a folder, for training and for testing.
struct picture_parts {
  trireme::data::shared_dataset training, held_out;
  std::int64_t classes;
};

inline picture_parts picture_parts_of(std::string const& folder, std::int64_t pixels) {
  using namespace trireme;
  auto const open = [&](std::string const& directory) {
    return data::picture_folders{.directory = directory,
                                 .height = pixels,
                                 .width = pixels,
                                 .mean = {0.485, 0.456, 0.406},
                                 .deviation = {0.229, 0.224, 0.225}}
        .open();
  };
  auto const classes_of = [](auto const& samples) { return static_cast<std::int64_t>(samples.classes().size()); };
  if (std::filesystem::is_directory(folder + "/train") && std::filesystem::is_directory(folder + "/val")) {
    auto const training = open(folder + "/train"), held_out = open(folder + "/val");
    if (training.classes() != held_out.classes())
      throw config_error(text("the folders in ", folder, "/train and ", folder, "/val differ, so the classes do"));
    return {training, held_out, classes_of(training)};
  }
  auto const all = open(folder);
  auto const parts = data::split{.held_out = 0.1, .by = data::split::hash}(all);
  return {parts.training, parts.held_out, classes_of(all)};
}

/// Writes a square of grey pixels.
inline void write_png(std::string const& path, std::int64_t side, std::span<std::uint8_t const> pixels) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  ::png_image about{};
  about.version = PNG_IMAGE_VERSION;
  about.height = about.width = static_cast<::png_uint_32>(side);
  about.format = PNG_FORMAT_GRAY;
  if (::png_image_write_to_file(&about, path.c_str(), 0, pixels.data(), 0, nullptr) == 0)
    throw trireme::io_error(path, "the picture cannot be written");
}
