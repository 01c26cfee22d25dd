// Writes JSON lines to stderr. Lines hold counts, times, codes and names, never text of prompts or
// outputs.
#ifndef LSSAR_SERVER_OPS_LOG_H_
#define LSSAR_SERVER_OPS_LOG_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}  // namespace spdlog

namespace lssar {

// Fields keep their order: {"time": ..., "level": ..., "event": ..., <fields>}.
using LogFields = nlohmann::ordered_json;

// Threads  any; lines do not interleave
class Log {
 public:
  // Writes lines of `level` and above: info | warning | error | off.
  explicit Log(std::string_view level);

  void Info(std::string_view event, const LogFields& fields) const;
  void Warning(std::string_view event, const LogFields& fields) const;
  void Error(std::string_view event, const LogFields& fields) const;

 private:
  void Write(int level, std::string_view event, const LogFields& fields) const;

  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_LOG_H_
