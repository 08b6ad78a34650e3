# What somebody who uses the library does: tiny projects of their own, configured, built and run.
set(launchers ${CMAKE_CXX_COMPILER_LAUNCHER})
list(POP_BACK launchers launcher)  # ccache itself, or nothing
function(trireme_consumer_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE;TAKES" "ARGUMENTS;PROPERTIES")
  if(NOT arg_SOURCE)
    set(arg_SOURCE ${name})
  endif()
  trireme_add_test(consumer.${name} TIMEOUT 1200 TAKES ${arg_TAKES} LABELS consumer PROPERTIES ${arg_PROPERTIES}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/consumer/${arg_SOURCE}
            -DBINARY=${CMAKE_CURRENT_BINARY_DIR}/consumer/${name} -DCOMPILER=${CMAKE_CXX_COMPILER}
            -DLAUNCHER=${launcher} "-DARGUMENTS=${arg_ARGUMENTS}"
            -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
endfunction()

trireme_consumer_test(add_subdirectory ARGUMENTS -DTRIREME_SOURCE=${PROJECT_SOURCE_DIR})
get_target_property(eigen_folder Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
trireme_consumer_test(own_targets SOURCE add_subdirectory
  ARGUMENTS -DTRIREME_SOURCE=${PROJECT_SOURCE_DIR} -DTRIREME_OWN_TARGETS=ON -DTRIREME_OWN_EIGEN=${eigen_folder})

# The sources of trireme::compiled in one, as a unity build of somebody's own makes of them.
file(GLOB bodies CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
list(FILTER bodies EXCLUDE REGEX "/(trireme|trainers_[a-z0-9_]+)\\.cpp$")  # minutes; see scripts.makefile_sh
list(TRANSFORM bodies REPLACE "(.+)" "#include \"\\1\"")
list(JOIN bodies "\n" bodies)
file(CONFIGURE OUTPUT one_unit.cpp CONTENT "${bodies}\n" @ONLY)
trireme_add_test(consumer.one_unit TIMEOUT 300 LABELS consumer
  COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -DTRIREME_COMPILED ${include_flags}
          ${CMAKE_CURRENT_BINARY_DIR}/one_unit.cpp)

# One program with both folders that have trireme/trireme.hpp.
set(folder ${CMAKE_CURRENT_BINARY_DIR}/single_include)
trireme_add_test(single_header.generate LABELS consumer PROPERTIES FIXTURES_SETUP single_include
  COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/scripts/single-header --output ${folder})
trireme_consumer_test(single_header PROPERTIES FIXTURES_REQUIRED single_include
  ARGUMENTS -DTRIREME_SINGLE_INCLUDE=${folder} -DTRIREME_INCLUDE=${folder})
trireme_consumer_test(same_includes SOURCE single_header PROPERTIES FIXTURES_REQUIRED single_include
  ARGUMENTS -DTRIREME_SINGLE_INCLUDE=${folder} -DTRIREME_INCLUDE=${PROJECT_SOURCE_DIR}/include)
trireme_add_test(single_header.fresh LABELS lint
  COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/scripts/single-header --check)

trireme_add_test(lint LABELS lint COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/scripts/lint)

if(TRIREME_INSTALL)
  set(prefix ${CMAKE_CURRENT_BINARY_DIR}/prefix)
  if(TRIREME_COMPILED)
    set(libraries trireme_compiled)
    if(TARGET trireme_compiled_mpi)
      list(APPEND libraries trireme_compiled_mpi)
    endif()
    if(TARGET trireme_compiled_torch)
      list(APPEND libraries trireme_compiled_torch)
    endif()
    trireme_add_test(consumer.library TIMEOUT 1200 LABELS consumer PROPERTIES FIXTURES_SETUP library
      COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target ${libraries})
  endif()
  trireme_add_test(consumer.install LABELS consumer PROPERTIES FIXTURES_SETUP prefix FIXTURES_REQUIRED library
    COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${prefix})
  foreach(name IN ITEMS find_package two_units)
    trireme_consumer_test(${name} ARGUMENTS -DCMAKE_PREFIX_PATH=${prefix} PROPERTIES FIXTURES_REQUIRED prefix)
  endforeach()
  trireme_consumer_test(unity SOURCE two_units PROPERTIES FIXTURES_REQUIRED prefix
    ARGUMENTS -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_UNITY_BUILD=ON)

  trireme_consumer_test(shared_library ARGUMENTS -DCMAKE_PREFIX_PATH=${prefix} PROPERTIES FIXTURES_REQUIRED prefix)

  if(TRIREME_COMPILED)
    # The bits are compared, not the speed.
    trireme_consumer_test(compiled TAKES 95 PROPERTIES FIXTURES_REQUIRED prefix
      ARGUMENTS -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
                -DTRIREME_PKG_CONFIG=${prefix}/${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()

  # Folders of their own for headers, libraries and data, as Nix has them.
  trireme_add_test(packaging.absolute_folders TIMEOUT 900 LABELS packaging
    COMMAND ${CMAKE_COMMAND} -DTRIREME_SOURCE=${PROJECT_SOURCE_DIR} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/absolute
            -DCOMPILER=${CMAKE_CXX_COMPILER} -DLAUNCHER=${launcher}
            -DCONSUMER=${CMAKE_CURRENT_SOURCE_DIR}/consumer/find_package
            -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/absolute_folders.cmake)

  if(TARGET trireme::libtorch)
    get_target_property(libraries trireme::libtorch INTERFACE_LINK_LIBRARIES)
    trireme_add_test(packaging.torch_without_flags LABELS packaging
      COMMAND ${TRIREME_BASH} -c "! grep -e '(^|;)-' -E <<<'${libraries}'")
  endif()

  trireme_add_test(packaging.vcpkg_portfile TIMEOUT 900 LABELS packaging
    COMMAND ${CMAKE_COMMAND} -DPORT=${PROJECT_SOURCE_DIR}/packaging/vcpkg/ports/trireme
            -DWORK=${CMAKE_CURRENT_BINARY_DIR}/vcpkg -DCUDA=$<TARGET_EXISTS:trireme::cuda>
            -P ${PROJECT_SOURCE_DIR}/packaging/vcpkg/portfile_test.cmake)
  trireme_add_test(packaging.conan_create TIMEOUT 900 LABELS packaging
    COMMAND ${TRIREME_BASH} ${PROJECT_SOURCE_DIR}/packaging/conan/create_test.sh
            $<$<TARGET_EXISTS:trireme::cuda>:cuda>)
endif()
