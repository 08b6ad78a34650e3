#include <trireme/trireme.hpp>

int main() {
  trireme::tensor<float> values({2, 3});
  return values.size() == 6 ? 0 : 1;
}
