// The receipt of a reply: what computed it.
#ifndef LSSAR_SERVER_API_RECEIPT_H_
#define LSSAR_SERVER_API_RECEIPT_H_

#include <string>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "runtime/request.h"
#include "server/loaded_model.h"

namespace lssar {

// The receipt of a reply to `request`, parsed for `model`.
v1::Receipt MakeReceipt(const LoadedModel& model, const Request& request);

// The receipt as a JSON object with the fields of v1::Receipt. A call may be several requests that
// differ in their seeds: then "seeds" has one for each in place of sampling.seed. As well with
// max_tokens: "max_tokens_by_prompt".
// Requires  at least one request
std::string ReceiptJson(const LoadedModel& model, const std::vector<const Request*>& requests);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_RECEIPT_H_
