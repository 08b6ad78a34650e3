#pragma once

#include "trireme/optim/adamw.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/optim/sgd.hpp"
