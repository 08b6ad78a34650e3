#pragma once

#include "trireme/compression/cast.hpp"
#include "trireme/compression/error_feedback.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/compression/top_k.hpp"
