// Environments: lines NAME=value. Besides not crashing: a place that is accepted is one that can be.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "trireme/comm/rendezvous.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme;
  std::string_view rest(reinterpret_cast<char const*>(data), size);
  std::map<std::string, std::string, std::less<>> variables;
  while (!rest.empty()) {
    auto const line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    auto const equals = line.find('=');
    if (equals != line.npos) variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  variables.erase("TRIREME_SECRET_FILE");  // no file is opened here
  comm::bootstrap::lookup const look = [&](char const* name) -> std::optional<std::string> {
    auto const found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    auto const here = comm::bootstrap::detect(look);
    bool const unknown = here.size == 0;  // PMIX_RANK alone
    if (here.rank < 0 || here.local_rank < 0 || (!unknown && here.rank >= here.size)) std::abort();
    if (!unknown && (here.local_size < 1 || here.local_rank >= here.local_size)) std::abort();
    if (here.port < 0 || here.port > 65535 || to_string(here).find('\n') != std::string::npos) std::abort();
    if (!unknown) static_cast<void>(to_string(comm::rendezvous::from(here, look)));
  } catch (config_error const& error) {
    std::string_view const sentence(error.what());
    if (!sentence.starts_with("trireme::comm::") || sentence.size() > 1000) std::abort();
  }
  return 0;
}
