#include <string_view>
#include <trireme/core/error.hpp>

float train(bool two);

int main() {
  if (train(false) > 0.1F) return 1;
  try {
    train(true);
  } catch (trireme::config_error const& error) {  // thrown in the library
    return std::string_view(error.what()).find("another exchange") == std::string_view::npos ? 2 : 0;
  }
  return 3;
}
