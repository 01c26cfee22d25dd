// GetInfo and GetStats, which are answered at once.
#ifndef LSSAR_SERVER_API_SERVER_INFO_H_
#define LSSAR_SERVER_API_SERVER_INFO_H_

#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/loaded_model.h"
#include "server/ops/metrics.h"

namespace lssar {

// The served model and its limits. `with_load`: also the current load, which is others' too.
absl::StatusOr<v1::GetInfoReply> GetInfo(const LoadedModel& model, bool with_load);

// Counts since the server's start and the current load.
absl::StatusOr<v1::GetStatsReply> GetStats(const LoadedModel& model, const Metrics& metrics);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_SERVER_INFO_H_
