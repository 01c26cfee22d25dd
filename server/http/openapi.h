// GET /openapi.json.
#ifndef LSSAR_SERVER_HTTP_OPENAPI_H_
#define LSSAR_SERVER_HTTP_OPENAPI_H_

#include <string>

namespace lssar {

// The OpenAPI 3.1 description of the whole HTTP port.
// max_choices: n of a request, at most.
std::string OpenApiJson(int max_choices);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_OPENAPI_H_
