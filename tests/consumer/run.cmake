# cmake -DSOURCE=.. -DBINARY=.. -DCOMPILER=.. -DLAUNCHER=.. -DARGUMENTS=.. -P run.cmake
# Configures, builds and runs the project in SOURCE from scratch, as its owner would.
file(REMOVE_RECURSE ${BINARY})
execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${BINARY} -DCMAKE_CXX_COMPILER=${COMPILER}
          -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} ${ARGUMENTS})
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BINARY}/consumer COMMAND_ERROR_IS_FATAL ANY)
