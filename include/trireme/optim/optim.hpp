#pragma once

#include "trireme/optim/adafactor.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/any.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/optim/lamb.hpp"
#include "trireme/optim/muon.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/optim/sgd.hpp"
