// lssar-server: serves a model until SIGTERM or SIGINT.
#include "server/loaded_model.h"
#include "server/run_server.h"

int main(int argc, char** argv) { return lssar::RunServer(argc, argv, lssar::LoadedModel::Load); }
