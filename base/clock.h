// The clock of requests, deadlines and steps.
#ifndef LSSAR_BASE_CLOCK_H_
#define LSSAR_BASE_CLOCK_H_

#include <chrono>

namespace lssar {

using Clock = std::chrono::steady_clock;

}  // namespace lssar

#endif  // LSSAR_BASE_CLOCK_H_
