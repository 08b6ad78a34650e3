// Where the pictures of classify_images come from.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/data/array_files.hpp"
#include "trireme/data/augment.hpp"
#include "trireme/data/cifar.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/data/map.hpp"
#include "trireme/data/npz_files.hpp"
#include "trireme/formats/idx.hpp"
#ifdef CLASSIFY_IMAGES_PICTURES
#include "trireme/data/picture_folders.hpp"
#include "trireme/data/tar_samples.hpp"
#endif
#ifdef CLASSIFY_IMAGES_ZLIB
#include "trireme/formats/inflate.hpp"
#endif
#ifdef CLASSIFY_IMAGES_HDF5
#include "trireme/data/hdf5.hpp"
#endif

/// The program was built without a library that a source needs.
struct library_missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Which pictures are read, and how.
struct picture_choice {
  std::string data{};                         ///< --data
  std::string test{};                         ///< --test; empty: beside the others, or a tenth of them
  std::string labels{}, test_labels{};        ///< of .npy files
  std::string features = "x", targets = "y";  ///< arrays in .npz and HDF5 files
  std::int64_t pixels = 64;                   ///< of PNG and JPEG files
};

/// Pictures with labels.
struct labelled_pictures {
  trireme::data::shared_dataset samples;
  std::int64_t classes;
};

/// The pictures for training and for testing.
struct picture_parts {
  trireme::data::shared_dataset training, held_out;
  std::int64_t classes;
};

namespace sources {

using namespace trireme;
namespace fs = std::filesystem;

inline bool has(std::string const& folder, char const* name) { return fs::exists(folder + "/" + name); }

/// The number of classes: one more than the largest label, for which all samples are read.
inline std::int64_t classes_of(data::shared_dataset const& samples) {
  if (samples.input_type() != dtype::f32 || samples.target_type() != dtype::i32 || samples.target_shape().size() != 1)
    throw config_error("a sample needs one whole number as its label");
  std::vector<float> pixels(static_cast<std::size_t>(samples.input_shape().size()));
  std::int32_t most = -1;
  for (std::int64_t id = 0; id < samples.size(); ++id) {
    std::int32_t label = 0;
    samples.read(std::span(&id, 1), pixels.data(), &label);
    if (label < 0 || label > 1'000'000) throw config_error(text("sample ", id, " has the label ", label));
    most = std::max(most, label);
  }
  return most + 1;
}

inline labelled_pictures idx(std::string const& images, std::string const& labels) {
  auto const pixels = formats::idx::read(images), kinds = formats::idx::read(labels);
  if (pixels.extents.rank() != 3 || kinds.extents.rank() != 1 || pixels.extents[0] != kinds.extents[0])
    throw config_error(text(images, " and ", labels, " are not images and a label for each"));
  tensor<float> numbers(pixels.extents);
  tensor<std::int32_t> classes(kinds.extents);
  std::transform(pixels.values.begin(), pixels.values.end(), numbers.span().begin(),
                 [](std::uint8_t pixel) { return (static_cast<float>(pixel) / 255 - 0.29F) / 0.35F; });
  std::copy(kinds.values.begin(), kinds.values.end(), classes.span().begin());
  auto const most = *std::max_element(classes.span().begin(), classes.span().end());
  return {data::in_memory(std::move(numbers), std::move(classes)), most + 1};
}

/// CIFAR-10 or CIFAR-100, as the size of the first file says.
inline labelled_pictures cifar(std::string const& files) {
  data::cifar from{.files = files, .mean = {0.4914, 0.4822, 0.4465}, .deviation = {0.2470, 0.2435, 0.2616}};
  auto const first = fs::file_size(from.files.names("trireme::data::cifar", {".bin"}).front());
  if (first % 3073 != 0 && first % 3074 == 0) from.labels = data::cifar_labels::hundred;
  auto const samples = from.open();
  return {samples, samples.classes()};
}

/// Arrays (n, side, side) or (n, side, side, colours) and a label for each: bytes become 0 to 1, other numbers stay.
template <class Arrays, class Open>
labelled_pictures arrays(Arrays from, Open const& open) {
  bool bytes = false;
  try {
    bytes = open(from).input_type() == dtype::u8;
  } catch (config_error const&) {  // numbers that need the conversion
  }
  from.features_as = dtype::f32;
  from.targets_as = dtype::i32;
  data::shared_dataset samples = open(from);
  if (bytes) {
    samples = data::map(samples, [](std::int64_t, std::span<float> pixels, std::span<std::int32_t>) {
      for (auto& each : pixels) each /= 255;
    });
  }
  return {samples, classes_of(samples)};
}

#ifdef CLASSIFY_IMAGES_PICTURES
inline constexpr std::array<double, 3> usual_mean{0.485, 0.456, 0.406}, usual_deviation{0.229, 0.224, 0.225};

inline data::picture_folder_samples folders(std::string const& directory, std::int64_t pixels) {
  return data::picture_folders{
      .directory = directory, .height = pixels, .width = pixels, .mean = usual_mean, .deviation = usual_deviation}
      .open();
}

/// Archives with a PNG or JPEG file (.png, .jpg, .jpeg) and a label (.cls) for each sample.
inline labelled_pictures tar(std::string const& files, std::int64_t pixels) {
  auto const decode = [pixels](data::tar_sample const& from, std::span<float> inputs, std::span<std::int32_t> targets) {
    std::string_view const ending = from.has("png") ? "png" : from.has("jpeg") ? "jpeg" : "jpg";
    formats::picture whole;
    if (auto const wrong = formats::decode_picture(from.bytes(ending), whole); !wrong.empty())
      throw from.wrong(ending, wrong);
    auto const side = std::min(whole.height, whole.width), to = static_cast<int>(pixels);
    auto const picture =
        formats::resized(whole, (whole.height - side) / 2, (whole.width - side) / 2, side, side, to, to);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = static_cast<float>((picture.colours[i] / 255.0 - usual_mean[i % 3]) / usual_deviation[i % 3]);
    targets[0] = from.label("cls");
  };
  auto const samples = data::tar_samples{.files = files}.open({.inputs = {pixels, pixels, 3}}, decode);
  std::int32_t most = -1;
  for (std::int64_t id = 0; id < samples.size(); ++id) {
    auto const each = samples.index()[id];
    auto const label = each.label("cls");
    if (label < 0) throw each.wrong("cls", "a label is not negative");
    most = std::max(most, label);
  }
  return {samples, std::int64_t{most} + 1};
}
#endif

[[noreturn]] inline void need(std::string const& data, char const* libraries) {
  throw library_missing(text(data, " needs ", libraries, ", not there when this program was built"));
}

inline bool is_folder_of_tars(std::string const& name) {
  if (!fs::is_directory(name)) return false;
  return std::any_of(fs::directory_iterator(name), fs::directory_iterator(),
                     [](fs::directory_entry const& each) { return each.path().extension() == ".tar"; });
}

/// The pictures that a name or a pattern stands for.
inline labelled_pictures open(std::string const& name, std::string const& labels, picture_choice const& how) {
  if (name.ends_with(".bin")) return cifar(name);
  if (name.ends_with(".npy")) {
    if (labels.empty()) throw config_error(text(name, " holds pictures; name the .npy file of their labels"));
    return arrays(data::array_files{.features = name, .targets = labels}, [](auto const& from) { return from.open(); });
  }
  if (name.ends_with(".npz")) {
    return arrays(data::npz_files{.files = name, .features = how.features, .targets = how.targets},
                  [](auto const& from) {
#ifdef CLASSIFY_IMAGES_ZLIB
                    return from.open(formats::inflate);
#else
                    return from.open();
#endif
                  });
  }
  if (name.ends_with(".h5") || name.ends_with(".hdf5")) {
#ifdef CLASSIFY_IMAGES_HDF5
    return arrays(data::hdf5{.files = name, .features = how.features, .targets = how.targets},
                  [](auto const& from) { return from.open(); });
#else
    need(name, "the HDF5 library");
#endif
  }
#ifdef CLASSIFY_IMAGES_PICTURES
  if (name.ends_with(".tar") || is_folder_of_tars(name)) return tar(name, how.pixels);
  auto const samples = folders(name, how.pixels);
  return {samples, static_cast<std::int64_t>(samples.classes().size())};
#else
  need(name, "libpng and libjpeg");
#endif
}

}  // namespace sources

