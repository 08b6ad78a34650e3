# tests/fail/<room>/<rule>_fail.cpp must be refused by every compiler found, with exactly one error, which holds the
# sentence of its line `// expected-error: sentence`; its twin <rule>_clean.cpp must compile.
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

file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/fail fail/*/*_fail.cpp)
foreach(source IN LISTS sources)
  string(REGEX REPLACE "_fail\\.cpp$" "" rule ${source})
  string(REPLACE "/" "." name ${rule})
  trireme_directives(only compilers ${CMAKE_CURRENT_SOURCE_DIR}/fail/${source})
  foreach(compiler IN LISTS compilers)
    cmake_path(GET compiler FILENAME program)
    if(only AND program MATCHES "nvcc" AND NOT only MATCHES "nvcc")
      continue()
    endif()
    trireme_add_test(fail.${name}.${program} TIMEOUT 300 LABELS fail
      COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/fail/must_not_compile.sh ${compiler}
              ${CMAKE_CURRENT_SOURCE_DIR}/fail/${rule} ${pair_flags})
  endforeach()
endforeach()
