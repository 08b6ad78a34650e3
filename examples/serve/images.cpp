#include "images.hpp"

#include <cstddef>
#include <vector>

#include "model.hpp"

#include "trireme/core/text.hpp"
#include "trireme/nn/convnet_files.hpp"
#include "trireme/nn/vit_files.hpp"
#include "trireme/serve/kserve.hpp"

using namespace trireme;
namespace openai = serve::openai;
namespace kserve = serve::kserve;

namespace {

template <class Model>
class loaded_images final : public image_classifier {
 public:
  loaded_images(Model const& it, std::string const& directory) : model_(it, directory, precision::fp32{}) {
    images = it.images;
    classes = it.classes;
  }
  [[nodiscard]] tensor<float> compute(tensor_view<float const> from) override { return model_.trainer.predict(from); }

 private:
  loaded_model<Model, precision::fp32> model_;
};

}  // namespace

bool is_of_images(std::string const& directory) {
  auto const type = nn::model_type_in(directory);
  return type == "vit" || type == nn::convnet_type;
}

std::unique_ptr<image_classifier> load_images(std::string const& directory) {
  if (nn::model_type_in(directory) == "vit")
    return std::make_unique<loaded_images<nn::vit>>(nn::read_description<nn::vit>(directory), directory);
  return std::make_unique<loaded_images<nn::convnet>>(nn::read_description<nn::convnet>(directory), directory);
}

std::string classifications::infer(std::string_view body) {
  auto const what = kserve::parse(body);
  auto const refuse = [](auto const&... parts) { throw openai::refusal(text(parts...)); };
  for (auto const& each : what.outputs) {
    if (each != "logits") refuse("outputs: there is no \"", each.substr(0, 80), "\", but \"logits\"");
  }
  for (auto const& each : what.inputs) {
    if (each.name != "pixel_values")
      refuse("inputs: there is no \"", each.name.substr(0, 80), "\"; the model takes pixel_values");
  }
  auto const& given = what.inputs.front();
  auto const height = model_.images.height, width = model_.images.width, channels = model_.images.channels;
  auto const& extents = given.extents;
  if (extents.size() != 4 || extents[1] != channels || extents[2] != height || extents[3] != width) {
    std::string shape;
    for (auto const each : extents) shape += (shape.empty() ? "" : ", ") + std::to_string(each);
    refuse("pixel_values: the shape is (", shape, "), but images are (rows, ", channels, ", ", height, ", ", width,
           ")");
  }
  auto const rows = extents[0], pixels = height * width;
  auto const& from = given.floats();
  std::vector<float> to(from.size());  // channels innermost
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto const at = static_cast<std::int64_t>(i), row = at / (channels * pixels);
    auto const channel = at / pixels % channels, pixel = at % pixels;
    to[static_cast<std::size_t>((row * pixels + pixel) * channels + channel)] = from[i];
  }
  auto const computed = compute_alone(static_cast<std::size_t>(rows), [&] {
    return model_.compute(tensor_view<float const>(to.data(), {rows, height, width, channels}));
  });
  kserve::tensor out{.name = "logits", .datatype = "FP32", .extents = {rows, model_.classes}};
  out.data = std::vector<float>(computed.span().begin(), computed.span().end());
  return kserve::response(what, name_, {std::move(out)});
}

std::string classifications::metadata() const {
  auto const height = model_.images.height, width = model_.images.width, channels = model_.images.channels;
  return kserve::metadata(name_, {{"pixel_values", "FP32", {-1, channels, height, width}}},
                          {{"logits", "FP32", {-1, model_.classes}}});
}
