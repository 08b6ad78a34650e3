# Every C++ block of README.md and docs/*.md under a comment <!-- example: name --> is a program that must compile
# and run; <!-- example: name ranks=2 --> runs it under mpirun.
set(folder ${CMAKE_CURRENT_BINARY_DIR}/documentation)
file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/*.md)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${pages} ${PROJECT_SOURCE_DIR}/scripts/extract-examples)
execute_process(COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/scripts/extract-examples ${folder} ${pages}
                OUTPUT_VARIABLE examples OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" examples "${examples}")
foreach(example IN LISTS examples)
  trireme_program(docs.${example} ${folder}/${example}.cpp)
  if(TARGET docs.${example})
    trireme_quick(docs.${example})
    trireme_uses_torch(torch ${folder}/${example}.cpp)
    set(labels documentation)
    if(torch)
      list(APPEND labels torch)
    endif()
    trireme_register_runs(docs.${example} docs.${example} ${folder}/${example}.cpp "${labels}")
  endif()
endforeach()
