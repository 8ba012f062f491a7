# SPDX-License-Identifier: Apache-2.0
# Imports libtorch as the target hyper_parallel::torch, without Caffe2's config (which stops on a CUDA wheel without a CUDA toolkit).
# Looked for in HYPER_PARALLEL_TORCH_DIR alone, or else in every CMAKE_PREFIX_PATH entry (a libtorch folder or its share/cmake), those of the
# environment, and <source>/.venv.
set(HYPER_PARALLEL_TORCH_VERSION 2.13 CACHE STRING "Supported libtorch minor version")
set(HYPER_PARALLEL_TORCH_DIR "" CACHE PATH "Folder that has libtorch's include/ and lib/")

set(_candidates ${HYPER_PARALLEL_TORCH_DIR})
if(NOT HYPER_PARALLEL_TORCH_DIR)
  string(REPLACE ":" ";" _environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _environment_prefixes)
    list(APPEND _candidates ${_prefix} ${_prefix}/../.. ${_prefix}/../../.. ${_prefix}/torch)
  endforeach()
  file(GLOB _venv_torch ${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch)
  list(APPEND _candidates ${_venv_torch})
endif()

set(_torch_dir "")
foreach(_candidate IN LISTS _candidates)
  if(NOT _torch_dir AND EXISTS ${_candidate}/include/ATen/core/Tensor.h AND EXISTS ${_candidate}/lib/libtorch_cpu.so)
    get_filename_component(_torch_dir ${_candidate} REALPATH)
  endif()
endforeach()
if(NOT _torch_dir AND HYPER_PARALLEL_TORCH_DIR)
  message(FATAL_ERROR "HYPER_PARALLEL_TORCH_DIR: no libtorch in ${HYPER_PARALLEL_TORCH_DIR} "
                      "(expected include/ATen/core/Tensor.h and lib/libtorch_cpu.so)")
elseif(NOT _torch_dir)
  message(FATAL_ERROR "libtorch ${HYPER_PARALLEL_TORCH_VERSION} not found. Run tools/setup.sh (installs it in .venv), or pass "
                      "-DCMAKE_PREFIX_PATH=<libtorch folder>. Looked in: ${_candidates}")
endif()

set(_version_header ${_torch_dir}/include/torch/headeronly/version.h)
if(NOT EXISTS ${_version_header})
  message(FATAL_ERROR "libtorch: built for ${HYPER_PARALLEL_TORCH_VERSION}, found an older one in ${_torch_dir} (no torch/headeronly/version.h)")
endif()
foreach(_part MAJOR MINOR PATCH)
  file(STRINGS ${_version_header} _line REGEX "^#define TORCH_VERSION_${_part} ")
  string(REGEX MATCH "[0-9]+" _torch_${_part} "${_line}")
endforeach()
set(HYPER_PARALLEL_TORCH_FOUND_VERSION ${_torch_MAJOR}.${_torch_MINOR}.${_torch_PATCH})
if(NOT "${_torch_MAJOR}.${_torch_MINOR}" STREQUAL HYPER_PARALLEL_TORCH_VERSION)
  message(FATAL_ERROR "libtorch: built for ${HYPER_PARALLEL_TORCH_VERSION}, found ${HYPER_PARALLEL_TORCH_FOUND_VERSION} in ${_torch_dir}")
endif()
message(STATUS "libtorch ${HYPER_PARALLEL_TORCH_FOUND_VERSION} in ${_torch_dir}")

if(NOT TARGET hyper_parallel::torch)
  add_library(hyper_parallel::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(hyper_parallel::torch SYSTEM INTERFACE ${_torch_dir}/include ${_torch_dir}/include/torch/csrc/api/include)
  target_link_directories(hyper_parallel::torch INTERFACE ${_torch_dir}/lib)
  target_link_libraries(hyper_parallel::torch INTERFACE
    "-Wl,--no-as-needed" ${_torch_dir}/lib/libtorch_cpu.so ${_torch_dir}/lib/libc10.so "-Wl,--as-needed")
  target_compile_definitions(hyper_parallel::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
endif()
set(HYPER_PARALLEL_TORCH_LIBRARY_DIR ${_torch_dir}/lib)
