// --config FILE: the options that come of it are in their ranges, or there is an error to print.
// Input   the file
#include <string>

#include "runtime/limits.h"
#include "server/config/limits.h"
#include "server/config/options.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

bool IsIn(int value, limits::Range<int> range) { return value >= range.min && value <= range.max; }

}  // namespace

LSSAR_FUZZ_TARGET(toml_config) {
  WriteFuzzFile("server.toml", TextOf(bytes));
  static const std::string path = FuzzFolder() + "/server.toml";
  const char* const arguments[] = {"lssar-server", "--model", "fuzz", "--config", path.c_str()};
  CommandLine line = ParseCommandLine(int(std::size(arguments)), arguments);
  if (line.exit_code) {
    LSSAR_CHECK((*line.exit_code == 0 || *line.exit_code == 2) && !line.text.empty());
    return;
  }
  ServerOptions& options = line.options;
  const bool is_known =
      options.listen == "0.0.0.0:50051" || options.listen == ServerOptions().listen;
  if (FaultIsPlanted() && !is_known) options.max_calls = 0;
  LSSAR_CHECK(options.model.directory == "fuzz");  // flags override the file
  LSSAR_CHECK(IsIn(options.max_calls, limits::kMaxCalls));
  LSSAR_CHECK(IsIn(options.connection.max_calls, limits::kMaxCalls));
  LSSAR_CHECK(IsIn(options.model.engine.max_model_len, limits::kMaxModelLen));
  LSSAR_CHECK(options.drain_timeout >= absl::ZeroDuration() &&
              options.drain_timeout <= absl::Hours(1));
  LSSAR_CHECK(options.stream.buffer_bytes >= 4 << 10 && options.stream.buffer_bytes <= 1 << 30);
}

}  // namespace lssar
