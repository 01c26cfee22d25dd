// An error about one field of a request. It carries the field's path and the problem, so that each
// API can name the field as its own clients know it.
#ifndef LSSAR_BASE_FIELD_ERROR_H_
#define LSSAR_BASE_FIELD_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lssar {

// INVALID_ARGUMENT "PATH PROBLEM": "sampling.top_p is 2; it must be in [0, 1]".
// `subject`: what the message calls the field; empty: its path.
absl::Status FieldError(std::string_view path, std::string_view problem,
                        std::string_view subject = {});

// INVALID_ARGUMENT "PATH: REASON", where another library says what is wrong. The problem is
// "is refused: REASON".
absl::Status RefusedField(std::string_view path, std::string_view reason);

// FAILED_PRECONDITION "PATH PROBLEM": a valid field that asks for what this checkpoint or server
// lacks.
absl::Status UnmetField(std::string_view path, std::string_view problem);

struct FieldProblem {
  std::string path;     // empty: the status is not about a field
  std::string problem;  // "is 2; it must be in [0, 1]"
};
FieldProblem FieldProblemOf(const absl::Status& status);

// "PATH PROBLEM" with the code, problem and payloads of `status`, which is about a field.
absl::Status WithFieldPath(const absl::Status& status, std::string_view path);

}  // namespace lssar

#endif  // LSSAR_BASE_FIELD_ERROR_H_
