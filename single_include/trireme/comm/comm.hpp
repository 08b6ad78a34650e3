// Made by scripts/single-header.
#pragma once
#include "trireme/trireme.hpp"
