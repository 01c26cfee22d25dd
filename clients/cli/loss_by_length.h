// Loss of a model over rows of a token file, at one or more row lengths.
#ifndef LSSAR_CLIENTS_CLI_LOSS_BY_LENGTH_H_
#define LSSAR_CLIENTS_CLI_LOSS_BY_LENGTH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/sharing_flags.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

// Token ids as little-endian uint16, without a header.
// Errors  those of ReadText; INVALID_ARGUMENT: an odd number of bytes
absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& path);

// How many rows of `length` tokens the training code evaluates: 8, or as many as 32K tokens hold.
// Source  models/training/evaluate.py, loss_at
int NumEvaluationRows(int length);

// Row `row_idx` of `num_rows`, cut at equal steps: length + 1 ids, so that `length` are predicted.
// Requires  ids.size() > length
// Source    models/training/evaluate.py, evaluation_rows
std::vector<int32_t> EvaluationRow(const std::vector<int32_t>& ids, int length, int num_rows,
                                   int row_idx);

struct LossAtLength {
  int length = 0;
  int num_rows = 0;
  int64_t num_tokens = 0;  // scored
  double loss = 0;         // mean over rows of the mean negative log-likelihood, nats a token
  // The served context is just `length` tokens: each row's last token was not scored.
  bool is_last_left_out = false;
};

struct LossOptions {
  std::vector<int> lengths;
  std::optional<int> num_rows;  // nullopt: NumEvaluationRows
  SharingFlags sharing;
};

// A progress bar on stderr while it runs.
// Errors  INVALID_ARGUMENT: a length over the served context or over the file; those of Score
absl::StatusOr<std::vector<LossAtLength>> MeasureLossByLength(v1::Inference::StubInterface* stub,
                                                              const std::vector<int32_t>& ids,
                                                              const LossOptions& options,
                                                              Interrupt* interrupt);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_LOSS_BY_LENGTH_H_
