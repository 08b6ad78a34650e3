# trireme_simulated_cuda: the kernels of trireme::cuda, compiled for the CPU, whose threads run in the simulator of
# tests/support/simt, and a stand-in for the CUDA runtime, NCCL, cuBLASLt and cuDNN. A program links it in place of
# trireme::cuda. It needs the headers of CUDA and NCCL, and no GPU.
if(TARGET trireme::nccl)
  # Products and sums are fused where a kernel says so, and nowhere else: by instructions, if this machine's processor has
  # them, or by functions of the C library, with which attention takes six times as long.
  set(trireme_simulator_flags -ffp-contract=off)
  if(NOT CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo processors_with_fma REGEX "^flags.* fma( |$)" LIMIT_COUNT 1)
    if(processors_with_fma)
      list(PREPEND trireme_simulator_flags -mfma)
    endif()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/simt/cuda/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|kernels\\.cpp$")
  # The kernels apart, because the tests of sanitizers bring them compiled otherwise.
  add_library(trireme_cuda_stand_in OBJECT EXCLUDE_FROM_ALL
    ${sources} ${PROJECT_SOURCE_DIR}/tests/comm/stand_in/cuda_and_nccl.cpp)
  add_library(trireme_simulated_cuda OBJECT EXCLUDE_FROM_ALL
    ${PROJECT_SOURCE_DIR}/tests/simt/cuda/attention_kernels.cpp ${PROJECT_SOURCE_DIR}/tests/simt/cuda/kernels.cpp)
  get_target_property(nccl_include NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
  foreach(library IN ITEMS trireme_cuda_stand_in trireme_simulated_cuda)
    target_include_directories(${library} SYSTEM PUBLIC ${nccl_include} ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_options(${library} PRIVATE -O1 -g1)
    target_link_libraries(${library} PUBLIC trireme::trireme)
  endforeach()
  target_compile_options(trireme_simulated_cuda PRIVATE ${trireme_simulator_flags})
  target_link_libraries(trireme_simulated_cuda PUBLIC trireme_cuda_stand_in $<TARGET_OBJECTS:trireme_cuda_stand_in>)
endif()

# trireme_simulate_source(result file): the source in CUDA's language as one that g++ compiles for the simulator; see
# tests/support/simt/cuda_source.hpp.
function(trireme_simulate_source result file)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  cmake_path(GET file PARENT_PATH folder)
  cmake_path(GET file STEM name)
  file(READ ${file} text)
  string(REGEX REPLACE "([A-Za-z_0-9]+)<<<([^>]*)>>>\\(" "simt::launch_on(\"\\1\", \\1, \\2)(" text "${text}")
  string(REGEX REPLACE "__shared__ ([A-Za-z_:0-9]+) ([A-Za-z_0-9]+)\\[([^]]+)\\];"
         "auto& \\2 = simt::shared<\\1[\\3], __COUNTER__>();" text "${text}")
  set(written ${CMAKE_CURRENT_BINARY_DIR}/simulated/${name}.cpp)
  # Relative, so that ccache finds it in every clone.
  file(RELATIVE_PATH simulator ${CMAKE_CURRENT_BINARY_DIR}/simulated
       ${PROJECT_SOURCE_DIR}/tests/support/simt/cuda_source.hpp)
  file(RELATIVE_PATH line ${PROJECT_SOURCE_DIR} ${file})
  file(CONFIGURE OUTPUT ${written} @ONLY CONTENT "#include \"${simulator}\"\n#line 1 \"${line}\"\n${text}")
  set_source_files_properties(${written} PROPERTIES INCLUDE_DIRECTORIES ${folder})
  set(${result} ${written} PARENT_SCOPE)
endfunction()
