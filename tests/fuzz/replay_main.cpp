// Runs a fuzz target on files, or on all files of directories: every compiler can so repeat what a fuzzer found.
// With --mutations N the target then sees N inputs made of those files by a generator that knows numbers: without
// libFuzzer, and each depends on its own number alone: --first I leaves out those before I, and --only I all others.
// What ends the program is left in ./crash, and so is what computes for more than ten seconds.
#include <sanitizer/common_interface_defs.h>
#include <signal.h>  // NOLINT: SIGPROF is POSIX, not in <csignal>
#include <sys/time.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

std::string current;  // what the target sees now
long long current_number = -1;

void keep_current() {
  std::fprintf(stderr, "the input is in ./crash%s%s\n", current_number < 0 ? "" : "; its number is ",
               current_number < 0 ? "" : std::to_string(current_number).c_str());
  std::ofstream("crash", std::ios::binary).write(current.data(), static_cast<std::streamsize>(current.size()));
}
extern "C" void on_signal(int number) {
  keep_current();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void run(std::string input, long long number = -1) {
  current = std::move(input);
  current_number = number;
  // A copy of exactly this size, so that a sanitizer sees a read one byte behind it.
  std::vector<std::uint8_t> const exact(current.begin(), current.end());
  ::itimerval const limit{{0, 0}, {10, 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

/// Numbers that depend on a start alone (splitmix64).
struct dice {
  std::uint64_t state;
  std::uint64_t operator()() {
    auto z = state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>((*this)() % end); }
};

/// Another number in the place of one that is written out in digits, if there is one behind a random place.
void change_number(std::string& text, dice& draw) {
  static constexpr char const* digits = "0123456789";
  static constexpr char const* numbers[] = {"0",
                                            "1",
                                            "2",
                                            "3",
                                            "-1",
                                            "12",
                                            "127",
                                            "255",
                                            "65536",
                                            "2147483647",
                                            "2147483648",
                                            "4294967296",
                                            "3037000500",
                                            "4611686018427387904",
                                            "9223372036854775800",
                                            "9223372036854775807",
                                            "9223372036854775808",
                                            "18446744073709551615",
                                            "18446744073709551616",
                                            "-9223372036854775808"};
  auto const begin = text.find_first_of(digits, draw.below(text.size() + 1));
  if (begin == std::string::npos) return;
  auto const end = std::min(text.find_first_not_of(digits, begin), text.size());
  std::string number = numbers[draw.below(std::size(numbers))];
  unsigned long long old = 0;
  std::from_chars(text.data() + begin, text.data() + end, old);
  if (draw.below(3) == 0) number = std::to_string(old + draw.below(5) - 2);
  text.replace(begin, end - begin, number);
}

std::string mutated(std::vector<std::string> const& all, dice& draw) {
  auto out = all[draw.below(all.size())];
  for (auto changes = 1 + draw.below(4); changes > 0; --changes) {
    auto const at = draw.below(out.size() + 1);
    auto const length = draw.below(std::min<std::size_t>(out.size() - at, 64) + 1);
    auto const& other = all[draw.below(all.size())];
    auto const from = draw.below(other.size() + 1);
    switch (draw.below(9)) {
      case 0:
        out.insert(at, 1, static_cast<char>(draw()));
        break;
      case 1:
        out.erase(at, length);
        break;
      case 2:
        out.insert(draw.below(out.size() + 1), out.substr(at, length));
        break;
      case 3:
        out.insert(at, other.substr(from, draw.below(64)));
        break;
      case 4:
        if (at < out.size()) out[at] = static_cast<char>(draw());
        break;
      default:
        change_number(out, draw);
        break;
    }
  }
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::filesystem::path> files;
  long long mutations = 0;
  long long first = 0;
  for (int i = 1; i < count; ++i) {
    std::string const given = arguments[i];
    if (given == "--mutations" && i + 1 < count) {
      mutations = std::atoll(arguments[++i]);
    } else if (given == "--first" && i + 1 < count) {
      first = std::atoll(arguments[++i]);
    } else if (given == "--only" && i + 1 < count) {
      first = std::atoll(arguments[++i]);
      mutations = first + 1;
    } else if (!std::filesystem::is_directory(given)) {
      files.emplace_back(given);
    } else {
      for (auto const& each : std::filesystem::directory_iterator(given)) files.push_back(each.path());
    }
  }
  std::sort(files.begin(), files.end());
  __sanitizer_set_death_callback(keep_current);
  for (int const number : {SIGABRT, SIGPROF}) ::signal(number, on_signal);
  std::vector<std::string> inputs;
  for (auto const& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (!in.is_open()) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      return 1;
    }
    run(inputs.back());
  }
  if (inputs.empty()) return 1;
  std::printf("%zu inputs replayed\n", inputs.size());
  auto const start = std::chrono::steady_clock::now();
  for (auto number = first; number < mutations; ++number) {
    dice draw{static_cast<std::uint64_t>(number)};
    run(mutated(inputs, draw), number);
  }
  if (mutations > 0) {
    std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - start;
    std::printf("%lld inputs made of them, in %.1f s\n", std::max(0LL, mutations - first), seconds.count());
  }
  return 0;
}
