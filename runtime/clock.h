// The clock of requests, deadlines and steps.
#ifndef LSSAR_RUNTIME_CLOCK_H_
#define LSSAR_RUNTIME_CLOCK_H_

#include <chrono>

namespace lssar {

using Clock = std::chrono::steady_clock;

}  // namespace lssar

#endif  // LSSAR_RUNTIME_CLOCK_H_
