# xgrammar, the library of structured output: the target lssar::xgrammar. Without it the server
# refuses a request's constraint by name.
set(LSSAR_XGRAMMAR AUTO CACHE STRING
  "Structured output by xgrammar: ON, OFF, or AUTO where deploy/xgrammar.sh has built it")
add_library(lssar_xgrammar INTERFACE)
add_library(lssar::xgrammar ALIAS lssar_xgrammar)
execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/deploy/xgrammar.sh --prefix
  OUTPUT_VARIABLE LSSAR_XGRAMMAR_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(LSSAR_HAS_XGRAMMAR OFF)
if(LSSAR_XGRAMMAR STREQUAL "OFF")
elseif(EXISTS ${LSSAR_XGRAMMAR_PREFIX}/lib/libxgrammar.a)
  set(LSSAR_HAS_XGRAMMAR ON)
  target_include_directories(lssar_xgrammar SYSTEM INTERFACE ${LSSAR_XGRAMMAR_PREFIX}/include)
  target_link_libraries(lssar_xgrammar INTERFACE ${LSSAR_XGRAMMAR_PREFIX}/lib/libxgrammar.a
    Threads::Threads)
elseif(LSSAR_XGRAMMAR STREQUAL "ON")
  message(FATAL_ERROR "LSSAR_XGRAMMAR is ON, and there is no ${LSSAR_XGRAMMAR_PREFIX}: run "
    "sh deploy/xgrammar.sh")
endif()
message(STATUS "Structured output by xgrammar: ${LSSAR_HAS_XGRAMMAR}")
