#pragma once

#include "trireme/compression/by_name.hpp"
#include "trireme/compression/by_size.hpp"
#include "trireme/compression/cast.hpp"
#include "trireme/compression/error_feedback.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/compression/one_of.hpp"
#include "trireme/compression/power_sgd.hpp"
#include "trireme/compression/quantise.hpp"
#include "trireme/compression/random_k.hpp"
#include "trireme/compression/sign.hpp"
#include "trireme/compression/top_k.hpp"
#include "trireme/compression/top_k_sampled.hpp"
