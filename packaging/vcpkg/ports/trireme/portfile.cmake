# An overlay port: it builds from the checkout that it lies in.
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

if(NOT "compiled" IN_LIST FEATURES)
    set(VCPKG_BUILD_TYPE release) # header-only port
endif()

vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS
                     FEATURES mpi TRIREME_MPI cuda TRIREME_CUDA compiled TRIREME_COMPILED torch TRIREME_TORCH
                              utf8proc TRIREME_UTF8PROC pcre2 TRIREME_PCRE2
                              sentencepiece TRIREME_SENTENCEPIECE zlib TRIREME_ZLIB hdf5 TRIREME_HDF5
                              pictures TRIREME_PICTURES)

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DTRIREME_BUILD_TESTS=OFF
        -DTRIREME_BUILD_EXAMPLES=OFF
        -DTRIREME_BUILD_BENCHMARKS=OFF
        -DTRIREME_INSTALL=ON
        ${FEATURE_OPTIONS}
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/trireme)
vcpkg_fixup_pkgconfig()

if(NOT "compiled" IN_LIST FEATURES)
    file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/debug")
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
                    "${CURRENT_PACKAGES_DIR}/share/cmake" "${CURRENT_PACKAGES_DIR}/share/licenses")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
