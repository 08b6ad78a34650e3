include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Header-only: nothing depends on the architecture, so everything lives under share/, but for trireme::compiled.
set(TRIREME_CMAKE_DIR ${CMAKE_INSTALL_DATADIR}/cmake/trireme)

install(TARGETS trireme EXPORT triremeTargets FILE_SET HEADERS FILE_SET fragments)
install(TARGETS trireme_mpi EXPORT triremeMpiTargets FILE_SET HEADERS)
install(TARGETS trireme_cuda EXPORT triremeCudaTargets FILE_SET HEADERS FILE_SET fragments)
install(TARGETS trireme_nccl EXPORT triremeNcclTargets FILE_SET HEADERS)
install(TARGETS trireme_torch EXPORT triremeTorchTargets FILE_SET HEADERS FILE_SET fragments)
install(TARGETS trireme_utf8proc EXPORT triremeUtf8procTargets FILE_SET HEADERS)
install(TARGETS trireme_sentencepiece EXPORT triremeSentencepieceTargets FILE_SET HEADERS)
install(EXPORT triremeTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeMpiTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeCudaTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeNcclTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeTorchTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeUtf8procTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
install(EXPORT triremeSentencepieceTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
if(TRIREME_COMPILED)
  install(TARGETS trireme_compiled EXPORT triremeCompiledTargets)
  install(EXPORT triremeCompiledTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
endif()
install(FILES ${CMAKE_CURRENT_LIST_DIR}/cuda.cmake ${CMAKE_CURRENT_LIST_DIR}/torch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/tokenizers.cmake
        DESTINATION ${TRIREME_CMAKE_DIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/triremeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/triremeConfig.cmake INSTALL_DESTINATION ${TRIREME_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/triremeConfig.cmake ${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  DESTINATION ${TRIREME_CMAKE_DIR})

configure_file(${CMAKE_CURRENT_LIST_DIR}/trireme.pc.in ${PROJECT_BINARY_DIR}/trireme.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/trireme.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
if(TRIREME_COMPILED)
  # The way from the library's folder, which may be lib/x86_64-linux-gnu, to the prefix.
  file(RELATIVE_PATH TRIREME_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/trireme-compiled.pc.in ${PROJECT_BINARY_DIR}/trireme-compiled.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/trireme-compiled.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/trireme)
