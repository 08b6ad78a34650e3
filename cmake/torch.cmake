# trireme_find_torch(): LibTorch for the CPU as the target trireme::libtorch: Debian's libtorch-dev, an unpacked
# libtorch, or the wheel of PyTorch (TRIREME_TORCH_ROOT: the folder that has include/ and lib/; for a wheel
# `python3 -c "import torch; print(torch.__path__[0])"`). Without it CMAKE_PREFIX_PATH and the system are searched.
#
# Where the project that this one is a part of has found its own, find_package(Torch), that is taken.
#
# Their own TorchConfig.cmake is not read here: that of a wheel for CUDA ends the configuration where CUDA is not
# installed. The target is made only if a program compiles and links here and now; as C++20 Debian's 1.13 does with
# g++, and not with clang 14.
function(trireme_find_torch)
  if(TARGET trireme::libtorch)
    return()
  endif()
  if(Torch_FOUND AND TARGET torch)
    # Two versions of one library in a program are two of everything.
    trireme_torch_works(works torch)
    if(works)
      add_library(trireme::libtorch INTERFACE IMPORTED GLOBAL)
      target_link_libraries(trireme::libtorch INTERFACE torch)
      get_target_property(folders torch INTERFACE_INCLUDE_DIRECTORIES)
      trireme_torch_fmt(${folders})
    else()
      message(STATUS "trireme: a program with the LibTorch that this project has found (${Torch_DIR}) does not compile "
                     "or link as C++20, so trireme::torch and what needs it are left out")
    endif()
    return()
  endif()
  set(TRIREME_TORCH_ROOT "" CACHE PATH "Folder of LibTorch, with include/ and lib/ (empty: where CMake looks)")
  set(header torch/csrc/api/include/torch/torch.h)
  if(TRIREME_TORCH_ROOT AND NOT EXISTS "${TRIREME_TORCH_ROOT}/include/${header}")
    message(FATAL_ERROR "trireme: TRIREME_TORCH_ROOT is \"${TRIREME_TORCH_ROOT}\", which has no include/${header}; name "
                        "the folder of LibTorch that has include/ and lib/, or leave it out")
  endif()
  set(hints ${TRIREME_TORCH_ROOT})
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)  # as torch.utils.cmake_prefix_path has it
    list(APPEND hints ${prefix} ${prefix}/../..)
  endforeach()
  if(DEFINED CACHE{TRIREME_TORCH_FOUND_FOR} AND NOT TRIREME_TORCH_FOUND_FOR STREQUAL "${hints}")
    unset(TRIREME_TORCH_INCLUDE CACHE)
    unset(TRIREME_TORCH_CPU_LIBRARY CACHE)
    unset(TRIREME_TORCH_C10_LIBRARY CACHE)
    unset(TRIREME_TORCH_WORKS CACHE)
  endif()
  find_path(TRIREME_TORCH_INCLUDE ${header} HINTS ${hints} PATH_SUFFIXES include)
  find_library(TRIREME_TORCH_CPU_LIBRARY torch_cpu HINTS ${hints} PATH_SUFFIXES lib)
  find_library(TRIREME_TORCH_C10_LIBRARY c10 HINTS ${hints} PATH_SUFFIXES lib)
  mark_as_advanced(TRIREME_TORCH_INCLUDE TRIREME_TORCH_CPU_LIBRARY TRIREME_TORCH_C10_LIBRARY)
  if(NOT EXISTS "${TRIREME_TORCH_INCLUDE}/${header}" OR
     NOT EXISTS "${TRIREME_TORCH_CPU_LIBRARY}" OR NOT EXISTS "${TRIREME_TORCH_C10_LIBRARY}")
    message(STATUS "trireme: LibTorch is not here, so trireme::torch and what needs it are left out")
    return()
  endif()
  set(folders ${TRIREME_TORCH_INCLUDE} ${TRIREME_TORCH_INCLUDE}/torch/csrc/api/include)
  # A wheel's libraries need those of CUDA; the linker finds them as the program will, by the run path that the wheel
  # has in them or by LD_LIBRARY_PATH. No linker flag is passed on: it would also hide what a program's own libraries lack.
  set(libraries ${TRIREME_TORCH_CPU_LIBRARY} ${TRIREME_TORCH_C10_LIBRARY})
  if(NOT DEFINED CACHE{TRIREME_TORCH_WORKS})
    trireme_torch_works(works "${libraries}" ${folders})
    if(works)  # what failed may be mended before the next time
      set(TRIREME_TORCH_WORKS TRUE CACHE INTERNAL "")
    endif()
    set(TRIREME_TORCH_FOUND_FOR "${hints}" CACHE INTERNAL "")
  endif()
  if(NOT TRIREME_TORCH_WORKS)
    message(STATUS "trireme: a program with ${TRIREME_TORCH_CPU_LIBRARY} does not compile or link, so trireme::torch "
                   "and what needs it are left out (a LibTorch for CUDA needs CUDA's libraries: LD_LIBRARY_PATH may name "
                   "their folder, and CMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined links without them)")
    return()
  endif()
  list(REMOVE_ITEM folders /usr/include)  # where the compiler looks anyway; named again, it breaks #include_next
  add_library(trireme::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(trireme::libtorch SYSTEM INTERFACE ${folders})
  target_link_libraries(trireme::libtorch INTERFACE ${libraries})
  trireme_torch_fmt(${TRIREME_TORCH_INCLUDE})
endfunction()

# trireme_torch_works(variable libraries folders...): whether a program with this LibTorch compiles and links.
function(trireme_torch_works variable libraries)
  # A compiler may refuse the header of lists; a function with a string does not link if LibTorch has the old ABI.
  set(program "#include <ATen/Version.h>\n#include <ATen/core/List.h>\n")
  string(APPEND program "int main() { return at::show_config().empty(); }\n")
  try_compile(works SOURCE_FROM_VAR torch.cpp program NO_CACHE
              CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${ARGN}" LINK_LIBRARIES ${libraries} CXX_STANDARD 20
              CXX_STANDARD_REQUIRED TRUE)
  set(${variable} ${works} PARENT_SCOPE)
endfunction()

# trireme_torch_fmt(folders...): LibTorch may have an fmt of its own before that of the system, whose library does not
# fit then.
function(trireme_torch_fmt)
  foreach(folder IN LISTS ARGN)
    if(EXISTS ${folder}/fmt/core.h AND NOT folder STREQUAL "/usr/include")
      target_compile_definitions(trireme::libtorch INTERFACE FMT_HEADER_ONLY=1)
    endif()
  endforeach()
endfunction()
