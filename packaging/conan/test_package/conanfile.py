import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout


class TriremeTestConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    @property
    def _cuda(self):
        return bool(self.dependencies["trireme"].options.cuda)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["WITH_CUDA"] = self._cuda
        toolchain.generate()
        CMakeDeps(self).generate()  # for Eigen and fmt, where they are Conan's

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self) and not self._cuda:
            self.run(os.path.join(self.cpp.build.bindir, "consumer"), env="conanrun")
