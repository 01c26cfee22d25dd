#include "server/net/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace lssar {
namespace {

constexpr int64_t kOtherFiles = 256;

int64_t AsCount(rlim_t limit) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return limit == RLIM_INFINITY || limit > rlim_t(kMost) ? kMost : int64_t(limit);
}

}  // namespace

int64_t RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int64_t>::max();
  rlimit raised = limit;
  raised.rlim_cur = raised.rlim_max;
  const bool is_raised = setrlimit(RLIMIT_NOFILE, &raised) == 0;
  return AsCount(is_raised ? raised.rlim_cur : limit.rlim_cur);
}

int FitConnections(int max_connections, bool has_grpc, bool has_http, bool has_batches,
                   int64_t open_file_limit) {
  const int64_t http_files = has_batches ? 2 : 1;  // a connection may download a file
  const int64_t files_each = (has_grpc ? 2 : 0) + (has_http ? http_files : 0);
  if (files_each == 0) return max_connections;
  const int64_t fitting = (open_file_limit - kOtherFiles) / files_each;
  return int(std::clamp<int64_t>(fitting, 1, max_connections));
}

}  // namespace lssar
