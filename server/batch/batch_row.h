// Lines of a batch's input and output, in OpenAI's format, which `lssar run-batch` has as well.
#ifndef LSSAR_SERVER_BATCH_BATCH_ROW_H_
#define LSSAR_SERVER_BATCH_BATCH_ROW_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace lssar {

// Paths whose requests a batch may have.
inline constexpr std::array<std::string_view, 6> kBatchEndpoints = {
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings",
    "/v1/responses",        "/v1/messages",    "/v1/score"};

// {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
struct BatchRow {
  int number = 0;              // of the line, from 1
  std::string custom_id = {};  // empty: the line has none
  std::string body = {};       // JSON, in the line's order
  // Why the line is no request; empty: it is one.
  std::string error_code = {}, error = {};
};

// A line without a request, which is no row.
bool IsBlankLine(std::string_view line);

// `endpoint`: the path that the row must ask for. Never fails: what is wrong is in the row.
BatchRow ParseBatchRow(int number, std::string_view line, std::string_view endpoint);

// The line that answers a row, with its end: the reply of the HTTP port as it is. Where `status` is
// not 200, the error's code and message stand beside it.
std::string AnsweredLine(const BatchRow& row, int status, std::string_view request_id,
                         std::string body);
// The same without a reply.
std::string UnansweredLine(const BatchRow& row, std::string_view code, std::string_view message);

// The number of the row that a line of AnsweredLine or UnansweredLine answers. `begin`: at least
// its first kRowIdBytes. Nullopt: the line is none.
inline constexpr size_t kRowIdBytes = 40;
std::optional<int> AnsweredRow(std::string_view begin);

}  // namespace lssar

#endif  // LSSAR_SERVER_BATCH_BATCH_ROW_H_
