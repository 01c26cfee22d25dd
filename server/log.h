// JSON lines on stderr. Never prompt or output text: counts, times, codes and names only.
#ifndef LSSAR_SERVER_LOG_H_
#define LSSAR_SERVER_LOG_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}  // namespace spdlog

namespace lssar {

// In the order written: {"time": ..., "level": ..., "event": ..., <fields>}.
using LogFields = nlohmann::ordered_json;

// Threads  any; a line is written whole
class Log {
 public:
  // `level`: the least severe line: debug | info | warning | error | off.
  explicit Log(std::string_view level);

  void Debug(std::string_view event, const LogFields& fields) const;
  void Info(std::string_view event, const LogFields& fields) const;
  void Warning(std::string_view event, const LogFields& fields) const;
  void Error(std::string_view event, const LogFields& fields) const;

 private:
  void Write(int level, std::string_view event, const LogFields& fields) const;

  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_LOG_H_
