#pragma once

#include "trireme/nn/pretrained.ipp"
#include "trireme/nn/vit_files.hpp"

namespace trireme::nn {

namespace detail {

/// Images in a config.json: "image_size" is that of both sides, or [height, width].
TRIREME_BODY image image_in(config_reader const& in, std::int64_t side, std::int64_t channels) {
  image out{side, side, in.size("num_channels", channels)};
  auto const* const size = in.find("image_size");
  if (size == nullptr || !size->is_array()) {
    out.height = out.width = in.size("image_size", side);
    return out;
  }
  auto const& both = size->as_array();
  if (both.size() != 2) size->fail("\"image_size\" is a number, or a height and a width");
  std::array<std::int64_t*, 2> const to{&out.height, &out.width};
  for (std::size_t i = 0; i < 2; ++i) {
    *to[i] = both[i].as_int64();
    if (*to[i] < 1 || *to[i] > in.most)
      both[i].fail(text("\"image_size\" has ", *to[i], "; it is from 1 to ", in.most));
  }
  return out;
}
[[nodiscard]] TRIREME_BODY formats::json::value image_size_of(image const& what) {
  if (what.height == what.width) return what.height;
  return formats::json::array{what.height, what.width};
}

/// As transformers counts the classes: by their names, else by their number; `otherwise` if there is neither.
TRIREME_BODY std::int64_t labels_in(config_reader const& in, std::int64_t otherwise) {
  auto const* const names = in.find("id2label");
  if (names == nullptr) return in.size("num_labels", otherwise);
  auto const count = static_cast<std::int64_t>(names->as_object().size());
  if (count < 1) names->fail("\"id2label\" has no class");
  return count;
}

/// The names of as many classes, without which transformers takes them to be two.
[[nodiscard]] TRIREME_BODY formats::json::value labels_of(std::int64_t classes) {
  formats::json::value out = formats::json::object{};
  for (std::int64_t i = 0; i < classes; ++i) out.set(text(i), text("LABEL_", i));
  return out;
}

}  // namespace detail

TRIREME_BODY void read_config(formats::json::value const& config, vit& to) {
  detail::config_reader const in(config, "nn::vit");
  if (auto const type = in.type(); type != "vit")
    in.at("model_type").fail(text("nn::vit is \"vit\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  in.expect("hidden_act", {"gelu"});
  in.expect("qkv_bias", {true});
  to.images = detail::image_in(in, 224, 3);
  to.side = in.size("patch_size", 16);
  to.classes = detail::labels_in(in, 2);
  to.layers = in.size("num_hidden_layers");
  to.heads = in.size("num_attention_heads");
  to.channels = in.size("hidden_size");
  to.hidden = in.size("intermediate_size");
  to.dropout = in.number("hidden_dropout_prob", 0);
  in.expect("attention_probs_dropout_prob", {to.dropout});
  to.epsilon = in.number("layer_norm_eps", 1e-12);
}

TRIREME_BODY formats::json::value config_of(vit const& model) {
  namespace json = formats::json;
  return json::value::make({{"model_type", "vit"},
                            {"architectures", json::array{"ViTForImageClassification"}},
                            {"image_size", detail::image_size_of(model.images)},
                            {"num_channels", model.images.channels},
                            {"patch_size", model.side},
                            {"num_hidden_layers", model.layers},
                            {"num_attention_heads", model.heads},
                            {"hidden_size", model.channels},
                            {"intermediate_size", model.inner()},
                            {"hidden_act", "gelu"},
                            {"qkv_bias", true},
                            {"hidden_dropout_prob", model.dropout},
                            {"attention_probs_dropout_prob", model.dropout},
                            {"layer_norm_eps", model.epsilon},
                            {"num_labels", model.classes},
                            {"id2label", detail::labels_of(model.classes)}});
}

}  // namespace trireme::nn
