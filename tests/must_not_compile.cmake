# tests/fail/<room>/<rule>_fail.cpp must be refused by every compiler found, with exactly one error, which holds the
# sentence of its line `// expected-error: sentence`; its twin <rule>_clean.cpp must compile (with the others of its
# room).
# A pair that needs Eigen says `// test-compilers: g++ clang++`, which leaves nvcc out.
set(compilers ${CMAKE_CXX_COMPILER})
foreach(other IN ITEMS ${TRIREME_CLANG} ${TRIREME_NVCC})
  if(other)
    list(APPEND compilers ${other})
  endif()
endforeach()
list(REMOVE_DUPLICATES compilers)
set(pair_flags ${include_flags})
if(TRIREME_COMPILED_PROGRAMS)  # sentences stand in declarations; what is not parsed takes no time
  list(APPEND pair_flags -DTRIREME_COMPILED)
endif()


# g++ and clang++ read the library once for all of them.
set(folder ${CMAKE_CURRENT_BINARY_DIR}/fail)
file(CONFIGURE OUTPUT ${folder}/read.hpp CONTENT "#include <trireme/trireme.hpp>\n" @ONLY)
foreach(compiler IN LISTS compilers)
  cmake_path(GET compiler FILENAME program)
  set(read ${folder}/${program})
  if(program MATCHES "clang")
    set(flags_${program} ${pair_flags} -include-pch ${read}.pch)
    string(APPEND read .pch)
  elseif(NOT program MATCHES "nvcc")
    file(COPY_FILE ${folder}/read.hpp ${read}.hpp ONLY_IF_DIFFERENT)
    set(flags_${program} ${pair_flags} ${TRIREME_LESS_GARBAGE} -include ${read}.hpp)
    string(APPEND read .hpp.gch)
  else()
    set(flags_${program} ${pair_flags})
    continue()
  endif()
  trireme_add_test(fail.read.${program} TIMEOUT 300 LABELS fail PROPERTIES FIXTURES_SETUP read_${program}
    COMMAND ${compiler} -std=c++20 ${pair_flags} -DFMT_HEADER_ONLY=1 -x c++-header ${folder}/read.hpp -o ${read})
endforeach()

# trireme_add_fail_test(name what compiler...): the same with every compiler.
function(trireme_add_fail_test name what)
  foreach(compiler IN LISTS ARGN)
    cmake_path(GET compiler FILENAME program)
    set(fixture read_${program})
    set(unless "")
    cmake_path(GET what PARENT_PATH room)
    cmake_path(GET room FILENAME room)
    if(TRIREME_UNITED_TESTS AND NOT IS_DIRECTORY ${what})
      set(fixture refused_${room}_${program})
      set(unless --unless ${folder}/${room}.${program}.refused)
    endif()
    trireme_add_test(fail.${name}.${program} TIMEOUT 300 LABELS fail PROPERTIES FIXTURES_REQUIRED ${fixture}
      COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/fail/must_not_compile.sh ${unless} ${compiler} ${what}
              ${flags_${program}})
  endforeach()
endfunction()

# Where tests are compiled several at a time, so are the rules of a room: fail.ROOM.together.COMPILER. The tests of the
# rules look themselves up in its list, and compile only what it has not.
file(GLOB rooms LIST_DIRECTORIES TRUE CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fail/*)
foreach(room IN LISTS rooms)
  if(NOT IS_DIRECTORY ${room})
    continue()
  endif()
  cmake_path(GET room FILENAME name)
  trireme_add_fail_test(${name}.clean_twins ${room} ${compilers})
  if(TRIREME_UNITED_TESTS)
    foreach(compiler IN LISTS compilers)
      cmake_path(GET compiler FILENAME program)
      trireme_add_test(fail.${name}.together.${program} TIMEOUT 300 LABELS fail
        PROPERTIES FIXTURES_REQUIRED read_${program} FIXTURES_SETUP refused_${name}_${program}
        COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/fail/must_not_compile.sh
                --together ${folder}/${name}.${program}.refused ${compiler} ${room} ${flags_${program}})
    endforeach()
  endif()
endforeach()

file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/fail fail/*/*_fail.cpp)
foreach(source IN LISTS sources)
  string(REGEX REPLACE "_fail\\.cpp$" "" rule ${source})
  string(REPLACE "/" "." name ${rule})
  set(asked ${compilers})
  trireme_directives(only compilers ${CMAKE_CURRENT_SOURCE_DIR}/fail/${source})
  if(only AND NOT only MATCHES "nvcc")
    list(FILTER asked EXCLUDE REGEX "nvcc$")
  endif()
  trireme_add_fail_test(${name} ${CMAKE_CURRENT_SOURCE_DIR}/fail/${rule} ${asked})
endforeach()

# LibTorch's mistakes are one unit, because reading it takes most of the time.
if(TARGET trireme::torch)
  set(torch_flags ${pair_flags})
  get_target_property(folders trireme::libtorch INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder IN LISTS folders)
    if(NOT folder STREQUAL "/usr/include")
      list(APPEND torch_flags -isystem ${folder})
    endif()
  endforeach()
  trireme_add_test(fail.torch TIMEOUT 120 LABELS "fail;torch"
    COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/torch/refused.sh ${CMAKE_CXX_COMPILER} ${torch_flags})
endif()
