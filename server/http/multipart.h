// Bodies of multipart/form-data (RFC 7578): what forms and OpenAI's clients upload files with.
#ifndef LSSAR_SERVER_HTTP_MULTIPART_H_
#define LSSAR_SERVER_HTTP_MULTIPART_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

struct FormPart {
  std::string name;
  std::string filename;      // empty: the part is no file, or its name is empty
  std::string_view content;  // of the body
};

// `content_type`: the header, with the boundary. `body` outlives the parts.
// Errors  INVALID_ARGUMENT: not multipart/form-data, cut off, more than 16 parts, or a part without
//         a name
absl::StatusOr<std::vector<FormPart>> ParseMultipart(std::string_view content_type,
                                                     std::string_view body);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_MULTIPART_H_
