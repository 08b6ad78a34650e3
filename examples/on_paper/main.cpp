// on_paper [PAGE]
// on_paper --choose
//
// Compares plans and schedules for 8 to 16384 ranks with published figures: writes docs/on_paper.md to standard output
// or to PAGE. With --choose: the table of docs/start/compare_strategies.md, the quickest strategy for each of some
// models, numbers of ranks and networks. With --plan: those of a command line; on_paper --plan --help.
// test:
// test: --plan --ranks 8 --parallel zero1=2,pipeline=2:1f1b,tensor=2
#include <cstdio>
#include <exception>

#include <string_view>
#include <vector>

#include "asked.hpp"
#include "choose.hpp"
#include "page.hpp"
#include "trireme/formats/file.hpp"

int main(int count, char** arguments) try {
  if (count > 1 && std::string_view(arguments[1]) == "--plan") {
    std::vector<std::string_view> const given(arguments + 2, arguments + count);
    for (auto const word : given) {
      if (word == "--help") {
        std::fputs(on_paper::usage_of_plans, stdout);
        return 0;
      }
    }
    try {
      std::fputs(on_paper::asked_plans(given).c_str(), stdout);
      return 0;
    } catch (trireme::config_error const& error) {
      std::fprintf(stderr, "on_paper: %s\n", error.what());
      return 2;
    }
  }
  if (count > 1 && std::string_view(arguments[1]) == "--choose") {
    std::fputs(on_paper::table_of_choices().c_str(), stdout);
    return 0;
  }
  auto const text = on_paper::page(on_paper::large_rows());
  if (count > 1) {
    trireme::formats::atomic_write(arguments[1], text);
  } else {
    std::fputs(text.c_str(), stdout);
  }
  return 0;
} catch (std::exception const& error) {
  std::fprintf(stderr, "on_paper: %s\n", error.what());
  return 1;
}
