// What the log writes to stderr. It has a thread of its own.
#ifndef LSSAR_TESTS_SERVER_CAPTURED_LOG_H_
#define LSSAR_TESTS_SERVER_CAPTURED_LOG_H_

#include <gtest/gtest.h>

#include <string>

#include "server/ops/log.h"

namespace lssar {

// Waits until every line given so far has been written, longer than Flush does on a busy machine.
inline void FlushLog() {
  while (!Log::Flush()) continue;
}

// Captures the lines from now on.
inline void CaptureLog() {
  FlushLog();
  testing::internal::CaptureStderr();
}
// Ends it. -> the lines
inline std::string CapturedLog() {
  FlushLog();
  return testing::internal::GetCapturedStderr();
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_CAPTURED_LOG_H_
