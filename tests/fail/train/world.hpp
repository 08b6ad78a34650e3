#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "trireme/compression/compression.hpp"
#include "trireme/nn/nn.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/slots.hpp"

// What these tests are made of needs neither Eigen nor fmt, so that nvcc reads it too.

struct request {
  bool test();
  void wait();
};

/// A communicator with every collective that a trainer may ask for; declared only.
struct world {
  using policy_category = trireme::slot::communicator;
  static constexpr std::string_view name = "world";
  int rank() const;
  int size() const;
  world split(int color, int key);
  world duplicate();
  void barrier();
  trireme::traffic_counters traffic() const;
  void all_reduce(auto values, auto op);
  request all_reduce_async(auto values, auto op);
  void reduce_scatter(auto values, auto op);
  request reduce_scatter_async(auto values, auto op);
  void all_gather(auto values);
  request all_gather_async(auto values);
  void all_to_all(auto from, auto to);
  request all_to_all_async(auto from, auto to);
  void all_to_all(auto from, std::span<std::int64_t const> sent, auto to, std::span<std::int64_t const> received);
  request all_to_all_async(auto from, std::span<std::int64_t const> sent, auto to,
                           std::span<std::int64_t const> received);
  void exchange(auto transfers);
  request exchange_async(auto transfers);
};

/// A model with storage of its own; declared only.
struct spline {
  void visit_parameters(auto&& visit);
  float forward(trireme::samples const& batch);
  void backward(auto&& ready);
};
