// The engine's results as reply fields.
#ifndef LSSAR_SERVER_REPLY_FIELDS_H_
#define LSSAR_SERVER_REPLY_FIELDS_H_

#include "lssar/v1/inference.pb.h"
#include "models/tokenizer.h"
#include "runtime/request.h"
#include "server/log.h"

namespace lssar {

// `tokenizer` null: no pieces. `with_logprob` false: the id and its piece alone.
v1::Token ToToken(const TokenResult& result, bool with_logprob, const Tokenizer* tokenizer);

v1::RowWeights ToRowWeights(const RowWeights& row);

v1::Usage ToUsage(const RequestStats& stats);
v1::Timings ToTimings(const RequestStats& stats);

// Adds every count and time of `more`.
void AddStats(const RequestStats& more, RequestStats& total);

// The same counts and times for a log line.
LogFields ToLogFields(const RequestStats& stats);

}  // namespace lssar

#endif  // LSSAR_SERVER_REPLY_FIELDS_H_
