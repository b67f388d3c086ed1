#!/bin/sh
# The command `pair` in the emulated machine of rdma.sh: runs a program of perftest, or
# ibv_rc_pingpong, on two RDMA devices, as its own peer, and shows the output of the client.
#   pair DEVICE DEVICE PROGRAM ARGUMENT...
# Fails when one of the two fails, or after 30 s; then it shows the output of both.
near=$1 far=$2
shift 2
said=$(mktemp)
# The TCP port where the two meet; pairs at the same time need one each.
port=${PORT:-18515}

timeout 30 "$@" -p $port -d "$far" >"$said.server" 2>&1 &
server=$!
listens() { grep -qi ":$(printf %04x $port) [0-9:A-F]* 0A" /proc/net/tcp /proc/net/tcp6; }
until listens || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
timeout 30 "$@" -p $port -d "$near" 127.0.0.1 >"$said" 2>&1
code=$?
wait $server || code=$?
[ $code = 0 ] || cat "$said.server"
cat "$said"
rm "$said" "$said.server"
exit $code
