// The three programs beside this one must print the same hashes, at each CPU level.
#include <cstdio>
#include <cstdlib>
#include <string>

std::string output_of(std::string const& program) {
  std::string text;
  auto* const pipe = popen((std::string(FOLDER "/") + program).c_str(), "r");
  if (pipe == nullptr) return text;
  char line[64];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  return pclose(pipe) == 0 ? text : "";
}

int main() {
  for (auto const* level : {"baseline", "avx2", "avx512", ""}) {
    setenv("TRIREME_CPU", level, 1);
    auto const headers = output_of("headers");
    auto const library = output_of("library");
    auto const mixed = output_of("mixed");
    std::printf("%s\nheaders\n%slibrary\n%smixed\n%s", level, headers.c_str(), library.c_str(), mixed.c_str());
    if (headers.size() != 3 * 17 || library != headers || mixed != headers) return 1;
  }
}
