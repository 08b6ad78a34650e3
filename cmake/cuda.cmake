# What trireme::cuda and trireme::nccl need, in this tree and, installed beside the package, in a consumer's: the kernels
# as the library trireme::cuda_kernels, compiled once by nvcc, and NCCL as NCCL::nccl. nvcc is called as it is, so that
# a project need not enable CUDA as a language.

set(TRIREME_CUDA_FLAGS "-O2;-gencode;arch=compute_75,code=compute_75;-gencode;arch=compute_90,code=sm_90" CACHE STRING
    "How nvcc compiles the kernels: for Hopper, and in a form that the driver of any device since Turing can compile")
mark_as_advanced(TRIREME_CUDA_FLAGS)

# trireme_nvcc_works(result nvcc source): whether it compiles SOURCE. One that is half installed is left out with a line,
# so that it cannot fail what needs no CUDA.
function(trireme_nvcc_works result nvcc source)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/trireme_nvcc_works.cu)
  file(WRITE ${file} "${source}\n")
  execute_process(COMMAND ${nvcc} -std=c++20 ${TRIREME_CUDA_FLAGS} -c ${file} -o ${file}.o
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  get_property(said_of GLOBAL PROPERTY trireme_broken_nvcc)
  if(status EQUAL 0)
    set(${result} TRUE PARENT_SCOPE)
    return()
  elseif(NOT "${said_of}" STREQUAL "${nvcc}")
    message(STATUS "trireme: ${nvcc} does not compile a kernel, so it is left out")
    set_property(GLOBAL PROPERTY trireme_broken_nvcc ${nvcc})
  endif()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# trireme_find_cuda(include): defines trireme::cuda_kernels from the headers below INCLUDE, if there is a CUDA toolkit.
macro(trireme_find_cuda include)
  # CMake 3.25 sets a property of this target whether it has found the library or not, and CUDA 13 has it no more.
  if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit 12.1 QUIET)
  set(trireme_has_cuda FALSE)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND NOT TARGET trireme::cuda_kernels)
    trireme_nvcc_works(trireme_has_cuda ${CUDAToolkit_NVCC_EXECUTABLE}
                       "#include <cuda_runtime.h>\n__global__ void kernel() {}")
  endif()
  if(trireme_has_cuda)
    # Each file is an object of its own, so that they are compiled beside each other, and a program that computes
    # nothing on a GPU links no more than the kernels of its communicator.
    file(GLOB trireme_kernel_sources ${include}/trireme/comm/cuda_kernels.cu ${include}/trireme/ops/cuda/*.cu)
    if(NOT TARGET CUDA::cublasLt)
      message(STATUS "trireme: no cuBLASLt, so trireme::cuda has no matrix products")
      list(FILTER trireme_kernel_sources EXCLUDE REGEX "/cublas\\.cu$")
    endif()
    # Paths of what is written are relative, so that ccache finds it in every clone.
    set(trireme_kernels)
    foreach(source IN LISTS trireme_kernel_sources)
      cmake_path(GET source STEM name)
      set(object ${CMAKE_CURRENT_BINARY_DIR}/trireme_cuda/${name}.o)
      add_custom_command(OUTPUT ${object} VERBATIM COMMENT "Compiling CUDA kernels: ${name}.cu" DEPFILE ${object}.d
        COMMAND ${CMAKE_COMMAND} -E make_directory trireme_cuda
        COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 --expt-relaxed-constexpr
                -fmad=false ${TRIREME_CUDA_FLAGS} -Xcompiler -fPIC -Werror all-warnings -I${include}
                -MD -MF trireme_cuda/${name}.o.d -c ${source} -o trireme_cuda/${name}.o
        DEPENDS ${source} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
      list(APPEND trireme_kernels ${object})
    endforeach()
    # Attention by cuDNN, opened at run time: without the headers of cuDNN and its frontend it takes nothing.
    find_path(TRIREME_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(TRIREME_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h)
    mark_as_advanced(TRIREME_CUDNN_INCLUDE TRIREME_CUDNN_FRONTEND_INCLUDE)
    add_library(trireme_cuda_kernels STATIC EXCLUDE_FROM_ALL ${trireme_kernels} ${include}/trireme/ops/cuda/cudnn.cpp)
    target_compile_features(trireme_cuda_kernels PRIVATE cxx_std_20)
    target_include_directories(trireme_cuda_kernels PRIVATE ${include})
    target_include_directories(trireme_cuda_kernels SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    if(TRIREME_CUDNN_INCLUDE AND TRIREME_CUDNN_FRONTEND_INCLUDE)
      target_include_directories(trireme_cuda_kernels SYSTEM PRIVATE
        ${TRIREME_CUDNN_INCLUDE} ${TRIREME_CUDNN_FRONTEND_INCLUDE})
    endif()
    target_link_libraries(trireme_cuda_kernels PUBLIC CUDA::cudart ${CMAKE_DL_LIBS})
    set_target_properties(trireme_cuda_kernels PROPERTIES LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON)
    set_source_files_properties(${trireme_kernels} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    if(TARGET CUDA::cublasLt)
      target_link_libraries(trireme_cuda_kernels PUBLIC CUDA::cublasLt)
    endif()
    # Imported, so that a package names it and its consumer makes its own.
    add_library(trireme::cuda_kernels INTERFACE IMPORTED GLOBAL)
    target_link_libraries(trireme::cuda_kernels INTERFACE trireme_cuda_kernels)
  endif()
endmacro()

# trireme_find_nccl(): defines NCCL::nccl if NCCL is there.
macro(trireme_find_nccl)
  if(TARGET trireme::cuda_kernels AND NOT TARGET NCCL::nccl)
    find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(TRIREME_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
    mark_as_advanced(TRIREME_NCCL_INCLUDE TRIREME_NCCL_LIBRARY)
    if(TRIREME_NCCL_INCLUDE AND TRIREME_NCCL_LIBRARY)
      try_compile(trireme_nccl_works
        SOURCE_FROM_CONTENT nccl.cpp "#include <nccl.h>\nint main() { int version; ncclGetVersion(&version); }\n"
        NO_CACHE CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${TRIREME_NCCL_INCLUDE};${CUDAToolkit_INCLUDE_DIRS}"
        LINK_LIBRARIES ${TRIREME_NCCL_LIBRARY})
      if(NOT trireme_nccl_works)
        message(STATUS "trireme: a program with ${TRIREME_NCCL_LIBRARY} does not compile or link, so NCCL is left out")
      endif()
    endif()
    if(TRIREME_NCCL_INCLUDE AND TRIREME_NCCL_LIBRARY AND trireme_nccl_works)
      add_library(NCCL::nccl UNKNOWN IMPORTED GLOBAL)
      set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${TRIREME_NCCL_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${TRIREME_NCCL_INCLUDE})
    endif()
  endif()
endmacro()
