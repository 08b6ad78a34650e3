#pragma once

#include "trireme/train/broadcast_parameters.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/compatibility.hpp"
#include "trireme/train/environment.hpp"
#include "trireme/train/kept_checkpoints.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/train/patience.hpp"
#include "trireme/train/report.hpp"
#include "trireme/train/slots.hpp"
#include "trireme/train/trainer.hpp"
