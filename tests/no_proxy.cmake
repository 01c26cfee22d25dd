# Read by ctest before it runs a test: a proxy of the environment is for PyPI, not for the servers
# of tests on this machine.
set(ENV{no_proxy} "127.0.0.1,localhost,::1")
set(ENV{NO_PROXY} "$ENV{no_proxy}")
