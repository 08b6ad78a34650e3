#include "everything.hpp"

std::int64_t size_of_other() { return trireme::tensor<float>({3, 2}).size(); }
