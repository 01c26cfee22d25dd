#include "clients/cli/call_pipeline.h"

#include <string>

#include "absl/strings/numbers.h"
#include "base/error_details.h"
#include "base/str_cat.h"

namespace lssar::cli {

absl::Status NameLine(const absl::Status& status, absl::string_view field,
                      const std::vector<int64_t>& line_numbers) {
  const std::string message(status.message());
  const std::string opening = StrCat(field, "[");
  const size_t begin = message.find(opening);
  if (begin == std::string::npos) return status;
  const size_t first = begin + opening.size();
  const size_t end = message.find(']', first);
  int item = -1;
  if (end == std::string::npos || !absl::SimpleAtoi(message.substr(first, end - first), &item) ||
      item < 0 || item >= int(line_numbers.size()) || line_numbers[size_t(item)] == 0) {
    return status;
  }
  const std::string line = StrCat("line ", line_numbers[size_t(item)]);
  const std::string before = message.substr(0, begin);
  const std::string after = message.substr(end + 1);
  return WithMessage(status, after.starts_with('.') ? StrCat(line, ": ", before, after.substr(1))
                                                    : StrCat(before, line, after));
}

}  // namespace lssar::cli
