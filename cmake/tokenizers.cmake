# The libraries that tokenizers ask for, each as a target that is made only if a program compiles and links here and now:
#   trireme_find_utf8proc()        trireme::libutf8proc (Debian's libutf8proc-dev)
#   trireme_find_sentencepiece()   trireme::libsentencepiece (Debian's libsentencepiece-dev)

# trireme_find_small(name header program): a library of one header.
function(trireme_find_small name header program)
  if(TARGET trireme::lib${name})
    return()
  endif()
  string(TOUPPER TRIREME_${name} variable)
  if(NOT EXISTS "${${variable}_INCLUDE}/${header}" OR NOT EXISTS "${${variable}_LIBRARY}")
    unset(${variable}_INCLUDE CACHE)
    unset(${variable}_LIBRARY CACHE)
    unset(${variable}_WORKS CACHE)
  endif()
  find_path(${variable}_INCLUDE ${header})
  find_library(${variable}_LIBRARY ${name})
  mark_as_advanced(${variable}_INCLUDE ${variable}_LIBRARY)
  if(NOT ${variable}_INCLUDE OR NOT ${variable}_LIBRARY)
    message(STATUS "trireme: ${name} is not here, so trireme::${name} and what needs it are left out")
    return()
  endif()
  if(NOT DEFINED CACHE{${variable}_WORKS})
    try_compile(works SOURCE_FROM_CONTENT ${name}.cpp "#include <${header}>\n${program}\n" NO_CACHE
                CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${${variable}_INCLUDE}"
                LINK_LIBRARIES ${${variable}_LIBRARY} CXX_STANDARD 20 CXX_STANDARD_REQUIRED TRUE)
    if(works)
      set(${variable}_WORKS TRUE CACHE INTERNAL "")
    endif()
  endif()
  if(NOT ${variable}_WORKS)
    message(STATUS "trireme: a program with ${${variable}_LIBRARY} does not compile or link, so trireme::${name} and what "
                   "needs it are left out")
    return()
  endif()
  add_library(trireme::lib${name} INTERFACE IMPORTED GLOBAL)
  if(NOT ${variable}_INCLUDE STREQUAL "/usr/include")  # where the compiler looks anyway
    target_include_directories(trireme::lib${name} SYSTEM INTERFACE ${${variable}_INCLUDE})
  endif()
  target_link_libraries(trireme::lib${name} INTERFACE ${${variable}_LIBRARY})
endfunction()

function(trireme_find_utf8proc)
  trireme_find_small(utf8proc utf8proc.h "int main() { return utf8proc_category('a') != UTF8PROC_CATEGORY_LL; }")
endfunction()

function(trireme_find_sentencepiece)
  trireme_find_small(sentencepiece sentencepiece_processor.h
                     "int main() { return sentencepiece::SentencePieceProcessor().status().ok(); }")
endfunction()
