// A process to which the system gives no more threads.
#ifndef LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_
#define LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_

namespace lssar {

// While it lives, pthread_create fails with EAGAIN in the whole program, as where the system's
// limit is reached; memory is not touched. Not for sanitized programs, whose pthread_create is
// the sanitizer's.
class NoMoreThreads {
 public:
  NoMoreThreads();
  ~NoMoreThreads();
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_NO_MORE_THREADS_H_
