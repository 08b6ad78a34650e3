#pragma once

#include <cstdint>

#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda.hpp"

namespace on_device {

/// A dropout site whose sample ids are on the device.
class site_there {
 public:
  explicit site_there(trireme::dropout_site const& here) : here_(here), ids_(trireme::shape{here.sample_count()}) {
    trireme::ops::on<trireme::cuda>::upload(ids_.view(), here.samples);
  }
  [[nodiscard]] trireme::dropout_site_in<trireme::cuda> operator()() const {
    return {here_.probability, here_.key, here_.site, ids_.view(), here_.first, here_.whole};
  }

 private:
  trireme::dropout_site here_;
  trireme::tensor<std::int64_t, trireme::cuda> ids_;
};

}  // namespace on_device
