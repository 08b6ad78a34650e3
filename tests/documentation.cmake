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
foreach(example IN LISTS examples)
  # Examples that use CUDA memory run in the simulator of a GPU's threads; without it they are left out.
  trireme_includes(cuda ${folder}/${example}.cpp "trireme/comm/cuda\\.hpp")
  if(cuda AND NOT TARGET trireme_simulated_cuda)
    continue()
  endif()
  trireme_program(docs.${example} ${folder}/${example}.cpp)
  if(TARGET docs.${example})
    trireme_quick(docs.${example})
    # Those that include all of the library share what the compiler has read; for the others what they include is tried.
    trireme_includes(all_of_it ${folder}/${example}.cpp "trireme/trireme\\.hpp")
    trireme_uses_mpi(mpi ${folder}/${example}.cpp)
    trireme_uses_torch(torch ${folder}/${example}.cpp)
    if(cuda)
      target_link_libraries(docs.${example} PRIVATE trireme_simulated_cuda)
    endif()
    if(all_of_it AND NOT mpi AND NOT torch AND NOT cuda)
      trireme_share_headers(docs.${example} <trireme/trireme.hpp>)
    endif()
    set(labels documentation)
    if(torch)
      list(APPEND labels torch)
    endif()
    trireme_register_runs(docs.${example} docs.${example} ${folder}/${example}.cpp "${labels}")
  endif()
endforeach()
