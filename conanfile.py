import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import load

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
        "system_eigen": [True, False],  # whether Eigen is that of the system, and not required of Conan
        "system_fmt": [True, False],  # the same for fmt
        "torch": [True, False],  # whether LibTorch must be there, for trireme::torch; the package is the same
        "utf8proc": [True, False],  # whether utf8proc is required, for trireme::utf8proc
        "zlib": [True, False],  # whether zlib is required, for trireme::zlib
    }
    default_options = {name: False for name in options}
    exports = "include/trireme/version.hpp"  # set_version() is asked again for the exported recipe
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*"
    no_copy_source = True
    test_package_folder = "packaging/conan/test_package"

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include", "trireme", "version.hpp"))
        self.version = re.search(r'TRIREME_VERSION "([0-9.]+)"', header).group(1)

    def layout(self):
        cmake_layout(self)

    def _required(self):
        """The names of the packages that are required, with their versions."""
        if not self.options.system_eigen:
            yield "eigen", "[>=3.4.0 <4]"
        if not self.options.system_fmt:
            yield "fmt", "[>=9 <13]"
        if self.options.pcre2:
            yield "pcre2", "[>=10.40 <11]"
        if self.options.pcre2 or self.options.utf8proc:
            yield "utf8proc", "[>=2.7 <3]"
        if self.options.zlib:
            yield "zlib", "[>=1.2.11 <2]"

    def requirements(self):
        for library, versions in self._required():
            self.requires(f"{library}/{versions}", transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False  # nothing is written into the sources
        for option in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_BENCHMARKS", "MPI"):
            toolchain.cache_variables[f"TRIREME_{option}"] = False
        toolchain.cache_variables["TRIREME_COMPILED"] = bool(self.options.compiled)
        toolchain.cache_variables["TRIREME_CUDA"] = "ON" if self.options.cuda else "OFF"
        toolchain.cache_variables["TRIREME_TORCH"] = "ON" if self.options.torch else "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

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
            for option in ("cuda", "pcre2", "torch", "utf8proc", "zlib"):
                delattr(self.info.options, option)

    def package_info(self):
        # For CMake the package's own triremeConfig.cmake is the one to use: it also makes the targets of what is not
        # Conan's, such as MPI and CUDA. Other generators (PkgConfigDeps, MesonDeps) read the components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        required = [library for library, _ in self._required()]

        def component(name, target, requires=("core",)):
            it = self.cpp_info.components[name]
            it.set_property("cmake_target_name", f"trireme::{target}")
            it.set_property("pkg_config_name", "trireme" if name == "core" else f"trireme-{name}")
            it.requires = list(requires)
            it.bindirs = []
            it.libdirs = []
            return it

        core = component("core", "trireme", [f"{each}::{each}" for each in ("eigen", "fmt") if each in required])
        core.builddirs = [os.path.join("share", "cmake", "trireme")]
        core.system_libs = ["pthread"] + (["fmt"] if self.options.system_fmt else [])
        component("mpi", "mpi").defines = ["OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX"]
        component("cuda", "cuda")
        component("nccl", "nccl", ["cuda"])
        component("torch", "torch")
        for name in ("sentencepiece", "hdf5", "pictures"):
            component(name, name)
        component("utf8proc", "utf8proc",
                  ["core"] + [f"{each}::{each}" for each in ("utf8proc", "pcre2") if each in required])
        component("zlib", "zlib", ["core"] + (["zlib::zlib"] if "zlib" in required else []))
        if "pcre2" in required:
            self.cpp_info.components["utf8proc"].defines = ["TRIREME_PCRE2"]
        if self.options.compiled:
            compiled = component("compiled", "compiled")
            compiled.libdirs = ["lib"]
            compiled.libs = ["trireme_compiled"]
            compiled.defines = ["TRIREME_COMPILED"]
