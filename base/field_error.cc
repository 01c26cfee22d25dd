#include "base/field_error.h"

#include "absl/strings/cord.h"
#include "base/error_details.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Types of the status payloads.
constexpr char kPathUrl[] = "lssar/field";
constexpr char kProblemUrl[] = "lssar/field_problem";

absl::Status WithField(absl::Status status, std::string_view path, std::string_view problem) {
  status.SetPayload(kPathUrl, absl::Cord(std::string(path)));
  status.SetPayload(kProblemUrl, absl::Cord(std::string(problem)));
  return status;
}

std::string PayloadOf(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status FieldError(std::string_view path, std::string_view problem, std::string_view subject) {
  return WithField(
      absl::InvalidArgumentError(StrCat(subject.empty() ? path : subject, " ", problem)), path,
      problem);
}

absl::Status RefusedField(std::string_view path, std::string_view reason) {
  return WithField(absl::InvalidArgumentError(StrCat(path, ": ", reason)), path,
                   StrCat("is refused: ", reason));
}

absl::Status UnmetField(std::string_view path, std::string_view problem) {
  return WithField(absl::FailedPreconditionError(StrCat(path, " ", problem)), path, problem);
}

FieldProblem FieldProblemOf(const absl::Status& status) {
  return {.path = PayloadOf(status, kPathUrl), .problem = PayloadOf(status, kProblemUrl)};
}

absl::Status WithFieldPath(const absl::Status& status, std::string_view path) {
  const std::string problem = FieldProblemOf(status).problem;
  return WithField(WithMessage(status, StrCat(path, " ", problem)), path, problem);
}

}  // namespace lssar
