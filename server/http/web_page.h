// The web page at /: files of server/web, which are part of the program.
#ifndef LSSAR_SERVER_HTTP_WEB_PAGE_H_
#define LSSAR_SERVER_HTTP_WEB_PAGE_H_

#include <span>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace lssar {

// "/" and "/web/...".
bool IsWebPath(std::string_view path);

// The file at `path`, with headers that let the page load files of this server alone, call it and
// the servers at `origins`, and run no inline script. 404: there is no such file.
// `origins`: of --http-cors-origins; "*" is every server
HttpReply WebPage(std::string_view path, std::span<const std::string> origins);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_WEB_PAGE_H_
