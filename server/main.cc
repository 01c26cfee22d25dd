// lssar-server: serves a model until SIGTERM or SIGINT.
#include "server/run_server.h"
#include "server/served_model.h"

int main(int argc, char** argv) { return lssar::RunServer(argc, argv, lssar::ServedModel::Load); }
