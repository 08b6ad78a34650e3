# What tests, examples and benchmarks have in common. Nothing here reaches a program that uses the library.

include(${CMAKE_CURRENT_LIST_DIR}/peers.cmake)

add_library(trireme_warnings INTERFACE)
target_compile_options(trireme_warnings INTERFACE -Wall -Wextra
  # Judged from inlined code of other libraries, and often wrong in GCC 12: shown, never an error.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized -Wno-error=array-bounds -Wno-error=stringop-overflow
                           -Wno-error=stringop-overread -Wno-error=restrict>)

target_compile_options(trireme_warnings INTERFACE ${TRIREME_LESS_GARBAGE})

# Environment of every program run by ctest. Ranks usually outnumber the cores of a test machine. Open MPI 5 starts its
# ranks by PRRTE, which has variables of its own, and knows vader as another name of sm.
set(TRIREME_RUN_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm=isolated
  TRIREME_SOURCE_DIR=${PROJECT_SOURCE_DIR} TRIREME_BINARY_DIR=${PROJECT_BINARY_DIR})

# trireme_includes(result file headers): whether a source includes one of some headers, a regular expression.
function(trireme_includes result file headers)
  file(STRINGS ${file} lines REGEX "^ *#include [\"<](${headers})[\">]")
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  if(lines)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# trireme_reads_all(result file): whether a source includes trireme.hpp, or a header of its own that does.
function(trireme_reads_all result file)
  set(files ${file})
  set(at 0)
  list(LENGTH files count)
  set(found FALSE)
  while(at LESS count AND NOT found)
    list(GET files ${at} next)
    trireme_includes(found ${next} "trireme/trireme\\.hpp")
    cmake_path(GET next PARENT_PATH folder)
    file(STRINGS ${next} lines REGEX "^#include \"[^\"]+\\.hpp\"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" header ${line})
      cmake_path(ABSOLUTE_PATH header BASE_DIRECTORY ${folder} NORMALIZE)
      if(EXISTS ${header} AND NOT header IN_LIST files)
        list(APPEND files ${header})
      endif()
    endforeach()
    list(LENGTH files count)
    math(EXPR at "${at} + 1")
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# trireme_uses_LIBRARY(result file): whether a source asks for the MPI communicator, for LibTorch, for a library of
# tokenizers, for zlib, for HDF5, or for the libraries of pictures.
macro(trireme_uses_mpi result file)
  trireme_includes(${result} ${file} "trireme/comm/mpi\\.hpp|mpi\\.h")
endmacro()
macro(trireme_uses_torch result file)
  trireme_includes(${result} ${file} "trireme/interop/torch[a-z_]*\\.hpp|torch/[a-z_]+\\.h")
endmacro()
macro(trireme_uses_utf8proc result file)
  trireme_includes(${result} ${file} "trireme/formats/tokenizer\\.hpp|utf8proc\\.h")
endmacro()
macro(trireme_uses_sentencepiece result file)
  trireme_includes(${result} ${file} "trireme/formats/sentencepiece\\.hpp|sentencepiece_processor\\.h")
endmacro()
macro(trireme_uses_zlib result file)
  trireme_includes(${result} ${file} "trireme/formats/(inflate|gzip)\\.hpp|zlib\\.h")
endmacro()
macro(trireme_uses_hdf5 result file)
  trireme_includes(${result} ${file} "trireme/data/hdf5\\.hpp|hdf5\\.h")
endmacro()
macro(trireme_uses_pictures result file)
  trireme_includes(${result} ${file} "trireme/data/picture_folders\\.hpp|trireme/formats/picture\\.hpp|png\\.h")
endmacro()

# trireme_directives(result key file): the values of the lines `// test-KEY: value` of a source, or `# test-KEY: value` of
# a script.
function(trireme_directives result key file)
  file(STRINGS ${file} lines REGEX "^(//|#) test-${key}:")
  list(TRANSFORM lines REPLACE "^(//|#) test-${key}: *" "")
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

# Where programs are compiled for use by tests, lld links them, if it is there, in a seventh of the time of GNU ld.
if(PROJECT_IS_TOP_LEVEL AND TRIREME_QUICK_PROGRAMS)
  find_program(TRIREME_LLD ld.lld)
  mark_as_advanced(TRIREME_LLD)
  if(TRIREME_LLD)
    include(CheckLinkerFlag)
    check_linker_flag(CXX -fuse-ld=lld TRIREME_LINKS_BY_LLD)
    if(TRIREME_LINKS_BY_LLD)
      add_link_options(-fuse-ld=lld)
    endif()
  endif()
endif()

# What programs of this project link: the library, or the headers alone.
set(TRIREME_LIBRARY trireme::trireme)
set(TRIREME_MPI_LIBRARY trireme_mpi)
set(TRIREME_TORCH_LIBRARY trireme_torch)
if(TRIREME_COMPILED_PROGRAMS)
  set(TRIREME_LIBRARY trireme::compiled)
  if(TARGET trireme_compiled_mpi)
    set(TRIREME_MPI_LIBRARY trireme_compiled_mpi)
  endif()
  if(TARGET trireme_compiled_torch)
    set(TRIREME_TORCH_LIBRARY trireme_compiled_torch)
  endif()
