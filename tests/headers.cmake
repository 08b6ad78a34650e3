# Headers alone, together, and with other compilers than the one of this build.
find_program(TRIREME_CLANG clang++)
find_program(TRIREME_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(TRIREME_CLANG TRIREME_NVCC)
set(nvcc FALSE)
if(TRIREME_NVCC)
  trireme_nvcc_works(nvcc ${TRIREME_NVCC} "__global__ void kernel() {}")
endif()
if(NOT nvcc)
  set(TRIREME_NVCC "")
endif()

get_target_property(eigen_include Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
set(include_flags -I${PROJECT_SOURCE_DIR}/include)
foreach(folder IN LISTS eigen_include fmt_include)
  if(NOT folder MATCHES "^/usr/include/?$|^\\$<")
    list(APPEND include_flags -isystem ${folder})
  endif()
endforeach()

if(TRIREME_CLANG AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # One unit that holds everything, and the instantiations that the examples ask for.
  file(GLOB programs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*/*.cpp)
  list(FILTER programs EXCLUDE REGEX "(presets_(bf|fp)16|left_out)\\.cpp$")  # the instantiations of fp32 once more
  list(APPEND programs ${PROJECT_SOURCE_DIR}/include/trireme/trireme.hpp)
  # The programs share what the compiler has read of the headers.
  set(clang_flags -std=c++20 -Wall -Wextra -Werror -Wno-pragma-once-outside-header -DFMT_HEADER_ONLY=1 ${include_flags})
  set(clang_headers ${CMAKE_CURRENT_BINARY_DIR}/clang_headers.pch)
  trireme_add_test(headers.clang.read TIMEOUT 300 LABELS headers PROPERTIES FIXTURES_SETUP clang_headers
    COMMAND ${TRIREME_CLANG} ${clang_flags} -x c++-header ${PROJECT_SOURCE_DIR}/include/trireme/trireme.hpp
            -o ${clang_headers})
  foreach(program IN LISTS programs)
    cmake_path(RELATIVE_PATH program BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/examples OUTPUT_VARIABLE name)
    string(REGEX REPLACE "^.*include/trireme/|\\.[ch]pp$" "" name ${name})
    string(REPLACE "/" "." name ${name})
    trireme_uses_mpi(mpi ${program})
    trireme_uses_torch(torch ${program})
    trireme_uses_utf8proc(utf8proc ${program})
    trireme_uses_sentencepiece(sentencepiece ${program})
    trireme_includes(cuda ${program} "trireme/comm/cuda\\.hpp")
    trireme_includes(httplib ${program} "httplib\\.h")
    if(NOT mpi AND NOT torch AND NOT cuda AND (NOT httplib OR TARGET trireme_httplib) AND
       (NOT utf8proc OR TARGET trireme::utf8proc) AND (NOT sentencepiece OR TARGET trireme::sentencepiece))
      set(read "")
      set(fixture "")
      # (those that include all of it: for the others what they include is tried)
      cmake_path(GET program PARENT_PATH folder)
      set(files ${program})
      if(NOT folder STREQUAL "${PROJECT_SOURCE_DIR}/examples")
        file(GLOB files ${folder}/*.hpp ${program})
      endif()
      set(all_of_it FALSE)
      foreach(file IN LISTS files)
        trireme_includes(includes ${file} "trireme/trireme\\.hpp")
        if(includes)
          set(all_of_it TRUE)
        endif()
      endforeach()
      if(all_of_it AND NOT program MATCHES "/trireme\\.hpp$")
        set(read -include-pch ${clang_headers})
        set(fixture PROPERTIES FIXTURES_REQUIRED clang_headers)
      endif()
      trireme_add_test(headers.clang.${name} TIMEOUT 300 LABELS headers ${fixture}
        COMMAND ${TRIREME_CLANG} ${clang_flags} -fsyntax-only ${read} -x c++ ${program})
    endif()
  endforeach()
endif()

# No warning in a header, whatever a program that includes it asks for: one unit that holds everything, and the units of
# tests/warnings with what programs usually instantiate. (Neither compiler warns of more when it also makes code.)
set(every_warning -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wfloat-equal -Wold-style-cast
    -Wcast-align -Werror)
set(warnings_of_gcc -Wcast-align=strict -Wuseless-cast)
set(all_headers ${TRIREME_HEADERS})
set(foreign_flags -isystem ${CMAKE_CURRENT_SOURCE_DIR}/ladder)
if(TARGET trireme::mpi)
  list(APPEND all_headers ${TRIREME_MPI_HEADERS})
  list(APPEND foreign_flags -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
  foreach(folder IN LISTS MPI_CXX_INCLUDE_DIRS)
    list(APPEND foreign_flags -isystem ${folder})
  endforeach()
endif()
if(TARGET trireme::nccl)
  list(APPEND all_headers ${TRIREME_CUDA_HEADERS} ${TRIREME_NCCL_HEADERS})
  get_target_property(nccl_include NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS nccl_include)
    list(APPEND foreign_flags -isystem ${folder})
  endforeach()
endif()
if(TARGET trireme::utf8proc)
  list(APPEND all_headers ${TRIREME_UTF8PROC_HEADERS})
endif()
if(TARGET trireme::sentencepiece)
  list(APPEND all_headers ${TRIREME_SENTENCEPIECE_HEADERS})
endif()
if(TARGET trireme::zlib)
  list(APPEND all_headers ${TRIREME_ZLIB_HEADERS})
endif()
if(TARGET trireme::hdf5)
  list(APPEND all_headers ${TRIREME_HDF5_HEADERS})
  if(NOT TRIREME_HDF5_INCLUDE STREQUAL "/usr/include")
    list(APPEND foreign_flags -isystem ${TRIREME_HDF5_INCLUDE})
  endif()
endif()
if(TARGET trireme::pictures)
  list(APPEND all_headers ${TRIREME_PICTURES_HEADERS})
endif()

# Every header compiles alone: built by the target headers_alone, which scripts/test builds ahead with all cores. No
# code is made of them, and each one is read again only when something that it includes has changed. clang++ does it
# where it is there: it reads a header that many include once for all of them (support/alone.sh), a third of the time.
set(alone_compiler ${CMAKE_CXX_COMPILER})
set(alone_flags -std=c++20 -Wall -Wextra -Werror -DFMT_HEADER_ONLY=1 ${include_flags})
set(alone_headers ${all_headers})
set(alone_foreign_flags ${foreign_flags})
if(TARGET trireme::cuda AND NOT TARGET trireme::nccl)
  list(APPEND alone_headers ${TRIREME_CUDA_HEADERS})
  foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS)
    list(APPEND alone_foreign_flags -isystem ${folder})
  endforeach()
endif()
set(torch_flags "")
if(TARGET trireme::torch)
  list(APPEND alone_headers ${PROJECT_SOURCE_DIR}/include/trireme/interop/torch.hpp)
  get_target_property(torch_include trireme::libtorch INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder IN LISTS torch_include)
    list(APPEND torch_flags -isystem ${folder})
  endforeach()
endif()
# Those that save most, the largest first.
set(alone_bases "")
set(alone_read "")
set(alone_folder ${CMAKE_CURRENT_BINARY_DIR}/alone)
if(TRIREME_CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(alone_compiler ${TRIREME_CLANG})
  list(APPEND alone_flags -Wno-pragma-once-outside-header)
  set(alone_bases train/trainer nn/pretrained comm/node/engine formats/model_files formats/json ops/host/simd
      contract/numerics core/tensor core/plural core/error)
  list(TRANSFORM alone_bases REPLACE "(.+)" "trireme/\\1.hpp")
  foreach(base IN LISTS alone_bases)
    string(REPLACE "/" "." read ${base})
    set(read ${alone_folder}/read/${read}.pch)
    add_custom_command(OUTPUT ${read} DEPENDS ${PROJECT_SOURCE_DIR}/include/${base} DEPFILE ${read}.d VERBATIM
      COMMENT "Reading ${base} for those that include it"
      COMMAND ${alone_compiler} ${alone_flags} -fpch-instantiate-templates -MD -MF ${read}.d -MT ${read}
              -x c++-header ${PROJECT_SOURCE_DIR}/include/${base} -o ${read})
    list(APPEND alone_read ${read})
  endforeach()
else()
  list(APPEND alone_flags ${TRIREME_LESS_GARBAGE})
endif()
list(JOIN alone_bases "," alone_bases)
set(stamps "")
foreach(header IN LISTS alone_headers)
  cmake_path(ABSOLUTE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/include OUTPUT_VARIABLE name)
  string(REPLACE "/" "." stamp ${name})
  set(stamp ${alone_folder}/${stamp})
  set(compiler ${alone_compiler})
  set(bases "${alone_bases}")
  set(read ${alone_read})
  set(more_flags "")
  if(name MATCHES "/torch")  # by the compiler of this build alone, as for its warnings below
    set(compiler ${CMAKE_CXX_COMPILER})
    set(more_flags ${TRIREME_LESS_GARBAGE} ${torch_flags})
    set(bases "")
    set(read "")
  elseif(name MATCHES "/(mpi|cuda|nccl)|/hdf5")
    set(more_flags ${alone_foreign_flags})
  endif()
  add_custom_command(OUTPUT ${stamp} DEPENDS ${header} ${read} DEPFILE ${stamp}.d VERBATIM
    COMMENT "Reading ${name} alone"
    COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/alone.sh ${name} ${stamp} ${PROJECT_SOURCE_DIR}/include
            ${alone_folder}/read "${bases}" ${compiler} -fsyntax-only ${alone_flags}
            ${more_flags})
  list(APPEND stamps ${stamp})
endforeach()
file(MAKE_DIRECTORY ${alone_folder}/read)
add_custom_target(headers_alone DEPENDS ${stamps})
trireme_add_test(headers.each_alone TIMEOUT 1500 LABELS headers PROPERTIES RUN_SERIAL TRUE
  COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target headers_alone)

list(TRANSFORM all_headers REPLACE "(.+)" "#include \"\\1\"")
list(JOIN all_headers "\n" all_headers)
file(CONFIGURE OUTPUT everything.cpp CONTENT "${all_headers}\n" @ONLY)
file(GLOB units CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/warnings/*.cpp)
foreach(unit IN LISTS units ITEMS ${CMAKE_CURRENT_BINARY_DIR}/everything.cpp)
  cmake_path(GET unit STEM name)
  if((name STREQUAL "mpi" AND NOT TARGET trireme::mpi) OR (name STREQUAL "nccl" AND NOT TARGET trireme::nccl) OR
     (name STREQUAL "torch" AND NOT TARGET trireme::torch))
    continue()
  endif()
  set(compilers ${CMAKE_CXX_COMPILER} ${TRIREME_CLANG})
  list(REMOVE_DUPLICATES compilers)
  set(flags_of_unit "")
  if(name STREQUAL "torch")  # not among all headers: each of them would wait for it
    set(flags_of_unit ${torch_flags})
    set(compilers ${CMAKE_CXX_COMPILER})  # which compilers its headers suit is torch's business; this one does
  endif()
  foreach(compiler IN LISTS compilers)
    cmake_path(GET compiler FILENAME program)
    set(more_warnings ${warnings_of_gcc} ${TRIREME_LESS_GARBAGE})
    if(compiler STREQUAL "${TRIREME_CLANG}" OR CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      set(more_warnings "")
    endif()
    trireme_add_test(headers.warnings.${name}.${program} TIMEOUT 300 LABELS headers
      COMMAND ${compiler} -std=c++20 -fsyntax-only ${every_warning} ${more_warnings} -DFMT_HEADER_ONLY=1
              ${include_flags} ${foreign_flags} ${flags_of_unit} ${unit})
  endforeach()
endforeach()

# What a program from headers alone takes to compile, in kilobytes of code, function bodies and megabytes of g++'s
# memory: at most 2 % more than when these bounds were set. Who makes it less lowers the bounds; who makes it more says
# why. (documentation.cmake writes the README's program.)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(CONFIGURE OUTPUT include_alone.cpp CONTENT "#include <trireme/trireme.hpp>\n" @ONLY)
  # (raised by a twentieth for several reading threads, samples that are left out, and unequal shares; 13 bodies more
  # for staging memory of the loader and learners that are meshes)
  set(bounds_of_readme "645 832 1580")
  set(bounds_of_include "1 2 726")
  set(source_of_readme ${CMAKE_CURRENT_BINARY_DIR}/documentation/readme.cpp)
  set(source_of_include ${CMAKE_CURRENT_BINARY_DIR}/include_alone.cpp)
  foreach(what IN ITEMS readme include)
    trireme_add_test(headers.cost_of_${what} TIMEOUT 300 TAKES 40 LABELS headers
      COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/cost_of_headers.sh ${bounds_of_${what}}
              ${CMAKE_CXX_COMPILER} -std=c++20 -O2 ${include_flags} ${source_of_${what}})
  endforeach()
endif()

# Between macros and names that others leave behind, and in the next standard, the headers compile; flags under which
# they would not mean what they say, and macros that they cannot stand, are refused by one sentence.
set(strangers ${CMAKE_CURRENT_SOURCE_DIR}/support/among_strangers.cpp)
file(CONFIGURE OUTPUT among_min.cpp @ONLY CONTENT
     "#include <vector>\n#define min(a, b) ((a) < (b) ? (a) : (b))\n#include <trireme/trireme.hpp>\n")
set(refused_flags -std=c++17 -fno-exceptions -Ofast -ffast-math -ffinite-math-only "-Dcheck(x)=(x)" -Dnear= -DSuccess=0
    -D_LIBCPP_VERSION=190107)
set(compilers ${CMAKE_CXX_COMPILER} ${TRIREME_CLANG})
list(REMOVE_DUPLICATES compilers)
foreach(compiler IN LISTS compilers)
  cmake_path(GET compiler FILENAME program)
  foreach(standard IN ITEMS 20 2b)
    trireme_add_test(headers.among_strangers.${standard}.${program} TIMEOUT 300 LABELS headers
      COMMAND ${compiler} -std=c++${standard} -fvisibility=hidden -fsyntax-only -Wall -Wextra -Werror
              -DFMT_HEADER_ONLY=1 ${include_flags} ${strangers})
  endforeach()
  # As CMake's Release level compiles them: warnings of what may be uninitialised or out of bounds come with -O3 only.
  # (documentation.cmake writes the README's program; -Ofast is among the flags that are refused.)
  trireme_add_test(headers.release.${program} TIMEOUT 300 TAKES 50 LABELS headers
    COMMAND ${compiler} -std=c++20 -O3 -DNDEBUG -Wall -Wextra -Werror -DFMT_HEADER_ONLY=1 ${include_flags}
            -c ${CMAKE_CURRENT_BINARY_DIR}/documentation/readme.cpp -o readme.o)
  foreach(flag IN LISTS refused_flags)
    string(REGEX REPLACE "^(-D[A-Za-z_]+).*" "\\1" short ${flag})
    trireme_add_test(headers.refused${short}.${program} LABELS headers
      PROPERTIES PASS_REGULAR_EXPRESSION "[.]hpp:[0-9:]+ error: .*trireme (needs|reports|includes|reads)"
      COMMAND ${compiler} -std=c++20 ${flag} -fsyntax-only ${include_flags} -x c++
              ${PROJECT_SOURCE_DIR}/include/trireme/trireme.hpp)
  endforeach()
  if(program MATCHES "clang")  # it has flags of which no macro tells
    trireme_add_test(headers.arithmetic.${program} LABELS headers
      COMMAND ${TRIREME_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/arithmetic_flags.sh ${compiler}
              ${CMAKE_CURRENT_SOURCE_DIR}/support/arithmetic_flags.cpp -DFMT_HEADER_ONLY=1 ${include_flags})
  else()
    foreach(flag IN ITEMS -fsingle-precision-constant -mfpmath=387)
      if(flag MATCHES "387" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        continue()
      endif()
      trireme_add_test(headers.refused${flag}.${program} LABELS headers
        PROPERTIES PASS_REGULAR_EXPRESSION "dialect.hpp:[0-9:]+ error: .*trireme needs"
                   FAIL_REGULAR_EXPRESSION "trireme/[a-z]+/(schedule|losses|muon|fp16)[.]hpp:[0-9:]+ error"
        COMMAND ${compiler} -std=c++20 ${flag} -fsyntax-only ${include_flags} -x c++
                ${PROJECT_SOURCE_DIR}/include/trireme/trireme.hpp)
    endforeach()
  endif()
  trireme_add_test(headers.refused-min.${program} LABELS headers
    PROPERTIES PASS_REGULAR_EXPRESSION "dialect.hpp:[0-9:]+ error: .*trireme needs min"
    COMMAND ${compiler} -std=c++20 -fsyntax-only ${include_flags} ${CMAKE_CURRENT_BINARY_DIR}/among_min.cpp)
endforeach()

if(TRIREME_NVCC)
  # Device code includes core and contract; Eigen and fmt must not reach it.
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
       ${PROJECT_SOURCE_DIR}/include/trireme/core/*.hpp ${PROJECT_SOURCE_DIR}/include/trireme/contract/*.hpp)
  list(TRANSFORM headers REPLACE "(.+)" "#include \"\\1\"")
  list(JOIN headers "\n" headers)
  file(CONFIGURE OUTPUT core_and_contract.cu CONTENT "${headers}\n__global__ void kernel() {}\n" @ONLY)
  trireme_add_test(headers.nvcc.core_and_contract TIMEOUT 300 LABELS headers
    COMMAND ${TRIREME_NVCC} -std=c++20 -Werror all-warnings -I${PROJECT_SOURCE_DIR}/include
            -c ${CMAKE_CURRENT_BINARY_DIR}/core_and_contract.cu -o core_and_contract.o)
endif()
