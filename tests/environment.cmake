# Read by ctest before it runs a test: what tests inherit from the user's shell.

# A proxy of the environment is for PyPI, not for the servers of tests on this machine.
set(ENV{no_proxy} "127.0.0.1,localhost,::1")
set(ENV{NO_PROXY} "$ENV{no_proxy}")

# LSSAR_ variables set flags of the programs. Only those that steer tests reach a test; the ones
# that a test needs are its ENVIRONMENT. Python's change its programs: with PYTHONDONTWRITEBYTECODE
# each start compiles every package that it imports (Ray 4 s instead of 1).
set(steering "NUM_(BYTES|CASES|MUTANTS|STEPS)|PLANTED_FAULT|RECORD_WIRE.*|SEED|TWO_PLANES_ROWS")
execute_process(COMMAND env OUTPUT_VARIABLE variables)
string(REGEX MATCHALL "(^|\n)(LSSAR_|PYTHON)[A-Za-z0-9_]*=" variables "${variables}")
foreach(variable IN LISTS variables)
  string(REGEX REPLACE "[\n=]" "" variable "${variable}")
  if(NOT variable MATCHES "^LSSAR_(${steering})$")
    unset(ENV{${variable}})
  endif()
endforeach()
