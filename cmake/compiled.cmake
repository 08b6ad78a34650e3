# trireme::compiled: the same headers, with their bodies in a library (docs/adr/0015). A program that links it is compiled
# with TRIREME_COMPILED, and takes the bodies from there. trireme::compiled_mpi is the same for comm/mpi.hpp, and
# trireme::compiled_torch for interop::data_parallel.

file(GLOB TRIREME_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp)
list(FILTER TRIREME_SOURCES EXCLUDE REGEX "/trireme\\.cpp$")  # all of them in one, for builds without CMake

# A tenth of g++'s time would go into collecting garbage that fits into memory.
set(TRIREME_LESS_GARBAGE "")
if(TRIREME_QUICK_PROGRAMS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TRIREME_LESS_GARBAGE --param=ggc-min-expand=200 --param=ggc-min-heapsize=524288)
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

  # The bodies that need MPI or LibTorch, apart, since each MPI and each LibTorch needs its own.
  set(mpi_source communicator.cpp)
  set(torch_source data_parallel.cpp)
  foreach(other IN ITEMS mpi torch)
    if(TARGET trireme::${other})
      set(library trireme_compiled_${other})
      add_library(${library} STATIC ${CMAKE_CURRENT_SOURCE_DIR}/src/${other}/${${other}_source})
      add_library(trireme::compiled_${other} ALIAS ${library})
      target_link_libraries(${library} PUBLIC trireme_compiled trireme_${other})
      string(TOUPPER TRIREME_COMPILED_${other} definition)
      target_compile_definitions(${library} PUBLIC ${definition})
      trireme_compile_once(${library})
      set_target_properties(${library} PROPERTIES EXPORT_NAME compiled_${other})
      if(NOT TRIREME_COMPILED)
        set_target_properties(${library} PROPERTIES EXCLUDE_FROM_ALL TRUE)
      endif()
    endif()
  endforeach()
endif()
