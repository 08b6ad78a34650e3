#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "world.hpp"

/// A memory space that has the kernels of an exchange, and no others; declared only.
struct shelf {
  static constexpr std::string_view name = "shelf";
  static constexpr std::size_t alignment = 64;
  static void* allocate(std::size_t bytes);
  static void deallocate(void* block, std::size_t bytes) noexcept;
};
template <>
struct trireme::ops::on<shelf> {
  static void fill(auto y, double value);
  static void copy(auto y, auto x);
  static void add(auto y, auto x);
  static void scale(auto y, double factor);
  static void accumulate(auto y, auto x, double weight);
  static void initialise(auto y, initial const& how, std::uint64_t seed, std::uint64_t name, std::int64_t first);
  static void upload(auto y, auto memory);
  static void download(auto memory, auto x);
  static std::uint64_t hash(auto x, std::uint64_t name, std::int64_t first);
  static bool finite(auto x);
  static void sum_of_squares(auto x, exact_sum& squares);
  static void reduce(auto outputs, auto terms, auto op);
  static void sgd(auto value, auto velocity, auto gradient, auto outputs, sgd_numbers const& numbers);
};
/// A memory space that has the kernels of dense layers too, and no others.
struct bench : shelf {};
template <>
struct trireme::ops::on<bench> : on<shelf> {
  static void linear(auto y, auto x, auto& w, auto const& epilogue);
  static void linear_backward_input(auto dx, auto dy, auto& w, auto const& epilogue);
  static void linear_backward_weight(auto dw, auto db, auto x, auto dy, orientation way);
  static void attention(auto y, auto lse, auto qkv, auto const& shape, auto& scratch, auto const& drop, auto seen);
  static void attention_backward(auto dqkv, auto dy, auto y, auto lse, auto qkv, auto const& shape, auto& scratch,
                                 auto const& drop, auto seen);
  static void layer_norm(auto y, auto mean, auto rstd, auto x, auto gain, auto bias, double epsilon);
  static void layer_norm_backward(auto dx, auto dgain, auto dbias, auto dy, auto x, auto mean, auto rstd, auto gain,
                                  bool accumulate);
  static void rms_norm(auto y, auto rstd, auto x, auto gain, double epsilon);
  static void rms_norm_backward(auto dx, auto dgain, auto dy, auto x, auto rstd, auto gain, bool accumulate);
  static void embed(auto y, auto tokens, auto table, auto positions, table_range part);
  static void embed_backward(auto dtable, auto dpositions, auto dy, auto tokens, table_range part);
  static void embed_segments(auto y, auto tokens, std::int32_t separator, auto table);
  static void embed_segments_backward(auto dtable, auto dy, auto tokens, std::int32_t separator);
  static void activate(auto y, auto x, activation act);
  static void activate_backward(auto dx, auto dy, auto x, activation act);
  static void elementwise_product(auto y, auto a, auto b);
  static void dropout(auto y, auto const& site);
  static void dropout_part(auto y, auto const& site, auto const& cut);
  static void copy_blocks(auto y, auto const& to, auto x, auto const& from, auto const& extents);
  static void copy_columns(auto y, std::int64_t to, auto x, std::int64_t from, std::int64_t columns);
  static loss_sum cross_entropy(auto logits, auto targets, double weight, bool gradient, auto const& terms);
  static loss_sum binary_cross_entropy(auto dy, auto y, auto targets, double weight);
  static loss_sum squared_error(auto dy, auto y, auto targets, double weight);
};
struct bench_world : world {
  using space = bench;
  bench_world split(int color, int key);
  bench_world duplicate();
};

struct shelf_world : world {
  using space = shelf;
  shelf_world split(int color, int key);
  shelf_world duplicate();
};
