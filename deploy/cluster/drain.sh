#!/bin/sh
# Tells HAProxy to give a server no new calls, on both ports, while its running calls go on. Files
# and batches get 503 while their server is drained; no other call is refused.
#
#   sh deploy/cluster/drain.sh SOCKET SERVER drain    then stop the server
#   sh deploy/cluster/drain.sh SOCKET SERVER ready    once it serves again
#
# SOCKET is CLUSTER_ADMIN of haproxy.cfg, SERVER a name in it such as lssar-1.
set -eu
if [ "$#" -ne 3 ]; then
  echo "usage: sh deploy/cluster/drain.sh SOCKET SERVER drain|ready" >&2
  exit 2
fi
case $3 in
  drain | ready) ;;
  *)
    echo "the state is '$3'; it must be drain or ready" >&2
    exit 2
    ;;
esac
for backend in grpc_servers http_servers batch_servers; do
  # Python comes with the tools of this project; HAProxy's socket takes a line and answers with one.
  answer=$(python3 -I -c '
import socket, sys
with socket.socket(socket.AF_UNIX) as admin:
    admin.connect(sys.argv[1])
    admin.sendall(sys.argv[2].encode() + b"\n")
    print(admin.recv(65536).decode().strip())' "$1" "set server $backend/$2 state $3")
  case $backend:$answer in
    batch_servers:No\ such*) continue ;; # one server has all files and batches
  esac
  if [ -n "$answer" ]; then
    echo "HAProxy: $answer" >&2
    exit 1
  fi
done
echo "$2: $3"