inline picture_parts picture_parts_of(picture_choice const& how) {
  using namespace sources;
  auto const& data = how.data;
  auto const both = [](labelled_pictures training, labelled_pictures held_out) {
    if (held_out.samples.input_shape() != training.samples.input_shape())
      throw config_error("the test pictures have another shape than the others");
    return picture_parts{training.samples, held_out.samples, std::max(training.classes, held_out.classes)};
  };
  if (has(data, "train-images-idx3-ubyte")) {
    auto const of = [&](char const* part) {
      return idx(text(data, "/", part, "-images-idx3-ubyte"), text(data, "/", part, "-labels-idx1-ubyte"));
    };
    return both(of("train"), of("t10k"));
  }
  if (how.test.empty() && has(data, "data_batch_1.bin") && has(data, "test_batch.bin"))
    return both(cifar(data + "/data_batch_*.bin"), cifar(data + "/test_batch.bin"));
  if (how.test.empty() && has(data, "train.bin") && has(data, "test.bin"))
    return both(cifar(data + "/train.bin"), cifar(data + "/test.bin"));
#ifdef CLASSIFY_IMAGES_PICTURES
  if (how.test.empty() && has(data, "train") && has(data, "val")) {
    auto const training = folders(data + "/train", how.pixels), held_out = folders(data + "/val", how.pixels);
    if (training.classes() != held_out.classes())
      throw config_error(text("the folders in ", data, "/train and ", data, "/val differ, so the classes do"));
    return {training, held_out, static_cast<std::int64_t>(training.classes().size())};
  }
#endif
  auto const all = open(data, how.labels, how);
  if (!how.test.empty()) return both(all, open(how.test, how.test_labels, how));
  auto const parts = data::split{.held_out = 0.1, .by = data::split::hash}(all.samples);
  return {parts.training, parts.held_out, all.classes};
}

#ifdef CLASSIFY_IMAGES_PICTURES
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
#endif
