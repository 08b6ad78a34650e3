#pragma once

#include "trireme/compression/cast.hpp"
#include "trireme/compression/error_feedback.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/compression/one_of.hpp"
#include "trireme/compression/power_sgd.hpp"
#include "trireme/compression/top_k.hpp"
