// on_paper [PAGE]
// on_paper --choose
//
// Compares plans and schedules for 8 to 16384 ranks with published figures: writes docs/on_paper.md to standard output
// or to PAGE. With --choose: the table of docs/start/compare_strategies.md, the quickest strategy for each of some
// models, numbers of ranks and networks.
// test:
#include <cstdio>
#include <exception>

#include <string_view>

#include "choose.hpp"
#include "page.hpp"
#include "trireme/formats/file.hpp"

int main(int count, char** arguments) try {
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
