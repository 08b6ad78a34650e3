# cmake -DTRIREME_SOURCE=.. -DWORK=.. -DCOMPILER=.. -DLAUNCHER=.. -DCONSUMER=.. -P absolute_folders.cmake
# Installs with a folder of its own for each kind of file; what pkg-config and find_package name is there.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${TRIREME_SOURCE} -B ${WORK}/build -DCMAKE_CXX_COMPILER=${COMPILER}
          -DTRIREME_BUILD_TESTS=OFF -DTRIREME_BUILD_EXAMPLES=OFF -DTRIREME_MPI=OFF -DTRIREME_CUDA=OFF
          -DTRIREME_TORCH=OFF -DTRIREME_UTF8PROC=OFF -DTRIREME_SENTENCEPIECE=OFF -DTRIREME_ZLIB=OFF -DTRIREME_HDF5=OFF
          -DTRIREME_PICTURES=OFF
          -DCMAKE_INSTALL_PREFIX=${WORK}/out -DCMAKE_INSTALL_INCLUDEDIR=${WORK}/dev/include
          -DCMAKE_INSTALL_LIBDIR=${WORK}/out/lib -DCMAKE_INSTALL_DATADIR=${WORK}/data/share)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK}/build COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
if(NOT EXISTS ${WORK}/dev/include/trireme/trireme.hpp)
  message(FATAL_ERROR "the headers are not in CMAKE_INSTALL_INCLUDEDIR")
endif()
find_program(pkg_config pkg-config)
if(pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${WORK}/data/share/pkgconfig)
  execute_process(COMMAND ${pkg_config} --cflags trireme OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  if(NOT flags MATCHES "-I${WORK}/dev/include( |\n|$)")
    message(FATAL_ERROR "pkg-config says ${flags}")
  endif()
endif()
execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${WORK}/consumer -DCMAKE_CXX_COMPILER=${COMPILER}
          -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -Dtrireme_DIR=${WORK}/data/share/cmake/trireme)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/consumer/consumer COMMAND_ERROR_IS_FATAL ANY)
