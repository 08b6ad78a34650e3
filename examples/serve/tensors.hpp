#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/serve/engine.hpp"
#include "trireme/serve/openai.hpp"

/// A model that answers with tensors, without HTTP. Any thread may ask; one request is computed at a time.
class tensor_model {
 public:
  tensor_model() = default;
  tensor_model(tensor_model const&) = delete;
  tensor_model& operator=(tensor_model const&) = delete;
  virtual ~tensor_model() = default;

  /// The response to /v2/models/NAME/infer.
  /// Errors   refusal; also the next one's.
  [[nodiscard]] virtual std::string infer(std::string_view body) = 0;
  /// That to GET /v2/models/NAME.
  [[nodiscard]] virtual std::string metadata() const = 0;
  /// Whether it has embeddings, and the response to /v1/embeddings: vectors of length 1.
  [[nodiscard]] virtual bool embeds() const noexcept { return false; }
  [[nodiscard]] virtual std::string embeddings(std::string_view) {
    throw trireme::serve::openai::refusal("there are no embeddings of this model", {}, 404);
  }
  [[nodiscard]] trireme::serve::statistics now() const {
    std::lock_guard const lock(counting_);
    return told_;
  }

 protected:
  /// What f() computes of so many rows, alone.
  template <class F>
  [[nodiscard]] auto compute_alone(std::size_t rows, F const& f) {
    {
      std::lock_guard const lock(counting_);
      ++told_.requests;
      ++told_.waiting;
      told_.prompt_tokens += static_cast<std::int64_t>(rows);
    }
    std::lock_guard const turn(computing_);
    auto const change = [&](bool begins) {
      std::lock_guard const lock(counting_);
      told_.running += begins ? 1 : -1;
      if (begins) {
        --told_.waiting;
        ++told_.passes;
        told_.rows_computed += static_cast<std::int64_t>(rows);
      }
    };
    change(true);
    try {
      auto out = f();
      change(false);
      return out;
    } catch (...) {
      change(false);
      std::lock_guard const lock(counting_);
      ++told_.errors;
      throw;
    }
  }

 private:
  std::mutex mutable computing_, counting_;
  trireme::serve::statistics told_;
};
