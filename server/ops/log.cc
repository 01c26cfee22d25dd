#include "server/ops/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace lssar {

Log::Log(std::string_view level)
    : logger_(std::make_shared<spdlog::logger>("lssar",
                                               std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  logger_->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l",%v})",
                       spdlog::pattern_time_type::utc);
  logger_->set_level(spdlog::level::from_str(std::string(level)));
}

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
  // throwing.
  const std::string text = line.dump(-1, ' ', false, LogFields::error_handler_t::replace);
  logger_->log(severity, "{}", text.substr(1, text.size() - 2));
}

}  // namespace lssar
