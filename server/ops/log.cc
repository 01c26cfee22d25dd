#include "server/ops/log.h"

#include <poll.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/str_cat.h"
#include "base/thread_name.h"

namespace lssar {
namespace {

constexpr const char* kPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l",%v})";
// Between two looks of Flush.
constexpr auto kFlushInterval = std::chrono::milliseconds(1);

std::unique_ptr<spdlog::formatter> MakeFormatter() {
  return std::make_unique<spdlog::pattern_formatter>(kPattern, spdlog::pattern_time_type::utc);
}

// Blocks while stderr's reader takes nothing. False: it cannot be written.
bool WriteToStderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t num_written = write(STDERR_FILENO, text.data(), text.size());
    if (num_written >= 0) {
      text.remove_prefix(size_t(num_written));
    } else if (errno == EAGAIN) {  // another process may have made the pipe non-blocking
      pollfd writable = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Used by the writer's thread only. Reports the lines that were dropped before the line it writes.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  // `num_overrun`: lines that have left the full queue so far.
  explicit StderrSink(std::function<int64_t()> num_overrun)
      : base_sink(MakeFormatter()), num_overrun_(std::move(num_overrun)) {}

  std::atomic<int64_t> num_taken = 0, num_failed = 0;

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    // Counted when it has been written: the message about lost lines needs a reader, too.
    const int64_t num_dropped = num_overrun_() + num_failed;
    if (num_dropped > num_reported_) {
      const std::string text =
          StrCat(R"("event":"log lines dropped","count":)", num_dropped - num_reported_);
      if (Write({line.time, {}, "lssar", spdlog::level::warn, text})) num_reported_ = num_dropped;
    }
    if (!Write(line)) ++num_failed;
    ++num_taken;
  }
  void flush_() override {}

  bool Write(const spdlog::details::log_msg& line) {
    spdlog::memory_buf_t text;
    formatter_->format(line, text);
    return WriteToStderr({text.data(), text.size()});
  }

  const std::function<int64_t()> num_overrun_;
  int64_t num_reported_ = 0;
};

// The queue of the process's log lines, and the thread that writes them. Never destroyed: its
// thread may be stuck in a write.
struct LogWriter {
  std::shared_ptr<spdlog::details::thread_pool> pool =
      std::make_shared<spdlog::details::thread_pool>(kMaxQueuedLogLines, 1,
                                                     [] { NameThisThread("log"); });
  std::shared_ptr<StderrSink> sink = std::make_shared<StderrSink>([this] { return NumOverrun(); });
  std::atomic<int64_t> num_given = 0;

  int64_t NumOverrun() const { return int64_t(pool->overrun_counter()); }
};

LogWriter& Writer() {
  static LogWriter& writer = *new LogWriter;
  return writer;
}

}  // namespace

Log::Log(std::string_view level)
    : logger_(std::make_shared<spdlog::async_logger>(
          "lssar", Writer().sink, Writer().pool, spdlog::async_overflow_policy::overrun_oldest)) {
  logger_->set_level(spdlog::level::from_str(std::string(level)));
}

Log::~Log() { Flush(); }

bool Log::Flush() {
  const LogWriter& writer = Writer();
  const int64_t num_given = writer.num_given;
  const Clock::time_point end = Clock::now() + kMaxLogFlushTime;
  while (writer.sink->num_taken + writer.NumOverrun() < num_given) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kFlushInterval);
  }
  return true;
}

int64_t Log::NumDroppedLines() { return Writer().NumOverrun() + Writer().sink->num_failed; }

void Log::Info(std::string_view event, const LogFields& fields) const {
  Write(spdlog::level::info, event, fields);
}
void Log::Warning(std::string_view event, const LogFields& fields) const {
  Write(spdlog::level::warn, event, fields);
}
void Log::Error(std::string_view event, const LogFields& fields) const {
  Write(spdlog::level::err, event, fields);
}

void Log::Write(int level, std::string_view event, const LogFields& fields) const {
  const auto severity = static_cast<spdlog::level::level_enum>(level);
  if (!logger_->should_log(severity)) return;
  LogFields line = {{"event", std::string(event)}};
  line.update(fields);
  // Paths and messages may contain bytes that are not UTF-8; dump replaces them instead of
  // throwing. In ASCII: a line that is shown in a terminal has no control characters.
  const std::string text =
      line.dump(-1, ' ', /*ensure_ascii=*/true, LogFields::error_handler_t::replace);
  ++Writer().num_given;
  logger_->log(severity, spdlog::string_view_t(text.data() + 1, text.size() - 2));
}

}  // namespace lssar
