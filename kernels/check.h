// CHECK: a bug ends the process with place and expression, in every build. DCHECK: debug builds
// only, for lane loops. (absl's own came after the version that Debian 12 has.)
#ifndef LSSAR_KERNELS_CHECK_H_
#define LSSAR_KERNELS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define LSSAR_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#ifdef NDEBUG
#define LSSAR_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define LSSAR_DCHECK(condition) LSSAR_CHECK(condition)
#endif

#endif  // LSSAR_KERNELS_CHECK_H_
