# What a test inherits from a shell that has variables of this project and of Python: a ctest of one
# test, which prints its environment. Arguments: CTEST and FOLDER, an empty one.
file(WRITE ${FOLDER}/CTestTestfile.cmake
  "include(\"${CMAKE_CURRENT_LIST_DIR}/environment.cmake\")\nadd_test(Environment env)\n")
set(ENV{LSSAR_MAX_MODEL_LEN} 64)
set(ENV{LSSAR_NUM_CASES} 3)
set(ENV{PYTHONDONTWRITEBYTECODE} 1)
execute_process(COMMAND ${CTEST} --test-dir ${FOLDER} -V OUTPUT_VARIABLE printed)
if(printed MATCHES "LSSAR_MAX_MODEL_LEN|PYTHONDONTWRITEBYTECODE" OR
    NOT printed MATCHES "LSSAR_NUM_CASES=3")
  message(FATAL_ERROR "${printed}")
endif()
