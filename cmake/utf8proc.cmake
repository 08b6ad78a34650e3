# trireme_find_utf8proc(): utf8proc (Debian's libutf8proc-dev) as the target trireme::libutf8proc. The target is made only
# if a program compiles and links here and now.
function(trireme_find_utf8proc)
  if(TARGET trireme::libutf8proc)
    return()
  endif()
  if(NOT EXISTS "${TRIREME_UTF8PROC_INCLUDE}/utf8proc.h" OR NOT EXISTS "${TRIREME_UTF8PROC_LIBRARY}")
    unset(TRIREME_UTF8PROC_INCLUDE CACHE)
    unset(TRIREME_UTF8PROC_LIBRARY CACHE)
    unset(TRIREME_UTF8PROC_WORKS CACHE)
  endif()
  find_path(TRIREME_UTF8PROC_INCLUDE utf8proc.h)
  find_library(TRIREME_UTF8PROC_LIBRARY utf8proc)
  mark_as_advanced(TRIREME_UTF8PROC_INCLUDE TRIREME_UTF8PROC_LIBRARY)
  if(NOT TRIREME_UTF8PROC_INCLUDE OR NOT TRIREME_UTF8PROC_LIBRARY)
    message(STATUS "trireme: utf8proc is not here, so trireme::utf8proc and what needs it are left out")
    return()
  endif()
  if(NOT DEFINED CACHE{TRIREME_UTF8PROC_WORKS})
    try_compile(works SOURCE_FROM_CONTENT utf8proc.cpp
                "#include <utf8proc.h>\nint main() { return utf8proc_category('a') != UTF8PROC_CATEGORY_LL; }\n" NO_CACHE
                CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${TRIREME_UTF8PROC_INCLUDE}"
                LINK_LIBRARIES ${TRIREME_UTF8PROC_LIBRARY} CXX_STANDARD 20 CXX_STANDARD_REQUIRED TRUE)
    if(works)
      set(TRIREME_UTF8PROC_WORKS TRUE CACHE INTERNAL "")
    endif()
  endif()
  if(NOT TRIREME_UTF8PROC_WORKS)
    message(STATUS "trireme: a program with ${TRIREME_UTF8PROC_LIBRARY} does not compile or link, so trireme::utf8proc "
                   "and what needs it are left out")
    return()
  endif()
  add_library(trireme::libutf8proc INTERFACE IMPORTED GLOBAL)
  if(NOT TRIREME_UTF8PROC_INCLUDE STREQUAL "/usr/include")  # where the compiler looks anyway
    target_include_directories(trireme::libutf8proc SYSTEM INTERFACE ${TRIREME_UTF8PROC_INCLUDE})
  endif()
  target_link_libraries(trireme::libutf8proc INTERFACE ${TRIREME_UTF8PROC_LIBRARY})
endfunction()
