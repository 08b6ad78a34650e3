#include <trireme/ops/ops.hpp>

#ifndef TRIREME_COMPILED
#error "pkg-config does not say that bodies are in the library"
#endif

int main() {
  trireme::tensor<float> values({8});
  trireme::ops::on<trireme::host>::fill(values.view(), 2.0);
  trireme::ops::on<trireme::host>::scale(values.view(), 0.5);
  return values[7] == 1 ? 0 : 1;
}
