import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class TriremeConan(ConanFile):
    name = "trireme"
    description = "A header-only C++20 toolkit for distributed training, configured at compile time"
    license = "Apache-2.0"
    topics = ("deep-learning", "distributed-training", "mpi", "header-only")
    package_type = "static-library"  # a header library unless `compiled`: see package_id()
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "compiled": [True, False],  # whether the package has trireme::compiled
        "cuda": [True, False],  # whether nvcc must be there, for trireme::cuda; the package is the same
        "pcre2": [True, False],  # whether PCRE2 and utf8proc are required, for tokenizers with any Split expression
        "torch": [True, False],  # whether LibTorch must be there, for trireme::torch; the package is the same
    }
    default_options = {"compiled": False, "cuda": False, "pcre2": False, "torch": False}
    no_copy_source = True

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._root, "include", "trireme", "version.hpp"))
        self.version = re.search(r'TRIREME_VERSION "([0-9.]+)"', header).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def export(self):
        # set_version() is asked again for the exported recipe.
        copy(self, "include/trireme/version.hpp", self._root, os.path.join(self.export_folder, "..", ".."))

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        if self.options.pcre2:
            for library in ("pcre2/[>=10.40 <11]", "utf8proc/[>=2.7 <3]"):
                self.requires(library, transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_BENCHMARKS", "MPI"):
            toolchain.cache_variables[f"TRIREME_{option}"] = False
        toolchain.cache_variables["TRIREME_COMPILED"] = bool(self.options.compiled)
        toolchain.cache_variables["TRIREME_CUDA"] = "ON" if self.options.cuda else "OFF"
        toolchain.cache_variables["TRIREME_TORCH"] = "ON" if self.options.torch else "OFF"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        if self.options.compiled:
            cmake.build()

    def package(self):
        CMake(self).install()

    def package_id(self):
        if not self.info.options.compiled:
            self.info.clear()
        else:
            del self.info.options.cuda
            del self.info.options.torch
            del self.info.options.pcre2

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = ["lib"] if self.options.compiled else []
        # The package's own triremeConfig.cmake is the one to use.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "trireme")]
