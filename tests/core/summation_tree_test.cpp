#include "trireme/core/summation_tree.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"

using namespace trireme;

namespace {

std::string number(std::int64_t leaf) { return std::to_string(leaf); }

/// The tree over leaves [first, last) by its definition, as brackets.
std::string tree(std::int64_t first, std::int64_t last) {
  if (last - first == 1) return number(first);
  auto const middle = first + tree_split(last - first);
  return "(" + tree(first, middle) + "+" + tree(middle, last) + ")";
}
/// The same, leaf by leaf on a stack; `runs` of them apart, then put together.
std::string by_runs(std::int64_t leaves, std::int64_t runs) {
  auto const each = leaves / runs;
  auto const merged = [](std::vector<std::string>& partial, std::int64_t n, std::int64_t i, std::string leaf) {
    partial.push_back(std::move(leaf));
    for (int merges = tree_merges(n, i); merges > 0; --merges) {
      auto const right = partial.back();
      partial.pop_back();
      partial.back() = "(" + partial.back() + "+" + right + ")";
    }
  };
  std::vector<std::string> outer;
  for (std::int64_t run = 0; run < runs; ++run) {
    std::vector<std::string> inner;
    for (std::int64_t i = 0; i < each; ++i) merged(inner, each, i, number(run * each + i));
    REQUIRE(inner.size() == 1);
    merged(outer, runs, run, inner[0]);
  }
  REQUIRE(outer.size() == 1);
  return outer[0];
}
/// The number of brackets around a leaf.
int brackets(std::int64_t first, std::int64_t last, std::int64_t leaf) {
  if (last - first == 1) return 0;
  auto const middle = first + tree_split(last - first);
  return 1 + (leaf < middle ? brackets(first, middle, leaf) : brackets(middle, last, leaf));
}

}  // namespace

TEST_CASE("a pairwise sum is the same tree, in any power of two of equal runs", "[core]") {
  CHECK(tree(0, 6) == "(((0+1)+2)+((3+4)+5))");
  CHECK(tree(0, 7) == "(((0+1)+(2+3))+((4+5)+6))");
  for (std::int64_t leaves = 1; leaves <= 96; ++leaves) {
    for (std::int64_t runs = 1; leaves % runs == 0; runs *= 2) CHECK(by_runs(leaves, runs) == tree(0, leaves));
  }
}

TEST_CASE("a stack of partial sums has at most the height of the tree", "[core]") {
  static_assert(tree_split(2) == 1 && tree_split(3) == 2 && tree_split(12) == 6 && tree_split(13) == 8);
  for (std::int64_t leaves = 1; leaves <= 256; leaves *= 2) {
    int height = 0;
    int most = 0;
    for (std::int64_t i = 0; i < leaves; ++i) {
      most = ++height > most ? height : most;
      height -= tree_merges(leaves, i);
    }
    int log2 = 0;
    while (std::int64_t{1} << log2 < leaves) ++log2;
    CHECK(most == log2 + 1);
    CHECK(height == 1);
  }
}

TEST_CASE("the depth of a leaf is the number of its brackets, and no more than the height of a full tree", "[core]") {
  bool right = true;
  for (std::int64_t leaves = 1; leaves <= 256; ++leaves)
    for (std::int64_t i = 0; i < leaves; ++i) {
      auto const depth = tree_depth(leaves, i);
      right = right && depth == brackets(0, leaves, i) && (std::int64_t{1} << depth) < 2 * leaves;
    }
  CHECK(right);
}
