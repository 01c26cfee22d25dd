// How often this process has called operator new.
#ifndef LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_
#define LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace lssar {

// A program that calls this has its operator new and delete replaced by ones that count.
int64_t NumAllocations();

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_
