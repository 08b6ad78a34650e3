# cmake -DPORT=<port folder> -DWORK=<scratch folder> [-DCUDA=ON] -P portfile_test.cmake
#
# Executes the portfile without vcpkg: the helper functions that it calls get small bodies here that do what vcpkg's
# own do to a header-only port. Then the installed tree is checked, and a program is built against it. With CUDA, the
# portfile is executed once more with the feature cuda, and nvcc compiles one file of kernels from the installed tree.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
set(PORT_DIRECTORY ${PORT})
set(PORT trireme)
set(FEATURES core mpi)
set(BUILD ${WORK}/build)
set(CURRENT_PACKAGES_DIR ${WORK}/packages/trireme)

# expect(sentence condition...)
macro(expect sentence)
  if(NOT (${ARGN}))
    message(FATAL_ERROR "${sentence}")
  endif()
endmacro()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options "")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    if(feature IN_LIST FEATURES)
      list(APPEND options -D${option}=ON)
    else()
      list(APPEND options -D${option}=OFF)
    endif()
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  expect("an unknown argument: ${arg_UNPARSED_ARGUMENTS}" NOT arg_UNPARSED_ARGUMENTS)
  execute_process(COMMAND_ERROR_IS_FATAL ANY
    COMMAND ${CMAKE_COMMAND} -G Ninja -S ${arg_SOURCE_PATH} -B ${BUILD} -DCMAKE_BUILD_TYPE=Release
            -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} --target install COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  if(NOT arg_PACKAGE_NAME)
    set(arg_PACKAGE_NAME ${PORT})
  endif()
  file(GLOB files ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*.cmake)
  expect("CONFIG_PATH ${arg_CONFIG_PATH} holds no files" files)
  # vcpkg moves the folder to share/<name>, and mends the way from there to the prefix.
  foreach(file IN LISTS files)
    cmake_path(GET file FILENAME name)
    file(READ ${file} text)
    string(REPLACE "../../../" "../../" text "${text}")
    set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    file(WRITE ${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}/${name} "${text}")
  endforeach()
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH})
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB found ${CURRENT_PACKAGES_DIR}/share/pkgconfig/*.pc ${CURRENT_PACKAGES_DIR}/lib/pkgconfig/*.pc)
  expect("no pkg-config file was installed" found)
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "COMMENT" "FILE_LIST")
  list(LENGTH arg_FILE_LIST count)
  expect("one licence file is expected" count EQUAL 1)
  file(COPY_FILE ${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright)
endfunction()

include(${PORT_DIRECTORY}/portfile.cmake)

# Every option of CMakeLists.txt that looks for a library or adds one is a feature, ON where it is asked for.
file(STRINGS ${SOURCE_PATH}/CMakeLists.txt lines REGEX "^option\\(TRIREME_[A-Z0-9]+ \"(Look for|Build, offer)")
set(features cuda torch)
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^option\\(TRIREME_([A-Z0-9]+) .*" "\\1" feature "${line}")
  string(TOLOWER ${feature} feature)
  list(APPEND features ${feature})
endforeach()
foreach(feature IN LISTS features)
  string(TOUPPER TRIREME_${feature} option)
  set(wanted OFF)
  if(feature IN_LIST FEATURES)
    set(wanted ON)
  endif()
  file(STRINGS ${BUILD}/CMakeCache.txt is REGEX "^${option}:[A-Z]+=${wanted}$")
  expect("with the features ${FEATURES}, ${option} is not ${wanted}" is)
endforeach()

file(STRINGS ${BUILD}/CMakeCache.txt of_cuda REGEX "^CUDAToolkit")
expect("without the feature cuda, CMake has looked for CUDA: ${of_cuda}" NOT of_cuda)

# The port's version is the library's, and every feature that the portfile maps is declared.
file(READ ${PORT_DIRECTORY}/vcpkg.json manifest)
string(JSON version GET "${manifest}" version-semver)
file(STRINGS ${SOURCE_PATH}/include/trireme/version.hpp line REGEX "define TRIREME_VERSION \"")
expect("vcpkg.json says ${version}, version.hpp: ${line}" line MATCHES "${version}")
string(JSON systems GET "${manifest}" supports)
expect("vcpkg.json supports ${systems}" systems STREQUAL linux)
foreach(feature IN LISTS features)
  string(JSON described GET "${manifest}" features ${feature} description)
endforeach()
# A feature brings the library that it is named for.
foreach(library IN ITEMS cuda mpi utf8proc pcre2 sentencepiece zlib hdf5)
  string(JSON brought GET "${manifest}" features ${library} dependencies 0)
  expect("the feature ${library} brings ${brought}" brought STREQUAL library)
endforeach()
expect("VCPKG_BUILD_TYPE is not release" VCPKG_BUILD_TYPE STREQUAL release)

# The tree, by vcpkg's rules for ports: no empty folders, nothing outside include/ and share/.
foreach(file IN ITEMS include/trireme/trireme.hpp include/trireme/version.hpp share/trireme/triremeConfig.cmake
        share/trireme/triremeConfigVersion.cmake share/trireme/triremeTargets.cmake share/trireme/copyright
        share/trireme/usage share/trireme/src/trireme.cpp share/trireme/src/layers.cpp
        share/trireme/src/mpi/communicator.cpp share/pkgconfig/trireme.pc)
  expect("${file} is not installed" EXISTS ${CURRENT_PACKAGES_DIR}/${file})
endforeach()
file(GLOB top RELATIVE ${CURRENT_PACKAGES_DIR} ${CURRENT_PACKAGES_DIR}/*)
list(REMOVE_ITEM top include share)
expect("unexpected folders: ${top}" NOT top)
file(GLOB_RECURSE installed RELATIVE ${CURRENT_PACKAGES_DIR}/include ${CURRENT_PACKAGES_DIR}/include/*)
file(GLOB_RECURSE written RELATIVE ${SOURCE_PATH}/include ${SOURCE_PATH}/include/*.hpp ${SOURCE_PATH}/include/*.ipp
     ${SOURCE_PATH}/include/*.inl ${SOURCE_PATH}/include/*.cu ${SOURCE_PATH}/include/*.cuh
     ${SOURCE_PATH}/include/*.cpp)
expect("the installed headers are not those of the library" installed STREQUAL written)

# A consumer finds it there, as the text of `usage` says.
file(WRITE ${WORK}/consumer/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES CXX)\n"
  "find_package(trireme CONFIG REQUIRED)\nadd_executable(consumer main.cpp)\n"
  "target_link_libraries(consumer PRIVATE trireme::trireme)\n")
file(WRITE ${WORK}/consumer/main.cpp
  "#include <trireme/trireme.hpp>\nint main() { return trireme::tensor<float>({2, 3}).size() == 6 ? 0 : 1; }\n")
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK}/consumer
  -B ${WORK}/consumer/build -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/consumer/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/consumer/build/consumer COMMAND_ERROR_IS_FATAL ANY)

# A consumer of trireme::cuda: with the feature cuda it compiles the kernels itself; where there is no CUDA it is told
# so in one sentence.
file(WRITE ${WORK}/consumer_cuda/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES CXX)\n"
  "find_package(trireme CONFIG REQUIRED COMPONENTS core cuda)\nadd_executable(consumer EXCLUDE_FROM_ALL main.cpp)\n"
  "target_link_libraries(consumer PRIVATE trireme::cuda)\n"
  "add_custom_target(one_file_of_kernels ALL DEPENDS \${CMAKE_CURRENT_BINARY_DIR}/trireme_cuda/low_rank.o)\n")
file(WRITE ${WORK}/consumer_cuda/main.cpp "int main() {}\n")
set(configure ${CMAKE_COMMAND} -G Ninja -S ${WORK}/consumer_cuda -B ${WORK}/consumer_cuda/build)
execute_process(COMMAND ${configure} -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR}
                        -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
                RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE told)
string(REGEX REPLACE "[ \n]+" " " told "${told}")
expect("without CUDA a consumer of trireme::cuda is told: ${told}"
       failed AND told MATCHES "trireme::cuda needs a CUDA toolkit, 12.1 or later, whose nvcc compiles a kernel here")
if(CUDA)
  set(FEATURES core cuda)
  set(BUILD ${WORK}/build_cuda)
  set(CURRENT_PACKAGES_DIR ${WORK}/packages_cuda/trireme)
  include(${PORT_DIRECTORY}/portfile.cmake)
  file(REMOVE_RECURSE ${WORK}/consumer_cuda/build)
  execute_process(COMMAND ${configure} -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/consumer_cuda/build COMMAND_ERROR_IS_FATAL ANY)
endif()
