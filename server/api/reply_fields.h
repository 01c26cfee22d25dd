// Converts the engine's results to wire messages and log fields.
#ifndef LSSAR_SERVER_API_REPLY_FIELDS_H_
#define LSSAR_SERVER_API_REPLY_FIELDS_H_

#include "lssar/v1/inference.pb.h"
#include "models/text/tokenizer.h"
#include "runtime/request.h"
#include "server/ops/log.h"

namespace lssar {

// Without `tokenizer` the pieces are empty; without `with_logprob` log-probabilities are unset.
v1::Token ToToken(const TokenResult& result, bool with_logprob, const Tokenizer* tokenizer);

v1::RowWeights ToRowWeights(const RowWeights& row);

v1::HeadStatistics ToHeadStatistics(const HeadStatistics& head);

v1::Usage ToUsage(const RequestStats& stats);
v1::Timings ToTimings(const RequestStats& stats);

// Adds every count and time of `more` to `total`.
void AddStats(const RequestStats& more, RequestStats* total);

// Counts and times for a log line.
LogFields ToLogFields(const RequestStats& stats);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_REPLY_FIELDS_H_
