// Prints what expect_exact_arithmetic() says of the flags that this was compiled with.
#include <cstdio>

#include "trireme/core/arithmetic.hpp"

int main() {
  try {
    trireme::expect_exact_arithmetic();
    std::puts("exact");
  } catch (trireme::config_error const& refused) {
    std::puts(refused.what());
  }
}
