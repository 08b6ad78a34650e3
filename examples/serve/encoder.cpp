#include "encoder.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model.hpp"

#include "trireme/nn/bert_files.hpp"

using namespace trireme;

namespace {

/// A layer that keeps a copy of all rows; a prediction has only one of each sample.
struct kept_rows {
  static constexpr nn::flow flow = nn::flow::rows;
  std::vector<float>* to = nullptr;
  bool operator==(kept_rows const&) const = default;

  template <class Env>
  class instance {
    using view = tensor_view<typename Env::compute, typename Env::space>;

   public:
    struct saved {};
    instance(kept_rows const& what, nn::placing<Env>&) : to_(what.to) {}
    void visit(auto&&) {}
    view forward(pass<Env>&, saved&, view x) {
      to_->assign(x.span().begin(), x.span().end());
      return x;
    }
    view backward_input(pass<Env>&, saved&, view, view dy) { return dy; }
    void backward_weight(pass<Env>&, saved&, view, view) {}

   private:
    std::vector<float>* to_;
  };
};

/// A BERT without a head: the outputs of its last block are kept. It is never trained, so any loss does.
struct encoder {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;
  nn::bert whole;
  std::vector<float>* to = nullptr;
  bool checkpointed = false;
  bool operator==(encoder const&) const = default;

  template <class Emit>
  void units(Emit&& put) const {
    put(nn::block{"", whole.channels, whole.embeddings<Emit>()});
    for (std::int64_t i = 0; i < whole.layers; ++i)
      put(nn::block{text("bert.encoder.layer.", i), whole.channels, whole.layer<Emit>()});
    put(nn::block{"", whole.channels, nn::chain(kept_rows{to}, nn::loss::squared_error{})});
  }
  void validate() const { whole.validate(); }
  [[nodiscard]] nn::file_mapping in_files() const {
    auto out = whole.in_files();
    std::erase_if(out.tensors, [](auto const& each) { return each.name.starts_with("cls."); });
    out.copies.clear();
    out.ignored = {"*embeddings.position_ids", "cls.*", "*pooler.dense.*"};
    return out;
  }
  [[nodiscard]] std::vector<double> unit_costs() const {
    return std::vector<double>(static_cast<std::size_t>(whole.layers + 2), 1.0);
  }
};
std::string to_string(encoder const& it) {
  auto whole = it.whole;
  whole.separator = -1;  // not in files
  return text("the encoder of ", describe(whole));
}
void read_config(formats::json::value const& config, encoder& to) { nn::read_config(config, to.whole); }
[[maybe_unused]] formats::json::value config_of(encoder const& it) { return nn::config_of(it.whole); }

using either = nn::one_of<encoder, nn::bert>;

class loaded_encoder final : public text_encoder {
 public:
  loaded_encoder(nn::bert const& it, std::string const& directory)
      : model_(it.classes > 0 ? either{it} : either{encoder{it, states_.get()}}, directory, precision::fp32{}) {
    vocabulary = it.vocabulary;
    context = it.context;
    channels = it.channels;
    classes = it.classes;
    segments = it.segments;
    padding = it.padding;
    separator = it.separator;
  }
  [[nodiscard]] tensor<float> compute(tensor_view<std::int32_t const> tokens) override {
    auto out = model_.trainer.predict(make_samples(tokens, tensor_view<std::int32_t const>{}));
    if (classes > 0) return out;
    tensor<float> states({tokens.extent(0), tokens.extent(1), channels});
    std::ranges::copy(*states_, states.span().begin());
    return states;
  }

 private:
  std::unique_ptr<std::vector<float>> states_ = std::make_unique<std::vector<float>>();
  loaded_model<either, precision::fp32> model_;
};

}  // namespace

bool is_encoder(std::string const& directory) { return nn::model_type_in(directory) == "bert"; }

std::unique_ptr<text_encoder> load_encoder(std::string const& directory, std::int32_t separator) {
  auto it = nn::read_description<nn::bert>(directory);
  if (separator >= 0) it.separator = separator;
  return std::make_unique<loaded_encoder>(it, directory);
}
