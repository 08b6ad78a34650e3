#include "everything.hpp"

std::int64_t size_of_other();

int main() {
  trireme::tensor<float> values({2, 3});
  return values.size() == size_of_other() ? 0 : 1;
}
