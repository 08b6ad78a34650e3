// on_paper [PAGE]
//
// Compares plans and schedules for 8 to 16384 ranks with published figures: writes docs/on_paper.md to standard output
// or to PAGE.
// test:
#include <cstdio>
#include <exception>

#include "page.hpp"
#include "trireme/formats/file.hpp"

int main(int count, char** arguments) try {
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
