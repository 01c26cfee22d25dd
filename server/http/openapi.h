// GET /openapi.json.
#ifndef LSSAR_SERVER_HTTP_OPENAPI_H_
#define LSSAR_SERVER_HTTP_OPENAPI_H_

#include <string_view>

namespace lssar {

// The OpenAPI 3.1 description of the whole HTTP port.
std::string_view OpenApiJson();

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_OPENAPI_H_
