# trireme_simulated_cuda: the kernels of trireme::cuda, compiled for the CPU, whose threads run in the simulator of
# tests/support/simt, and a stand-in for the CUDA runtime, NCCL, cuBLASLt and cuDNN. A program links it in place of
# trireme::cuda. It needs the headers of CUDA and NCCL, and no GPU.
if(TARGET trireme::nccl)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/simt/cuda/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|kernels\\.cpp$")
  # The kernels apart, because the tests of sanitizers bring them compiled otherwise.
  add_library(trireme_cuda_stand_in OBJECT EXCLUDE_FROM_ALL
    ${sources} ${PROJECT_SOURCE_DIR}/tests/comm/stand_in/cuda_and_nccl.cpp)
  add_library(trireme_simulated_cuda OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/simt/cuda/kernels.cpp)
  get_target_property(nccl_include NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
  foreach(library IN ITEMS trireme_cuda_stand_in trireme_simulated_cuda)
    target_include_directories(${library} SYSTEM PUBLIC ${nccl_include} ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_options(${library} PRIVATE -O1 -g1)
    target_link_libraries(${library} PUBLIC trireme::trireme)
  endforeach()
  target_link_libraries(trireme_simulated_cuda PUBLIC trireme_cuda_stand_in $<TARGET_OBJECTS:trireme_cuda_stand_in>)
endif()
