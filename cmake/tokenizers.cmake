# The libraries that tokenizers, arrays in files and pictures ask for, each as a target that is made only if a program compiles
# and links here and now:
#   trireme_find_utf8proc()        trireme::libutf8proc (Debian's libutf8proc-dev)
#   trireme_find_pcre2()           trireme::libpcre2 (Debian's libpcre2-dev), for expressions that are not written out
#   trireme_find_sentencepiece()   trireme::libsentencepiece (Debian's libsentencepiece-dev)
#   trireme_find_zlib()            trireme::libzlib (Debian's zlib1g-dev), for .gz files and compressed members of .npz files
#   trireme_find_hdf5()            trireme::libhdf5 (Debian's libhdf5-dev), for arrays in HDF5 files
#   trireme_find_pictures()        trireme::libpictures (libpng-dev and libjpeg-dev), for PNG and JPEG files

# trireme_find_small(name header program [file...]): a library of one header; file is how the library's is called.
function(trireme_find_small name header program)
  set(files ${ARGN})
  if(NOT files)
    set(files ${name})
  endif()
  if(TARGET trireme::lib${name})
    return()
  endif()
  string(TOUPPER TRIREME_${name} variable)
  if(NOT EXISTS "${${variable}_INCLUDE}/${header}" OR NOT EXISTS "${${variable}_LIBRARY}")
    unset(${variable}_INCLUDE CACHE)
    unset(${variable}_LIBRARY CACHE)
    unset(${variable}_WORKS CACHE)
  endif()
  find_path(${variable}_INCLUDE ${header} PATH_SUFFIXES ${name}/serial)  # Debian's folder of HDF5 without MPI
  find_library(${variable}_LIBRARY NAMES ${files})
  mark_as_advanced(${variable}_INCLUDE ${variable}_LIBRARY)
  if(NOT ${variable}_INCLUDE OR NOT ${variable}_LIBRARY)
    message(STATUS "trireme: ${name} is not here, so what needs it is left out")
    return()
  endif()
  if(NOT DEFINED CACHE{${variable}_WORKS})
    try_compile(works SOURCE_FROM_CONTENT ${name}.cpp "#define PCRE2_CODE_UNIT_WIDTH 0\n#include <cstdio>\n#include <${header}>\n${program}\n" NO_CACHE
                CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${${variable}_INCLUDE}"
                LINK_LIBRARIES ${${variable}_LIBRARY} CXX_STANDARD 20 CXX_STANDARD_REQUIRED TRUE)
    if(works)
      set(${variable}_WORKS TRUE CACHE INTERNAL "")
    endif()
  endif()
  if(NOT ${variable}_WORKS)
    message(STATUS "trireme: a program with ${${variable}_LIBRARY} does not compile or link, so what needs it is "
                   "left out")
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

function(trireme_find_pcre2)
  trireme_find_small(pcre2 pcre2.h "int main() { return pcre2_config_8(PCRE2_CONFIG_JIT, nullptr) < 0; }" pcre2-8)
  if(TARGET trireme::libpcre2)
    set_property(TARGET trireme::libpcre2 APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS TRIREME_PCRE2)
  endif()
endfunction()

function(trireme_find_sentencepiece)
  trireme_find_small(sentencepiece sentencepiece_processor.h
                     "int main() { return sentencepiece::SentencePieceProcessor().status().ok(); }")
endfunction()

function(trireme_find_zlib)
  trireme_find_small(zlib zlib.h "int main() { return zlibVersion() == nullptr; }" z)
endfunction()

function(trireme_find_hdf5)
  trireme_find_small(hdf5 hdf5.h "int main() { return H5open() < 0; }" hdf5_serial hdf5)
endfunction()

function(trireme_find_pictures)
  if(TARGET trireme::libpictures)
    return()
  endif()
  trireme_find_small(png png.h "int main() { return png_access_version_number() == 0; }")
  # jpeg_mem_src is libjpeg's from version 8 on, and libjpeg-turbo's.
  trireme_find_small(jpeg jpeglib.h "int main() { jpeg_decompress_struct from{}; jpeg_mem_src(&from, nullptr, 0); }")
  if(TARGET trireme::libpng AND TARGET trireme::libjpeg)
    add_library(trireme::libpictures INTERFACE IMPORTED GLOBAL)
    target_link_libraries(trireme::libpictures INTERFACE trireme::libpng trireme::libjpeg)
  endif()
endfunction()
