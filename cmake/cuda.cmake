# LSSAR_WITH_CUDA: AUTO builds the cuda backend if nvcc is found, ON requires nvcc, OFF ignores it.
set(LSSAR_WITH_CUDA AUTO CACHE STRING "The cuda backend: AUTO, ON or OFF")
set_property(CACHE LSSAR_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LSSAR_CUDA_ENABLED OFF)
if(NOT LSSAR_WITH_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LSSAR_WITH_CUDA is ${LSSAR_WITH_CUDA}, must be AUTO, ON or OFF")
endif()

# Not with sanitizers: they check host code only, and the emulation runs the same kernels there.
if(LSSAR_WITH_CUDA STREQUAL "ON" OR (LSSAR_WITH_CUDA STREQUAL "AUTO" AND NOT LSSAR_SANITIZE))
  find_program(LSSAR_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
    PATH_SUFFIXES bin)
  if(LSSAR_NVCC)
    set(LSSAR_CUDA_ENABLED ON)
  elseif(LSSAR_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LSSAR_WITH_CUDA is ON but nvcc was not found: install CUDA 12.4 to 13")
  endif()
endif()

if(LSSAR_CUDA_ENABLED)
  set(CMAKE_CUDA_COMPILER ${LSSAR_NVCC})
  # Machine code for 8.x and 9.x; PTX for newer devices, whose driver compiles it at the first
  # start. The tests of tests/ptx run that PTX.
  set(LSSAR_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "Target architectures of the kernels")
  set(CMAKE_CUDA_ARCHITECTURES ${LSSAR_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
    message(FATAL_ERROR "nvcc is ${CMAKE_CUDA_COMPILER_VERSION}; the kernels need "
      "CUDA 12.4 or later")
  endif()
  find_package(CUDAToolkit REQUIRED)
  if(LSSAR_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${LSSAR_CCACHE_LAUNCHER})
  endif()
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  # Only MulAdd contracts products and sums, as on the CPU.
  # A register spill is an error.
  set(LSSAR_NVCC_OPTIONS -fmad=false --expt-relaxed-constexpr
    -Xptxas=-warn-spills,-Werror
    -Xcompiler=-Wall,-Wextra
    $<$<BOOL:${LSSAR_WERROR}>:--Werror=all-warnings>)
endif()
message(STATUS "cuda backend: ${LSSAR_CUDA_ENABLED}")
