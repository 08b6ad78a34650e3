#pragma once

/// The only definition of the version; CMake, Conan and vcpkg read it from here.
#define TRIREME_VERSION_MAJOR 0
#define TRIREME_VERSION_MINOR 1
#define TRIREME_VERSION_PATCH 0
#define TRIREME_VERSION "0.1.0"
