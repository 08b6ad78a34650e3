#pragma once

#include "../train/shelf.hpp"
