// test-sanitize: none
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/nn/convnet_files.hpp"
#include "trireme/nn/vit_files.hpp"

using namespace trireme;

namespace {

std::vector<float> pixels(std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(std::sin(1.7 * static_cast<double>(i * i))));
  return out;
}

}  // namespace

TEST_CASE("models of images have the tensors of transformers and torchvision", "[nn]") {
  auto const extents = [](auto const& model, std::string const& name) {
    for (auto const& each : model.in_files().tensors) {
      if (each.name == name) return each.extents;
    }
    return shape{0};
  };
  nn::vit const squares{
      .images = {12, 8, 2}, .side = 4, .classes = 5, .layers = 2, .heads = 2, .channels = 16, .hidden = 20};
  CHECK(extents(squares, "vit.embeddings.patch_embeddings.projection.weight") == shape{16, 2, 4, 4});
  CHECK(extents(squares, "vit.embeddings.position_embeddings") == shape{1, 7, 16});
  CHECK(extents(squares, "vit.encoder.layer.1.attention.attention.key.weight") == shape{16, 16});
  CHECK(extents(squares, "vit.encoder.layer.1.intermediate.dense.weight") == shape{20, 16});
  nn::convnet const residual{.images = {9, 9, 2}, .classes = 4, .blocks = 2, .channels = 4};
  CHECK(extents(residual, "conv1.weight") == shape{4, 2, 3, 3});
  CHECK(extents(residual, "layer2.0.downsample.0.weight") == shape{8, 4, 1, 1});
  CHECK(extents(residual, "layer3.1.bn2.running_var") == shape{16});
  // A config.json describes the model.
  nn::vit other;
  read_config(config_of(squares), other);
  CHECK(other == squares);
  nn::convnet another;
  read_config(config_of(residual), another);
  CHECK(another == residual);
}

TEST_CASE("a convolution's weights have another order in files", "[nn]") {
  nn::file_mapping layout;
  layout.add_convolution("w", 2, 3, 5);  // outputs, channels, rows, columns in files
  auto const& how = layout.tensors.front();
  CHECK(how.size() == 60);
  for (std::int64_t i = 0; i < 60; ++i) {
    auto const column = i % 2, row = i / 2 % 2, channel = i / 4 % 3, output = i / 12;
    CHECK(how.place(i) == ((row * 2 + column) * 3 + channel) * 5 + output);
  }
  // Any part of the parameter is what the whole has there.
  scratch dir;
  auto const numbers = pixels(60);
  {
    formats::safetensors::writer to(dir / "model.safetensors", {{"w", dtype::f32, {5, 3, 2, 2}}});
    to.write(std::as_bytes(std::span(numbers)));
    to.finish();
  }
  std::vector<float> whole(60);
  for (std::int64_t i = 0; i < 60; ++i)
    whole[static_cast<std::size_t>(how.place(i))] = numbers[static_cast<std::size_t>(i)];
  nn::pretrained_reader const from(layout, dir.path());
  for (auto const& extents : {shape{2, 2, 3, 5}, shape{12, 5}}) {
    for (std::int64_t first = 0; first < 60; ++first) {
      for (std::int64_t const count : {std::int64_t{1}, std::int64_t{7}, 60 - first}) {
        if (first + count > 60) continue;
        std::vector<float> part(static_cast<std::size_t>(count));
        from.read({"w", extents}, first, std::span(part));
        CHECK(std::equal(part.begin(), part.end(), whole.begin() + first));
      }
    }
  }
}

TEST_CASE("a config.json of another model of images is refused", "[nn]") {
  auto const said = [](char const* config, auto to) {
    return sentence_of<format_error>([&] { read_config(formats::json::parse(config, "config.json"), to); });
  };
  CHECK(said(R"({"model_type": "deit"})", nn::vit{}).find("nn::vit is \"vit\", not \"deit\"") != std::string::npos);
  CHECK(said(R"({"model_type": "vit", "qkv_bias": false})", nn::vit{}).find("qkv_bias") != std::string::npos);
  CHECK(said(R"({"model_type": "vit", "image_size": [1, 2, 3]})", nn::vit{}).find("a height and a width") !=
        std::string::npos);
  CHECK(said(R"({"model_type": "vit", "image_size": [0, 2]})", nn::vit{}).find("it is from 1 to") != std::string::npos);
  CHECK(said(R"({"model_type": "resnet"})", nn::convnet{}).find("nn::convnet is \"convnet\"") != std::string::npos);
}
