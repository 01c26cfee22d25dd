// The log lines of a model that is loaded: its self-check, and what is served.
#ifndef LSSAR_SERVER_OPS_SERVING_LOG_H_
#define LSSAR_SERVER_OPS_SERVING_LOG_H_

#include "models/checkpoint.h"
#include "server/loaded_model.h"
#include "server/ops/log.h"

namespace lssar {

// Logs the start of the self-check and then its progress, at most every 5 s. `log` outlives it.
OnSelfCheckProgress LogSelfCheck(const Log& log);

// Logs that the model is served, and its failed self-check and missing chat as warnings.
// `addresses`: of the open ports, as fields of the line.
void LogServing(const LoadedModel& model, const LogFields& addresses, const Log& log);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_SERVING_LOG_H_
