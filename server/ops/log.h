// Writes JSON lines to stderr. Lines hold counts, times, codes and names, never text of prompts or
// outputs.
#ifndef LSSAR_SERVER_OPS_LOG_H_
#define LSSAR_SERVER_OPS_LOG_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

namespace spdlog {
class logger;
}  // namespace spdlog

namespace lssar {

// Fields keep their order: {"time": ..., "level": ..., "event": ..., <fields>}.
using LogFields = nlohmann::ordered_json;

// Lines that wait for stderr's reader. Beyond it the oldest is dropped, and counted.
inline constexpr int kMaxQueuedLogLines = 4096;
inline constexpr auto kMaxLogFlushTime = std::chrono::seconds(1);

// All Logs of a process share one queue and one thread, which writes it to stderr: nothing else
// waits for the reader of the log. When lines were dropped, a line "log lines dropped" with their
// count comes before the next one.
//
// Threads  any; lines do not interleave
class Log {
 public:
  // Writes lines of `level` and above: info | warning | error | off.
  explicit Log(std::string_view level);
  ~Log();  // calls Flush

  void Info(std::string_view event, const LogFields& fields) const;
  void Warning(std::string_view event, const LogFields& fields) const;
  void Error(std::string_view event, const LogFields& fields) const;

  // Waits until every line given so far has been written or dropped, at most kMaxLogFlushTime.
  // False: stderr takes no more.
  static bool Flush();

  // Since the start: left the full queue, or stderr could not be written.
  static int64_t NumDroppedLines();

 private:
  void Write(int level, std::string_view event, const LogFields& fields) const;

  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_LOG_H_
