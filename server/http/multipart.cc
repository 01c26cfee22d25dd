#include "server/http/multipart.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "base/ascii.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kMaxParts = 16;
constexpr size_t kMaxBoundaryBytes = 70;  // RFC 2046, section 5.1.1
constexpr size_t kMaxHeaderBytes = size_t{4} << 10;
constexpr std::string_view kLineEnd = "\r\n";

// The parameters of a header's value.
struct Parameters {
  std::string_view rest;  // "; name=value; name=\"value\""

  // Takes the next parameter; false: there is none.
  bool Next(std::string_view* name, std::string* value) {
    size_t equals = rest.npos;
    do {
      const size_t begin = rest.find(';');
      if (begin == rest.npos) return false;
      rest.remove_prefix(begin + 1);
      equals = rest.find_first_of("=;");
    } while (equals == rest.npos || rest[equals] == ';');
    *name = Trim(rest.substr(0, equals));
    rest = Trim(rest.substr(equals + 1));
    value->clear();
    if (!rest.starts_with('"')) {
      const size_t end = std::min(rest.find(';'), rest.size());
      *value = Trim(rest.substr(0, end));
      rest.remove_prefix(end);
      return true;
    }
    size_t at = 1;
    for (; at < rest.size() && rest[at] != '"'; ++at) {
      if (rest[at] == '\\' && at + 1 < rest.size()) ++at;
      *value += rest[at];
    }
    rest.remove_prefix(std::min(at + 1, rest.size()));
    return true;
  }
};

absl::StatusOr<std::string> ReadBoundary(std::string_view content_type) {
  const std::string_view media = Trim(content_type.substr(0, content_type.find(';')));
  if (!EqualsIgnoreCase(media, "multipart/form-data")) {
    return absl::InvalidArgumentError(
        StrCat("the header Content-Type is ", Quote(media), "; it must be multipart/form-data"));
  }
  Parameters parameters{content_type};
  std::string_view name;
  std::string value;
  while (parameters.Next(&name, &value)) {
    if (!EqualsIgnoreCase(name, "boundary")) continue;
    if (value.empty() || value.size() > kMaxBoundaryBytes) break;
    return value;
  }
  return absl::InvalidArgumentError(
      StrCat("the header Content-Type must have a boundary of 1 to ", kMaxBoundaryBytes, " bytes"));
}

// `headers`: lines, each with its end.
absl::StatusOr<FormPart> ReadHeaders(size_t index, std::string_view headers) {
  FormPart part;
  bool has_name = false;
  while (!headers.empty()) {
    const size_t end = std::min(headers.find(kLineEnd), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(end + kLineEnd.size(), headers.size()));
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    const std::string_view field = line.substr(0, colon);
    if (EqualsIgnoreCase(field, "content-transfer-encoding") &&
        !EqualsIgnoreCase(Trim(line.substr(colon + 1)), "binary")) {
      return absl::InvalidArgumentError(
          StrCat("part ", index, " of the form has a Content-Transfer-Encoding; send it as it is"));
    }
    if (!EqualsIgnoreCase(field, "content-disposition")) continue;
    Parameters parameters{line.substr(colon + 1)};
    std::string_view name;
    std::string value;
    while (parameters.Next(&name, &value)) {
      if (EqualsIgnoreCase(name, "name")) {
        part.name = value;
        has_name = true;
      } else if (EqualsIgnoreCase(name, "filename")) {
        part.filename = value;
      }
    }
  }
  if (has_name) return part;
  return absl::InvalidArgumentError(
      StrCat("part ", index, " of the form has no Content-Disposition with a name"));
}

}  // namespace

absl::StatusOr<std::vector<FormPart>> ParseMultipart(std::string_view content_type,
                                                     std::string_view body) {
  ASSIGN_OR_RETURN(const std::string boundary, ReadBoundary(content_type));
  const absl::Status cut =
      absl::InvalidArgumentError("the form does not end in its boundary: it was cut off");
  const std::string delimiter = StrCat(kLineEnd, "--", boundary);
  std::vector<FormPart> parts;
  // The first boundary has no line before it, but may have a preamble.
  if (body.starts_with(std::string_view(delimiter).substr(kLineEnd.size()))) {
    body.remove_prefix(delimiter.size() - kLineEnd.size());
  } else {
    const size_t begin = body.find(delimiter);
    if (begin == body.npos) return cut;
    body.remove_prefix(begin + delimiter.size());
  }
  while (!body.starts_with("--")) {
    const size_t line_end = body.find(kLineEnd);  // spaces may follow a boundary
    if (line_end == body.npos || !Trim(body.substr(0, line_end)).empty()) return cut;
    body.remove_prefix(line_end);
    // Without headers the part begins with an empty line.
    const size_t headers_end = body.find("\r\n\r\n");
    if (headers_end == body.npos || headers_end > kMaxHeaderBytes) {
      return absl::InvalidArgumentError(StrCat("part ", parts.size() + 1,
                                               " of the form has no headers, or more than ",
                                               kMaxHeaderBytes, " bytes of them"));
    }
    if (parts.size() == kMaxParts) {
      return absl::InvalidArgumentError(StrCat("the form has more than ", kMaxParts, " parts"));
    }
    ASSIGN_OR_RETURN(FormPart part, ReadHeaders(parts.size() + 1, body.substr(0, headers_end)));
    body.remove_prefix(headers_end + 2 * kLineEnd.size());
    const size_t end = body.find(delimiter);
    if (end == body.npos) return cut;
    part.content = body.substr(0, end);
    body.remove_prefix(end + delimiter.size());
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace lssar