endif()

# trireme_program(target file [library]): an executable of one source; one that needs MPI, LibTorch, utf8proc,
# sentencepiece, zlib, HDF5 or the libraries of pictures is left out where there is none.
function(trireme_program target file)
  set(library ${TRIREME_LIBRARY})
  set(mpi_library ${TRIREME_MPI_LIBRARY})
  set(torch_library ${TRIREME_TORCH_LIBRARY})
  if(ARGC GREATER 2)
    set(library ${ARGV2})
    set(mpi_library trireme_mpi)
    set(torch_library trireme_torch)
  endif()
  trireme_uses_mpi(mpi ${file})
  if(mpi AND NOT TARGET trireme::mpi)
    message(VERBOSE "trireme: ${target} needs MPI and is left out")
    return()
  endif()
  trireme_uses_torch(torch ${file})
  if(torch AND NOT TARGET trireme::torch)
    message(VERBOSE "trireme: ${target} needs LibTorch and is left out")
    return()
  endif()
  trireme_uses_utf8proc(utf8proc ${file})
  if(utf8proc AND NOT TARGET trireme::utf8proc)
    message(VERBOSE "trireme: ${target} needs utf8proc and is left out")
    return()
  endif()
  trireme_uses_sentencepiece(sentencepiece ${file})
  if(sentencepiece AND NOT TARGET trireme::sentencepiece)
    message(VERBOSE "trireme: ${target} needs sentencepiece and is left out")
    return()
  endif()
  trireme_uses_zlib(zlib ${file})
  if(zlib AND NOT TARGET trireme::zlib)
    message(VERBOSE "trireme: ${target} needs zlib and is left out")
    return()
  endif()
  trireme_uses_hdf5(hdf5 ${file})
  if(hdf5 AND NOT TARGET trireme::hdf5)
    message(VERBOSE "trireme: ${target} needs HDF5 and is left out")
    return()
  endif()
  trireme_uses_pictures(pictures ${file})
  if(pictures AND NOT TARGET trireme::pictures)
    message(VERBOSE "trireme: ${target} needs libpng and libjpeg and is left out")
    return()
  endif()
  add_executable(${target} ${file})
  target_link_libraries(${target} PRIVATE ${library} trireme_warnings $<$<BOOL:${mpi}>:${mpi_library}>
                                          $<$<BOOL:${torch}>:${torch_library}> $<$<BOOL:${utf8proc}>:trireme_utf8proc>
                                          $<$<BOOL:${sentencepiece}>:trireme_sentencepiece>
                                          $<$<BOOL:${zlib}>:trireme_zlib> $<$<BOOL:${hdf5}>:trireme_hdf5>
                                          $<$<BOOL:${pictures}>:trireme_pictures>)
endfunction()

# trireme_quick(target): a program whose kernels are in the library, and which is compiled more often than it is run. Call
# it after all other options: of several levels the last one counts.
function(trireme_quick target)
  if(TRIREME_QUICK_PROGRAMS AND TRIREME_COMPILED_PROGRAMS)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# trireme_share_headers(target header...): compiles the target with these headers already read. Call it after all
# options are set: targets of equal options share them, whatever else they link and define, for which these headers do
# not ask. (g++ would refuse them where a macro that they ask for has another value.) Write headers as in an include
# directive, those of the tests from the project's folder: with whole paths, ccache would find nothing in another clone.
function(trireme_share_headers target)
  if(NOT TRIREME_QUICK_PROGRAMS OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  get_target_property(options ${target} COMPILE_OPTIONS)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  list(FILTER libraries INCLUDE REGEX "^trireme(::trireme|::compiled|_compiled_thread|_compiled_address|_warnings)$")
  list(REMOVE_DUPLICATES libraries)
  if("${ARGN}" MATCHES "<torch/")
    list(APPEND libraries ${TRIREME_TORCH_LIBRARY})
  endif()
  if("${ARGN}" MATCHES "catch\\.hpp")
    list(APPEND libraries trireme_catch_main)
  endif()
  string(MD5 key "${options} ${libraries} ${ARGN}")
  string(SUBSTRING ${key} 0 8 key)
  if(NOT TARGET trireme_headers_${key})
    add_library(trireme_headers_${key} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/no_code.cpp)
    if(options)
      target_compile_options(trireme_headers_${key} PRIVATE ${options})
    endif()
    target_include_directories(trireme_headers_${key} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(trireme_headers_${key} PRIVATE ${libraries})
    set(CMAKE_PCH_PROLOGUE "")  # CMake's would make system headers of them, of which GCC does not warn
    target_precompile_headers(trireme_headers_${key} PRIVATE ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM trireme_headers_${key})
endfunction()
