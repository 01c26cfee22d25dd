// Number of operator new calls of this process so far.
#ifndef LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_
#define LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace lssar {

// Linking this function replaces operator new and delete of the program with counting versions.
int64_t NumAllocations();

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_COUNT_ALLOCATIONS_H_
