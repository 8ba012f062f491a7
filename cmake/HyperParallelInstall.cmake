# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, static libraries, the binary, and a package for find_package(hyper_parallel).
include(CMakePackageConfigHelpers)
set(_package_dir lib/cmake/hyper_parallel)

install(DIRECTORY hyper_parallel/ DESTINATION include/hyper_parallel FILES_MATCHING PATTERN "*.h" PATTERN detail EXCLUDE PATTERN cli EXCLUDE PATTERN "*pch.h" EXCLUDE)
install(TARGETS hyper-parallel RUNTIME DESTINATION bin)
install(EXPORT hyper_parallelTargets NAMESPACE hyper_parallel:: DESTINATION ${_package_dir})

get_property(_libraries GLOBAL PROPERTY HYPER_PARALLEL_LIBRARIES)
list(TRANSFORM _libraries REPLACE "^hyper_parallel_" "" OUTPUT_VARIABLE HYPER_PARALLEL_FOLDERS)
configure_package_config_file(cmake/hyper_parallelConfig.cmake.in ${PROJECT_BINARY_DIR}/hyper_parallelConfig.cmake INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hyper_parallelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hyper_parallelConfig.cmake ${PROJECT_BINARY_DIR}/hyper_parallelConfigVersion.cmake
              cmake/HyperParallelTorch.cmake DESTINATION ${_package_dir})
