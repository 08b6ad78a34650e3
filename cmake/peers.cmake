# trireme_peer(name HEADER file LIBRARY name CALLS expression [PATH_SUFFIXES folder...])
# A library that tests or benchmarks compare with, as the target trireme_peer_NAME.
#
# The target is made only if a program that includes HEADER and evaluates CALLS compiles and links here and now. A
# library that is missing, half installed or broken is left out with one line. Its own CMake files are not read: they
# may end the configuration of everything else, as oneDNN's on Debian does where OpenCL's headers are missing.
function(trireme_peer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;LIBRARY;CALLS" "PATH_SUFFIXES")
  set(include TRIREME_${name}_INCLUDE)
  set(library TRIREME_${name}_LIBRARY)
  if(NOT EXISTS "${${include}}/${arg_HEADER}" OR NOT EXISTS "${${library}}")  # found once, and removed since then
    unset(${include} CACHE)
    unset(${library} CACHE)
  endif()
  find_path(${include} ${arg_HEADER} PATH_SUFFIXES ${arg_PATH_SUFFIXES})
  find_library(${library} ${arg_LIBRARY} PATH_SUFFIXES ${arg_PATH_SUFFIXES})
  mark_as_advanced(${include} ${library})
  if(NOT ${include} OR NOT ${library})
    message(STATUS "trireme: ${name} is not here and is left out")
    return()
  endif()
  try_compile(works SOURCE_FROM_CONTENT peer.cpp "#include <${arg_HEADER}>\nint main() { ${arg_CALLS}; }\n" NO_CACHE
              CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${${include}}" LINK_LIBRARIES ${${library}} Threads::Threads
              CXX_STANDARD 20 CXX_STANDARD_REQUIRED TRUE)
  if(NOT works)
    message(STATUS "trireme: a program with ${${library}} does not compile or link, so ${name} is left out")
    return()
  endif()
  add_library(trireme_peer_${name} INTERFACE)
  target_include_directories(trireme_peer_${name} SYSTEM INTERFACE ${${include}})
  target_link_libraries(trireme_peer_${name} INTERFACE ${${library}} Threads::Threads)
endfunction()
