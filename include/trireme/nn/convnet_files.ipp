#pragma once

#include "trireme/nn/convnet_files.hpp"
#include "trireme/nn/vit_files.ipp"

namespace trireme::nn {

namespace detail {

template <bool Synchronised>
void read_convnet(formats::json::value const& config, convnet_of<Synchronised>& to) {
  config_reader const in(config, "nn::convnet");
  if (auto const type = in.type(); type != convnet_type)
    in.at("model_type").fail(text("nn::convnet is \"", convnet_type, "\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  to.images = image_in(in, 28, 1);
  to.classes = labels_in(in, 10);
  to.blocks = in.size("num_blocks");
  to.channels = in.size("hidden_size");
  to.norm.epsilon = in.number("batch_norm_eps", batch_norm{}.epsilon);
  to.norm.momentum = in.number("batch_norm_momentum", batch_norm{}.momentum);
}

template <bool Synchronised>
[[nodiscard]] formats::json::value convnet_config(convnet_of<Synchronised> const& model) {
  namespace json = formats::json;
  return json::value::make({{"model_type", convnet_type},
                            {"architectures", json::array{}},
                            {"image_size", image_size_of(model.images)},
                            {"num_channels", model.images.channels},
                            {"num_blocks", model.blocks},
                            {"hidden_size", model.channels},
                            {"batch_norm_eps", model.norm.epsilon},
                            {"batch_norm_momentum", model.norm.momentum},
                            {"num_labels", model.classes}});
}

}  // namespace detail

TRIREME_BODY void read_config(formats::json::value const& config, convnet& to) { detail::read_convnet(config, to); }
TRIREME_BODY void read_config(formats::json::value const& config, synchronised_convnet& to) {
  detail::read_convnet(config, to);
}
TRIREME_BODY formats::json::value config_of(convnet const& model) { return detail::convnet_config(model); }
TRIREME_BODY formats::json::value config_of(synchronised_convnet const& model) { return detail::convnet_config(model); }

}  // namespace trireme::nn
