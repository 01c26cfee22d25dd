// What every call uses; all of it outlives them.
#ifndef LSSAR_SERVER_SERVICE_PARTS_H_
#define LSSAR_SERVER_SERVICE_PARTS_H_

#include "server/options.h"

namespace lssar {

class AccessControl;
class CallGate;
class Log;
class Metrics;

struct ServiceParts {
  CallGate* gate = nullptr;
  AccessControl* access = nullptr;
  const Log* log = nullptr;
  Metrics* metrics = nullptr;
  StreamOptions stream;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SERVICE_PARTS_H_
