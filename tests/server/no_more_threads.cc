#include "tests/server/no_more_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace lssar {
namespace {

std::atomic<bool> has_no_more = false;

}  // namespace

NoMoreThreads::NoMoreThreads() { has_no_more = true; }

NoMoreThreads::~NoMoreThreads() { has_no_more = false; }

}  // namespace lssar

#if !LSSAR_SANITIZED
// Stands before the C library's, also for std::thread of the C++ library.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return lssar::has_no_more ? EAGAIN : create(thread, attributes, run, argument);
}
#endif
