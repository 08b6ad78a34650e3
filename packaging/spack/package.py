try:  # Spack 1.0 and later
    from spack_repo.builtin.build_systems.cmake import CMakePackage
except ImportError:  # earlier, spack.package has it
    pass
from spack.package import *


class Trireme(CMakePackage):
    """A header-only C++20 toolkit for distributed training, configured at compile time."""

    license("Apache-2.0", checked_by="Trireme maintainers")

    # There is no archive of a release yet: `spack develop --path <checkout> trireme@0.1.0` names the sources.
    version("0.1.0")

    variant("compiled", default=False, description="A library with the bodies of the headers (trireme::compiled)")
    variant("mpi", default=True, description="The MPI communicator (trireme::mpi)")
    variant("cuda", default=False, description="The CUDA toolkit (trireme::cuda; its kernels are compiled where used)")
    variant("nccl", default=False, when="+cuda", description="NCCL (trireme::nccl)")
    variant("torch", default=False, description="LibTorch modules (trireme::torch)")
    variant("utf8proc", default=False, description="Tokenizers in Hugging Face's files (trireme::utf8proc)")
    variant("pcre2", default=False, when="+utf8proc", description="Tokenizers with any Split expression")
    variant("sentencepiece", default=False, description="Tokenizers in sentencepiece's files (trireme::sentencepiece)")
    variant("zlib", default=False, description="Compressed members of .npz files (trireme::zlib)")
    variant("hdf5", default=False, description="Samples in HDF5 files (trireme::hdf5)")
    variant("pictures", default=False, description="Samples in PNG and JPEG files (trireme::pictures)")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    # Headers need them where they are used, so they are dependencies of linking although nothing is linked here.
    depends_on("eigen@3.4:3", type=("build", "link"))
    depends_on("fmt@9:", type=("build", "link"))
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12.1:", when="+cuda")
    depends_on("nccl", when="+nccl")
    depends_on("py-torch", when="+torch")
    depends_on("utf8proc", when="+utf8proc")
    depends_on("pcre2", when="+pcre2")
    depends_on("sentencepiece", when="+sentencepiece")
    depends_on("zlib-api", when="+zlib")
    depends_on("hdf5", when="+hdf5")
    depends_on("libpng", when="+pictures")
    depends_on("jpeg", when="+pictures")

    conflicts("%gcc@:11", msg="trireme needs g++ 12 or later")
    conflicts("%clang@:13", msg="trireme needs clang++ 14 or later")
    conflicts("platform=darwin", msg="trireme was tried on Linux only")
    conflicts("platform=windows", msg="trireme was tried on Linux only")

    def cmake_args(self):
        options = ("compiled", "mpi", "cuda", "torch", "utf8proc", "pcre2", "sentencepiece", "zlib", "hdf5",
                   "pictures")
        args = [self.define(f"TRIREME_BUILD_{each}", False) for each in ("TESTS", "EXAMPLES", "BENCHMARKS")]
        args += [self.define(f"TRIREME_{each.upper()}", self.spec.satisfies(f"+{each}")) for each in options]
        if self.spec.satisfies("+torch"):  # its files of CMake are in torch/share/cmake
            files = self.spec["py-torch"].package.cmake_prefix_paths[0]
            args.append(self.define("TRIREME_TORCH_ROOT", ancestor(files, 2)))
        return args
