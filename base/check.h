// LSSAR_CHECK ends the process with file, line and expression if a condition is false, in every
// build. Debian 12's Abseil has no ABSL_CHECK.
#ifndef LSSAR_BASE_CHECK_H_
#define LSSAR_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define LSSAR_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // LSSAR_BASE_CHECK_H_
