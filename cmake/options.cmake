# Compiler flags of every target in this tree: link lssar::options.
add_library(lssar_options INTERFACE)
add_library(lssar::options ALIAS lssar_options)
target_include_directories(lssar_options INTERFACE ${PROJECT_SOURCE_DIR})
# Kernels choose fused multiply-add themselves (MulAdd). If the compiler contracted expressions,
# bits would differ between builds.
target_compile_options(lssar_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off -fno-omit-frame-pointer
  # GCC takes the sources of a unity build for headers.
  $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
  $<$<BOOL:${LSSAR_WERROR}>:-Werror>)
target_compile_definitions(lssar_options INTERFACE LSSAR_VERSION="${PROJECT_VERSION}")
if(LSSAR_SANITIZE)
  target_compile_options(lssar_options INTERFACE -fsanitize=${LSSAR_SANITIZE})
  target_link_options(lssar_options INTERFACE -fsanitize=${LSSAR_SANITIZE})
  if(LSSAR_SANITIZE STREQUAL "address")
    target_compile_options(lssar_options INTERFACE
      -fsanitize=undefined -fno-sanitize-recover=undefined)
    target_link_options(lssar_options INTERFACE -fsanitize=undefined)
  endif()
endif()

# For kernels and for tests that compute as much as what they test.
if(NOT LSSAR_SANITIZE)
  set(LSSAR_COMPUTE_OPTIONS $<$<CONFIG:Release,RelWithDebInfo>:-O3>)
endif()
# Kernels for one set compile in 0.4 of the time. Such programs stay on this machine.
set(LSSAR_INSTRUCTION_SET all CACHE STRING
  "Instruction sets of the CPU kernels: all, or native, which is this machine's best")

# Paths within the tree are relative in the cache, so that every checkout shares its objects.
find_program(LSSAR_CCACHE ccache)
if(LSSAR_CCACHE)
  set(LSSAR_CCACHE_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${LSSAR_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${LSSAR_CCACHE_LAUNCHER})
  endif()
endif()
# Eight sources in one compilation take a third of the time that they take by themselves: most of
# it is the headers of JSON, gRPC and Abseil, and the templates in them. Sixteen take less, and up
# to 1.8 GB. Only where CMAKE_UNITY_BUILD is on, as in the presets release and ci.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
find_program(LSSAR_LLD ld.lld)
if(LSSAR_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# Adds the static library lssar_<name>. Sources are listed by hand.
function(lssar_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(lssar_${name} STATIC ${arg_SOURCES})
  add_library(lssar::${name} ALIAS lssar_${name})
  target_link_libraries(lssar_${name} PUBLIC ${arg_DEPS} PRIVATE lssar::options)
  target_include_directories(lssar_${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# Multiplies the named variable by five in sanitized builds, which run slower.
function(lssar_scale_timeout variable)
  if(LSSAR_SANITIZE)
    math(EXPR scaled "${${variable}} * 5")
    set(${variable} ${scaled} PARENT_SCOPE)
  endif()
endfunction()

# Sets the timeout in seconds of a test made by add_test; sanitized builds get five times as long.
function(lssar_test_timeout test seconds)
  lssar_scale_timeout(seconds)
  set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
endfunction()

# ctest begins the tests of the largest cost first, also in a build that has no times of its own.
# `seconds`: about what the test takes. For those of 10 and more.
function(lssar_test_cost test seconds)
  set_tests_properties(${test} PROPERTIES COST ${seconds})
endfunction()

# Adds a GoogleTest program; each of its tests becomes one ctest case. GPU: some run on the GPU, if
# this machine has one, one after another then: they tell its free memory.
function(lssar_test name)
  cmake_parse_arguments(arg "GPU" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main lssar::options)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 400)
  endif()
  lssar_scale_timeout(arg_TIMEOUT)
  set(lock)
  if(arg_GPU AND LSSAR_CUDA_ENABLED AND EXISTS /dev/nvidiactl)
    set(lock RESOURCE_LOCK gpu)
  endif()
  # Test parameters have names; printing their bytes in the test name would not help.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" ${lock})
endfunction()

# lssar_server_process_test(NAME FILE SECONDS [SERVER TARGET])
# A Python test of a server program as a process (tests/support/server_process.py), with Debian's
# own interpreter whatever else is first in PATH.
function(lssar_server_process_test name file seconds)
  cmake_parse_arguments(arg "" "SERVER" "" ${ARGN})
  if(NOT arg_SERVER)
    set(arg_SERVER lssar-server)
  endif()
  add_test(NAME ${name} COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/${file}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(variables
    PYTHONPATH=${PROJECT_SOURCE_DIR}/tests/support
    LSSAR_SERVER=$<TARGET_FILE:${arg_SERVER}>
    LSSAR_VENVS=${PROJECT_BINARY_DIR}/venvs
    LSSAR_SCREENSHOTS=${PROJECT_BINARY_DIR}/screenshots
    LSSAR_SANITIZED=$<BOOL:${LSSAR_SANITIZE}>)
  set_tests_properties(${name} PROPERTIES LABELS grpc ENVIRONMENT "${variables}")
  lssar_test_timeout(${name} ${seconds})
endfunction()
