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
struct shelf_world : world {
  using space = shelf;
  shelf_world split(int color, int key);
  shelf_world duplicate();
};
