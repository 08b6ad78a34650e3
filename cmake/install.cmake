include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Header-only: nothing depends on the architecture, so everything lives under share/, but for trireme::compiled.
set(TRIREME_CMAKE_DIR ${CMAKE_INSTALL_DATADIR}/cmake/trireme)

# Of an absolute folder CMake's export makes ${_IMPORT_PREFIX}//absolute/folder: it is said from the prefix on.
set(folder ${CMAKE_INSTALL_INCLUDEDIR})
if(IS_ABSOLUTE "${folder}")
  file(RELATIVE_PATH folder "${CMAKE_INSTALL_PREFIX}" "${folder}")
endif()
set(headers FILE_SET HEADERS DESTINATION ${folder})
set(fragments FILE_SET fragments DESTINATION ${folder})
install(TARGETS trireme EXPORT triremeTargets ${headers} ${fragments})
install(TARGETS trireme_mpi EXPORT triremeMpiTargets ${headers})
install(TARGETS trireme_cuda EXPORT triremeCudaTargets ${headers} ${fragments})
install(TARGETS trireme_nccl EXPORT triremeNcclTargets ${headers})
install(TARGETS trireme_torch EXPORT triremeTorchTargets ${headers} ${fragments})
install(TARGETS trireme_utf8proc EXPORT triremeUtf8procTargets ${headers})
install(TARGETS trireme_sentencepiece EXPORT triremeSentencepieceTargets ${headers})
install(TARGETS trireme_zlib EXPORT triremeZlibTargets ${headers})
install(TARGETS trireme_hdf5 EXPORT triremeHdf5Targets ${headers})
install(TARGETS trireme_pictures EXPORT triremePicturesTargets ${headers})
install(EXPORT triremeTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeMpiTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeCudaTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeNcclTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeTorchTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeUtf8procTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeSentencepieceTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeZlibTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeHdf5Targets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremePicturesTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
if(TRIREME_COMPILED)
  install(TARGETS trireme_compiled EXPORT triremeCompiledTargets)
  install(EXPORT triremeCompiledTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
  if(TARGET trireme_compiled_mpi)
    install(TARGETS trireme_compiled_mpi EXPORT triremeCompiledMpiTargets)
    install(EXPORT triremeCompiledMpiTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
  endif()
  if(TARGET trireme_compiled_torch)
    install(TARGETS trireme_compiled_torch EXPORT triremeCompiledTorchTargets)
    install(EXPORT triremeCompiledTorchTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
  endif()
endif()
# The bodies once more as sources, for builds that are not CMake (docs/quick_builds.md).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme FILES_MATCHING PATTERN *.cpp)

install(FILES ${CMAKE_CURRENT_LIST_DIR}/cuda.cmake ${CMAKE_CURRENT_LIST_DIR}/torch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/tokenizers.cmake
        DESTINATION ${TRIREME_CMAKE_DIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/triremeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/triremeConfig.cmake INSTALL_DESTINATION ${TRIREME_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Headers fit any architecture; a library fits the one that it was compiled for.
set(architecture ARCH_INDEPENDENT)
if(TRIREME_COMPILED)
  set(architecture "")
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ${architecture})
install(FILES ${PROJECT_BINARY_DIR}/triremeConfig.cmake ${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  DESTINATION ${TRIREME_CMAKE_DIR})

# trireme_pc_folders(folder): where a file of pkg-config in `folder` finds the prefix, and what lies below it. A relative
# way keeps the package movable; folders that are given as absolute ones (Nix has a prefix for each) stay as they are.
function(trireme_pc_folders folder)
  if(IS_ABSOLUTE "${folder}")
    set(TRIREME_PC_PREFIX "${CMAKE_INSTALL_PREFIX}" PARENT_SCOPE)
  else()
    file(RELATIVE_PATH up /${folder} /)  # folder may be lib/x86_64-linux-gnu/pkgconfig
    string(REGEX REPLACE "/$" "" up "${up}")
    set(TRIREME_PC_PREFIX "\${pcfiledir}/${up}" PARENT_SCOPE)
  endif()
  foreach(kind IN ITEMS INCLUDEDIR LIBDIR DATADIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
      set(TRIREME_PC_${kind} "${CMAKE_INSTALL_${kind}}" PARENT_SCOPE)
    else()
      set(TRIREME_PC_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

trireme_pc_folders(${CMAKE_INSTALL_DATADIR}/pkgconfig)
configure_file(${CMAKE_CURRENT_LIST_DIR}/trireme.pc.in ${PROJECT_BINARY_DIR}/trireme.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/trireme.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
if(TRIREME_COMPILED)
  trireme_pc_folders(${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/trireme-compiled.pc.in ${PROJECT_BINARY_DIR}/trireme-compiled.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/trireme-compiled.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/trireme)

# `cpack -G DEB` in the build folder makes a package for Debian, with headers alone unless TRIREME_COMPILED is on.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME libtrireme-dev)
  set(CPACK_PACKAGE_VENDOR "")
  set(CPACK_PACKAGE_CONTACT "Trireme maintainers")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "C++20 headers for distributed training, configured at compile time")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= 3.4), libfmt-dev (>= 9)")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS
      "libopenmpi-dev, libtorch-dev, libutf8proc-dev, libpcre2-dev, libsentencepiece-dev, zlib1g-dev")
  if(NOT TRIREME_COMPILED)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  endif()
  include(CPack)
endif()
