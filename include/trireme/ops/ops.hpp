#pragma once

#include "trireme/ops/host.hpp"
#include "trireme/ops/phantom.hpp"
#include "trireme/ops/tf32.hpp"
#include "trireme/ops/types.hpp"
