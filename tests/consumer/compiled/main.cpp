#include <cinttypes>
#include <cstdint>
#include <cstdio>

std::uint64_t TRAINING(int kind);
#ifdef OTHER
std::uint64_t OTHER(int kind);
#endif

int main() {
  for (int kind = 0; kind < 3; ++kind) {
    auto const hash = TRAINING(kind);
#ifdef OTHER
    if (OTHER(kind) != hash) return 1;
#endif
    std::printf("%016" PRIx64 "\n", hash);
  }
}
