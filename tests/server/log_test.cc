#include "server/ops/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "tests/server/captured_log.h"

namespace lssar {
namespace {

// stderr is a pipe of one page.
class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_GT(fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
    read_end_ = ends[0];
    saved_ = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    signal(SIGPIPE, SIG_IGN);
  }
  ~LogTest() override { Restore(); }

  // Closes the write end: a reader comes to its end.
  void Restore() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    saved_ = -1;
  }

  std::string ReadToEnd() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(read_end_, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, size_t(n));
    }
    return text;
  }

  int read_end_ = -1, saved_ = -1;
};

TEST_F(LogTest, AReaderThatStopsHoldsUpNobodyAndHearsWhatItMissed) {
  const Log log("info");
  const int64_t before = Log::NumDroppedLines();
  constexpr int kNumLines = 3 * kMaxQueuedLogLines;
  for (int i = 0; i < kNumLines; ++i) log.Info("line", {{"number", i}});
  EXPECT_FALSE(Log::Flush());
  const int64_t num_dropped = Log::NumDroppedLines() - before;
  // The queue holds its lines, the pipe at most 4096 bytes, and one line is being written.
  EXPECT_LE(num_dropped, kNumLines - kMaxQueuedLogLines);
  EXPECT_GE(num_dropped, kNumLines - kMaxQueuedLogLines - 4096 / 50 - 1);

  std::string text;
  std::thread reader([&] { text = ReadToEnd(); });
  FlushLog();
  Restore();
  reader.join();
  close(read_end_);
  int num_lines = 0;
  int64_t num_reported = 0;
  std::string last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["event"] == "line") {
      ++num_lines;
      last = json["number"].dump();
    } else {
      EXPECT_EQ(json["event"], "log lines dropped");
      EXPECT_EQ(json["level"], "warning");
      num_reported += json["count"].get<int64_t>();
    }
  }
  EXPECT_EQ(num_lines + num_dropped, kNumLines);
  EXPECT_EQ(num_reported, num_dropped);
  EXPECT_EQ(last, std::to_string(kNumLines - 1));
}

TEST_F(LogTest, AReaderThatHasGoneIsNoErrorAndTheNextOneHearsOfIt) {
  const int64_t before = Log::NumDroppedLines();
  const Log log("info");
  close(read_end_);
  log.Info("lost", {{"number", 1}});
  log.Info("lost", {{"number", 2}});
  FlushLog();
  EXPECT_EQ(Log::NumDroppedLines() - before, 2);
  Restore();
  CaptureLog();
  log.Info("found", {{"number", 3}});
  const std::string text = CapturedLog();
  EXPECT_THAT(text, ::testing::HasSubstr(R"("event":"log lines dropped","count":2})"));
  EXPECT_THAT(text, ::testing::HasSubstr(R"("number":3})"));
}

}  // namespace
}  // namespace lssar
