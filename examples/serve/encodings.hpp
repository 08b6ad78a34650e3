#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../vocabulary.hpp"
#include "encoder.hpp"
#include "tensors.hpp"

#include "trireme/serve/kserve.hpp"
#include "trireme/serve/openai.hpp"

/// How the vectors of a text's tokens become one.
enum class pooling { mean, first };
/// As sentence-transformers' files in a directory say; without them, the mean.
pooling pooling_in(std::string const& directory);

/// Answers of a BERT.
class encodings final : public tensor_model {
 public:
  /// @param model, words  outlive it.
  encodings(text_encoder& model, vocabulary const& words, std::string name, pooling how);

  [[nodiscard]] std::string embeddings(std::string_view body) override;
  [[nodiscard]] std::string infer(std::string_view body) override;
  [[nodiscard]] std::string metadata() const override;
  /// A classifier has none.
  [[nodiscard]] bool embeds() const noexcept override { return model_.classes == 0; }

 private:
  using tokens = std::vector<std::int32_t>;
  [[nodiscard]] tokens encode(std::string_view text, bool specials, char const* field) const;
  void expect_length(std::size_t length, char const* field) const;
  /// Outputs of rows, all of a length.
  [[nodiscard]] trireme::tensor<float> compute(tokens const& rows, std::int64_t length);
  /// Padded rows, and their length.
  [[nodiscard]] std::pair<tokens, std::int64_t> rows_of(trireme::serve::kserve::asked const& what) const;
  [[nodiscard]] std::pair<tokens, std::int64_t> rows_of_ids(trireme::serve::kserve::asked const& what) const;

  text_encoder& model_;
  vocabulary const& words_;
  std::string const name_;
  pooling const how_;
  trireme::serve::openai::limits limits_;
};
