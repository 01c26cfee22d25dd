// A process to which the system gives no more threads.
#ifndef LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_
#define LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace lssar {

// While it lives, no address space is left for a thread's stack; what malloc holds already serves
// small objects. Not for sanitized programs, nor where a thread has ended before: glibc keeps its
// stack for the next one.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    const rlimit none = {.rlim_cur = 1, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  }
  ~NoMoreThreads() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_
