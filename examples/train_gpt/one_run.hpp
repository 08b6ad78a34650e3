#pragma once

// What must be equal on all ranks of a run, compared before the first step.

#include <array>
#include <string>
#include <vector>

#include "options.hpp"
#include "trireme/parallel/same_on_all_ranks.hpp"
#include "trireme/train/build.hpp"
#include "trireme/trireme.hpp"
#include "world.hpp"

/// Collective. Throws config_error, which names two ranks, unless all have the same build, the same options (except
/// --text, --data and --tokenizer, and --ranks, which is the world's), and the same text and tokens.
/// @param text  its length and hash: its name may differ between machines.
/// @param tokens  a description of them.
inline void expect_one_run(trireme::comm::any_world& world, options const& given, std::string const& text,
                           std::string const& tokens) {
  using namespace trireme;
  auto const whose = "the ranks disagree";
  auto const& numbers = given.text("precision");
  bool const in_float = numbers == "fp32" || numbers == "tf32" || numbers == "fp16";
  // Compared alone, because another build may have other options.
  std::array const build{
      parallel::rank_value{"the build", in_float ? build_text<precision::fp32>() : build_text<precision::bf16>()}};
  parallel::expect_same_on_all_ranks(world, whose, world.rank(), build,
                                     "start the same program on all of them, with TRIREME_CPU=LEVEL if CPUs differ");
  std::vector<std::string> names;
  for (auto const& name : given.names()) {
    if (name != "text" && name != "data" && name != "tokenizer" && name != "ranks") names.push_back("--" + name);
  }
  std::vector<parallel::rank_value> items;
  for (auto const& name : names) items.push_back({name, given.text(name.substr(2))});
  items.push_back({"--resume", given.resume() ? "given" : "not given"});
  items.push_back({"--accept-new-text", given.accept_new_text() ? "given" : "not given"});
  parallel::expect_same_on_all_ranks(world, whose, world.rank(), items, "start all of them with the same options");
  std::array const content{parallel::rank_value{given.text("data").empty() ? "--text" : "--data", text},
                           parallel::rank_value{"--tokenizer", tokens}};
  parallel::expect_same_on_all_ranks(world, whose, world.rank(), content,
                                     "give all of them the same text and tokenizer");
}
