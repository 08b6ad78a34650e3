# tests/fuzz/<name>_fuzz.cpp is the test fuzz.<name>: its corpus in tests/fuzz/corpus/<name> is replayed under the
# address and undefined behaviour sanitizers, and then so many inputs made of it as a line "// test-mutations: N" says.
# With TRIREME_FUZZERS (Clang only) there is also fuzz.<name>.search, a
# libFuzzer program that ctest does not run: fuzz.<name>.search -max_total_time=60 FOLDER tests/fuzz/corpus/<name>

option(TRIREME_FUZZERS "Also build the fuzz targets with libFuzzer" OFF)

file(GLOB fuzzers CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzzers)
  string(REGEX MATCH "^fuzz/(.+)_fuzz\\.cpp$" matched ${source})
  set(name fuzz.${CMAKE_MATCH_1})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${CMAKE_MATCH_1})
  cmake_path(ABSOLUTE_PATH source)
  trireme_program(${name} ${source} ${sanitized_library_address})
  if(NOT TARGET ${name})  # its library is not here
    continue()
  endif()
  target_sources(${name} PRIVATE fuzz/replay_main.cpp)
  trireme_sanitize(${name} address)  # by the compiler of the library that it links
  trireme_directives(mutations mutations ${source})
  if(mutations)
    set(mutations --mutations ${mutations})
  endif()
  trireme_add_test(${name} COMMAND $<TARGET_FILE:${name}> ${corpus} ${mutations} LABELS fuzz)
  if(TRIREME_FUZZERS)
    trireme_program(${name}.search ${source} trireme::trireme)  # the search is guided by all of the code
    target_compile_options(${name}.search PRIVATE ${sanitizer_flags_address} -fsanitize=fuzzer)
    target_link_options(${name}.search PRIVATE ${sanitizer_flags_address} -fsanitize=fuzzer)
  endif()
endforeach()
