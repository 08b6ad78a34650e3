# trireme::compiled: the same headers, with their bodies in a library (docs/adr/0015). A program that links it is compiled
# with TRIREME_COMPILED, and takes the bodies from there. trireme::compiled_mpi is the same for comm/mpi.hpp.

file(GLOB TRIREME_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp)
list(FILTER TRIREME_SOURCES EXCLUDE REGEX "/trireme\\.cpp$")  # all of them in one, for builds without CMake

# A tenth of g++'s time would go into collecting garbage that fits into memory.
set(TRIREME_LESS_GARBAGE "")
if(TRIREME_QUICK_PROGRAMS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TRIREME_LESS_GARBAGE "SHELL:--param ggc-min-expand=200" "SHELL:--param ggc-min-heapsize=524288")
endif()

# trireme_compile_once(target flags...): how the bodies of headers are compiled into a library.
function(trireme_compile_once target)
  # Kernels without optimisation are of no use to anybody, and the library is compiled once.
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CXX_FLAGS MATCHES "-O0|-fsanitize")
    target_compile_options(${target} PRIVATE -O2)
  endif()
  target_compile_options(${target} PRIVATE ${ARGN} ${TRIREME_LESS_GARBAGE})
  # Its files are as large as a compiler's memory likes them, also where CMAKE_UNITY_BUILD asks for one of all.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
endfunction()

# trireme_compiled_library(target flags...): the library, for programs that are compiled with these flags.
function(trireme_compiled_library target)
  add_library(${target} STATIC ${TRIREME_SOURCES})
  target_link_libraries(${target} PUBLIC trireme)
  target_compile_definitions(${target} PUBLIC TRIREME_COMPILED)
  trireme_compile_once(${target} ${ARGN})
endfunction()

if(TRIREME_COMPILED OR (TRIREME_COMPILED_PROGRAMS AND
                        (TRIREME_BUILD_TESTS OR TRIREME_BUILD_EXAMPLES OR TRIREME_BUILD_BENCHMARKS)))
  trireme_compiled_library(trireme_compiled)
  add_library(trireme::compiled ALIAS trireme_compiled)
  set_target_properties(trireme_compiled PROPERTIES EXPORT_NAME compiled)
  if(NOT TRIREME_COMPILED)
    set_target_properties(trireme_compiled PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()

  # The bodies that need MPI, apart, since each MPI needs its own.
  if(TARGET trireme::mpi)
    add_library(trireme_compiled_mpi STATIC ${CMAKE_CURRENT_SOURCE_DIR}/src/mpi/communicator.cpp)
    add_library(trireme::compiled_mpi ALIAS trireme_compiled_mpi)
    target_link_libraries(trireme_compiled_mpi PUBLIC trireme_compiled trireme_mpi)
    target_compile_definitions(trireme_compiled_mpi PUBLIC TRIREME_COMPILED_MPI)
    trireme_compile_once(trireme_compiled_mpi)
    set_target_properties(trireme_compiled_mpi PROPERTIES EXPORT_NAME compiled_mpi)
    if(NOT TRIREME_COMPILED)
      set_target_properties(trireme_compiled_mpi PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
  endif()
endif()
