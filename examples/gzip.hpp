// Files that gzip compressed, for tokenize, where zlib is there.
#pragma once

#include "trireme/formats/gzip.hpp"
