// test-sanitize: none
#include "trireme/nn/onnx_images.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/nn/convnet_files.hpp"
#include "trireme/nn/vit_files.hpp"
#include "trireme/train/onnx.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// Numbers between -1 and 1 without a pattern; or classes.
template <class T>
std::vector<T> drawn(std::int64_t count, std::int64_t kinds) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const some = std::sin(1.7 * static_cast<double>(i * i + kinds));
    out.push_back(kinds == 0 ? static_cast<T>(some) : static_cast<T>(std::abs(some) * static_cast<double>(kinds)));
  }
  return out;
}

/// What a file is to have.
struct kept {
  std::vector<formats::safetensors::entry> entries{};
  std::vector<float> numbers{};

  template <class View>
  void add(std::string const& name, View const& all) {
    entries.push_back({name, dtype::f32, all.extents()});
    for (auto const each : all.flat().span()) numbers.push_back(each);
  }
};

/// All layers of images, of odd sizes.
struct odd {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;
  nn::image images{7, 6, 2};
  std::int64_t classes = 3;
  friend bool operator==(odd const&, odd const&) = default;
  friend std::string to_string(odd const&) { return "odd{}"; }

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"a", 0,
               chain(features{images.size()}, images, named("c", conv2d{.outputs = 3, .stride = 2, .padding = 1}),
                     named("n", batch_norm{.epsilon = 0.1}), silu())});
    image const middle{4, 3, 3};
    auto const left = chain(named("l", conv2d{.outputs = 4, .kernel = 2, .stride = 2, .bias = false}), silu(),
                            named("p", conv2d{.outputs = 4, .kernel = 1}));
    auto const right = chain(named("s", conv2d{.outputs = 4, .kernel = 1}), max_pool2d{});
    emit(block{"b", middle.size(),
               chain(middle, sum(left, right), residual(named("r", conv2d{.outputs = 4, .kernel = 1})), tanh())});
    image const last{2, 1, 4};
    emit(block{"c", last.size(),
               chain(last, max_pool2d{.kernel = 2, .stride = 1, .padding = 1}, average_pool2d{.kernel = 2, .stride = 1},
                     residual(named("w", linear{.outputs = 8})), named("f", linear{.outputs = 3}),
                     named("n", batch_norm{}), loss::cross_entropy{})});
  }
};
formats::onnx::graph in_onnx(odd const& model, nn::onnx_options const& how) {
  nn::onnx_walk at(false, how.dialect);
  at.graph.name = "odd";
  auto const y = nn::onnx_nodes_of_units(at, model);
  at.finish(y, {"logits", formats::onnx::element::f32, {std::string("batch_size"), std::int64_t{3}}});
  return std::move(at.graph);
}

/// Trains a model of images a little, so that no parameter is as it starts, and writes it.
template <class Model>
void add(kept& to, Model const& model, std::string const& kind, scratch const& dir) {
  constexpr std::int64_t samples = 12, seen = 5;
  auto const pixels = drawn<float>(samples * model.images.size(), 0);
  auto const classes = drawn<std::int32_t>(samples, model.classes);
  auto const& [height, width, channels] = model.images;
  data::in_memory<float, std::int32_t> const data(
      tensor_view<float const>(pixels.data(), {samples, height, width, channels}),
      tensor_view<std::int32_t const>(classes.data(), {samples}));
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::sgd{.schedule = optim::constant{0.2}}, world, parallel::zero<3>{});
    trainer.fit(data, {.steps = 4, .batch = 6});
    for (auto const dialect : nn::onnx_dialects) {
      auto const bytes = save_onnx(trainer, dir / text(dialect, "/images_", kind, ".onnx"),
                                   {.dialect = *nn::onnx_dialect_named(dialect)});
      CHECK((bytes > 0) == (world.rank() == 0));
    }
    if constexpr (requires { model.in_files(); }) {  // the same from its files
      save_pretrained(trainer, dir / kind);
      if (world.rank() == 0) {
        nn::write_onnx_directory(dir / kind, dir / ("made_" + kind));
        CHECK(formats::read_file(dir / ("made_" + kind + "/model.onnx")) ==
              formats::read_file(dir / text("portable/images_", kind, ".onnx")));
        CHECK(std::filesystem::exists(dir / ("made_" + kind + "/config.json")));
        CHECK_FALSE(std::filesystem::exists(dir / ("made_" + kind + "/genai_config.json")));
      }
    }
    tensor_view<float const> const some(pixels.data(), {seen, height, width, channels});
    auto const logits = trainer.predict(some);
    if constexpr (requires { model.in_files(); }) {  // and it is that model again after reading them
      CHECK(nn::read_description<Model>(dir / kind) == model);
      trainer.fit(data, {.steps = 6, .batch = 6});
      auto const changed = trainer.predict(some);
      load_pretrained(trainer, dir / kind);
      auto const again = trainer.predict(some);
      CHECK_FALSE(std::ranges::equal(changed.span(), logits.span()));
      CHECK(std::ranges::equal(again.span(), logits.span()));
    }
    if (world.rank() != 0) return;
    to.add("images_" + kind + "/x", tensor_view<float const>(pixels.data(), {seen, height, width, channels}));
    to.add("images_" + kind + "/y", logits.view());
  });
}

}  // namespace

TEST_CASE("onnxruntime computes our logits of images", "[nn][onnx]") {
  scratch dir;
  kept ours;
  for (auto const name : nn::onnx_dialects) std::filesystem::create_directory(dir / std::string(name));
  add(ours,
      nn::vit{.images = {12, 8, 3}, .side = 4, .classes = 5, .layers = 2, .heads = 3, .channels = 24, .hidden = 40},
      "vit", dir);
  add(ours, nn::convnet{.images = {10, 10, 2}, .classes = 4, .blocks = 2, .channels = 4}, "convnet", dir);
  add(ours, odd{}, "odd", dir);
  formats::safetensors::writer to(dir / "ours.safetensors", ours.entries);
  to.write(std::as_bytes(std::span(ours.numbers)));
  to.finish();
  python_ran("check_onnx.py", dir.path());
}

TEST_CASE("layers of images that have none before them are refused", "[nn][onnx]") {
  nn::onnx_walk at(false);
  at.width = 5;
  CHECK(sentence_of<config_error>([&] { onnx_nodes(at, nn::conv2d{.outputs = 1}, "x"); }) ==
        "trireme::nn::onnx_nodes: no layer before it says what images its rows of 5 numbers are; put "
        "nn::image{height, width, channels} of that size before it");
}
