#pragma once

// What a model is: its pass, its units, and the two kinds of models.
#include "trireme/contract/pass.hpp"
#include "trireme/contract/plain_model.hpp"
#include "trireme/contract/staged_model.hpp"
#include "trireme/contract/unit.hpp"
