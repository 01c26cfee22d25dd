// Names of threads, as `top -H`, perf and debuggers show them.
#ifndef LSSAR_BASE_THREAD_NAME_H_
#define LSSAR_BASE_THREAD_NAME_H_

#include <pthread.h>

namespace lssar {

// `name`  at most 15 bytes: the kernel keeps no more, and refuses longer ones
inline void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace lssar

#endif  // LSSAR_BASE_THREAD_NAME_H_
