# Every C++ block of README.md, docs/*.md and docs/start/*.md under a comment <!-- example: name --> is a program that
# must compile and run; <!-- example: name ranks=2 --> runs it under mpirun.
set(folder ${CMAKE_CURRENT_BINARY_DIR}/documentation)
file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/*.md
     ${PROJECT_SOURCE_DIR}/docs/start/*.md)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${pages} ${PROJECT_SOURCE_DIR}/scripts/extract-examples)
execute_process(COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/scripts/extract-examples ${folder} ${pages}
                OUTPUT_VARIABLE examples OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" examples "${examples}")

# Programs that leave all to <trireme/trireme.hpp> are compiled several at a time where tests are
# (TRIREME_UNITED_TESTS): each within a namespace, its main() a function that the program united.docs.N calls by its
# name. Headers that trireme.hpp does not include are tried all the same: only programs that include the same of them
# stand together.
set(brought "")
if(TRIREME_UNITED_TESTS)
  set(flags ${include_flags} -DFMT_HEADER_ONLY=1)
  if(TRIREME_COMPILED_PROGRAMS)
    list(APPEND flags -DTRIREME_COMPILED)
  endif()
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -M ${flags} -x c++ ${PROJECT_SOURCE_DIR}/include/trireme/trireme.hpp
    OUTPUT_VARIABLE brought COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[ \\\n]+" " " brought "${brought} ")
endif()

# trireme_documents_program(result headers example): the program as a function `int program(...)`, or nothing if it
# cannot stand beside others, and the headers that it includes beside those of trireme.hpp.
function(trireme_documents_program result headers example)
  set(${result} "" PARENT_SCOPE)
  set(others "")
  if(NOT brought)
    return()
  endif()
  set(source ${folder}/${example}.cpp)
  file(STRINGS ${source} alone_lines REGEX "${stands_alone_in_documents}")
  trireme_includes(all_of_it ${source} "trireme/trireme\\.hpp")
  if(alone_lines OR NOT all_of_it)
    return()
  endif()
  file(STRINGS ${source} lines REGEX "^#include ")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include [<\"]([^>\"]+).*" "\\1" header ${line})
    string(FIND "${brought}" "/${header} " at)
    if(at EQUAL -1)
      list(APPEND others ${line})
    endif()
  endforeach()
  list(SORT others)
  set(${headers} "${others}" PARENT_SCOPE)
  file(READ ${source} text)
  string(STRIP "${text}" text)
  # Its last function must be main(), whose end would be without a result in a function of another name.
  string(FIND "${text}" "\nint main(" begin)
  string(FIND "${text}\n" "\n}\n" end REVERSE)
  string(LENGTH "${text}" length)
  math(EXPR length "${length} - 2")
  if(begin EQUAL -1 OR NOT end EQUAL length)
    return()
  endif()
  string(SUBSTRING "${text}" ${begin} -1 own_main)
  string(FIND "${own_main}\n" "\n}\n" first)
  math(EXPR first "${first} + ${begin}")
  if(NOT first EQUAL end)
    return()
  endif()
  string(REGEX REPLACE "\nint main\\(" "\nint program(" text "${text}")
  string(REGEX REPLACE "}$" "  return 0;\n}\n" text "${text}")
  string(REGEX REPLACE "(^|\n)#include [^\n]*" "\\1" text "${text}")  # line numbers stay
  file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR} ${source})
  set(${result} "#line 1 \"${source}\"\n${text}" PARENT_SCOPE)
endfunction()
set(stands_alone_in_documents "^(#define|#undef|template <>|namespace |.*operator new|extern )")

# Those of a kind that has one program only stand alone as well.
set(kinds "")
foreach(example IN LISTS examples)
  trireme_includes(elsewhere ${folder}/${example}.cpp
                   "trireme/comm/(mpi|cuda)\\.hpp|trireme/interop/torch[a-z_]*\\.hpp|torch/[a-z_]+\\.h|omp\\.h")
  trireme_directives(ranks ranks ${folder}/${example}.cpp)
  trireme_documents_program(text headers ${example})
  if(text AND NOT ranks AND NOT elsewhere)
    string(MD5 kind "${headers}")
    list(APPEND kinds ${kind})
    list(APPEND examples_of_${kind} ${example})
    set(headers_of_${kind} "${headers}")
    set(text_of_${example} "${text}")
  endif()
endforeach()
list(REMOVE_DUPLICATES kinds)
set(united_examples "")
foreach(kind IN LISTS kinds)
  list(LENGTH examples_of_${kind} count)
  if(count GREATER 1)
    list(APPEND united_examples ${examples_of_${kind}})
  else()
    list(REMOVE_ITEM kinds ${kind})
  endif()
endforeach()

foreach(example IN LISTS examples)
  # Examples that use CUDA memory run in the simulator of a GPU's threads; without it they are left out.
  trireme_includes(cuda ${folder}/${example}.cpp "trireme/comm/cuda\\.hpp")
  if(cuda AND NOT TARGET trireme_simulated_cuda)
    continue()
  endif()
  if(example IN_LIST united_examples)
    continue()
  endif()
  trireme_program(docs.${example} ${folder}/${example}.cpp)
  if(TARGET docs.${example})
    trireme_quick(docs.${example})
    # Those that include all of the library share what the compiler has read; for the others what they include is tried.
    trireme_includes(all_of_it ${folder}/${example}.cpp "trireme/trireme\\.hpp")
    trireme_includes(openmp ${folder}/${example}.cpp "omp\\.h")
    trireme_uses_torch(torch ${folder}/${example}.cpp)
    if(cuda)
      target_link_libraries(docs.${example} PRIVATE trireme_simulated_cuda)
    endif()
    if(torch)
      trireme_share_headers(docs.${example} <torch/torch.h>)
    elseif(all_of_it AND NOT openmp)
      trireme_share_headers(docs.${example} <trireme/trireme.hpp>)
    endif()
    set(labels documentation)
    if(torch)
      list(APPEND labels torch)
    endif()
    trireme_register_runs(docs.${example} docs.${example} ${folder}/${example}.cpp "${labels}")
  endif()
endforeach()

# Eight at a time: what they have in common is compiled once.
set(number 0)
foreach(kind IN LISTS kinds)
  while(examples_of_${kind})
    math(EXPR number "${number} + 1")
    set(unit united.docs.${number})
    list(SUBLIST examples_of_${kind} 0 8 chosen)
    list(REMOVE_ITEM examples_of_${kind} ${chosen})
    list(JOIN headers_of_${kind} "\n" programs)
    string(PREPEND programs "#include <cstring>\n#include <trireme/trireme.hpp>\n")
    set(calls "")
    foreach(example IN LISTS chosen)
      string(APPEND programs "\nnamespace docs_${example} {\n${text_of_${example}}}\n")
      string(APPEND calls "  if (std::strcmp(name, \"${example}\") == 0)\n"
                          "    return call(docs_${example}::program, count - 1, arguments + 1);\n")
    endforeach()
    string(APPEND programs
      "#line 1 \"${unit}.cpp\"\n"
      "[[maybe_unused]] static int call(int (*program)(), int, char**) { return program(); }\n"
      "[[maybe_unused]] static int call(int (*program)(int, char**), int count, char** arguments) {\n"
      "  return program(count, arguments);\n"
      "}\n"
      "int main(int count, char** arguments) {\n"
      "  char const* const name = count > 1 ? arguments[1] : \"\";\n${calls}"
      "  return 2;\n"
      "}\n")
    set(written ${CMAKE_CURRENT_BINARY_DIR}/${unit}.cpp)
    file(GENERATE OUTPUT ${written} CONTENT "${programs}")
    add_executable(${unit} ${written})
    target_link_libraries(${unit} PRIVATE ${TRIREME_LIBRARY} trireme_warnings)
    trireme_quick(${unit})
    trireme_share_headers(${unit} <trireme/trireme.hpp>)
    foreach(example IN LISTS chosen)
      trireme_register_runs(${unit} docs.${example} ${folder}/${example}.cpp documentation)
      add_custom_target(docs.${example})
      add_dependencies(docs.${example} ${unit})
    endforeach()
  endwhile()
endforeach()
