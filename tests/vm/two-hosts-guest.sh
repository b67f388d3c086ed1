# Runs on both hosts of two-hosts.sh; NUMBER is that of this one. The first one asks and measures.
set -e
ulimit -l unlimited
hostname node$NUMBER
ip link set eth0 mtu 1500 up
ip addr add 10.0.9.$NUMBER/24 dev eth0
for rail in 0 1; do
    ip link set eth$((rail + 1)) name rail$rail addrgenmode none
    ip link set rail$rail mtu 9000 up
    ip addr add 10.0.$rail.$NUMBER/24 dev rail$rail
    rdma link add rxe$rail type rxe netdev rail$rail
done
/usr/sbin/sshd
[ $NUMBER = 1 ] || sleep 3600
until ssh node2 true; do sleep 1; done
set +e
failed=0

# says COMMAND...: must succeed; its output is shown, and kept for `expect`.
says() {
    echo "== $* ($(cut -d. -f1 /proc/uptime) s)"
    "$@" >/tmp/said 2>/tmp/aside && code=0 || code=$?
    cat /tmp/said
    [ $code = 0 ] || {
        cat /tmp/aside
        echo "FAILED with $code"
        failed=1
    }
}

# Ends a failed run. Without a single answer over a rail, the emulated cable has failed.
diagnose() {
    for host in node1 node2; do
        echo "== $host"
        ssh $host 'ip -s link; ip neigh; dmesg | tail -n 20
            for counter in /sys/class/infiniband/*/ports/1/hw_counters/*; do
                echo "$counter $(cat $counter)"
            done | grep -v " 0$"'
    done
    for rail in 0 1; do
        ping -c 5 -I rail$rail 10.0.$rail.2 || exit 75
    done
    exit 1
}

# expect COUNT PATTERN: COUNT of the printed lines match.
expect() {
    count=$(grep -Ec "$2" /tmp/said)
    [ "$count" = "$1" ] || {
        echo "FAILED: $count lines instead of $1 with: $2"
        failed=1
    }
}

says spark-perf topo -H node1,node2
expect 1 '^# 2 hosts: a pair$'
expect 1 '^  rxe0 10\.0\.0\.1 - rxe0 10\.0\.0\.2 '
expect 1 '^  rxe1 10\.0\.1\.1 - rxe1 10\.0\.1\.2 '

says spark-perf doctor --probe -H node1,node2
figures='round trip [0-9.]+ us, [0-9.]+ GB/s'
for rail in 0 1; do
    ends="rxe$rail:1 \(10\.0\.$rail\.1/24\) to rxe$rail:1 \(10\.0\.$rail\.2/24\)"
    expect 1 "probe\.rdma: RDMA: $ends: $figures"
    expect 1 "probe\.tcp: TCP: rail$rail \([0-9.]+\) to rail$rail \([0-9.]+\): $figures"
done
expect 1 'probe\.rdma: RDMA: 2 rails together: [0-9.]+ GB/s'
expect 1 'probe\.tcp: TCP: 2 rails together: [0-9.]+ GB/s'
expect 1 '^ok .* probe\.collective: all_reduce: every result right; 8 B in '
# Rates of emulated processors mean nothing, so one rail may count as slow.
expect 0 '^FAIL '
# The clocks' difference is only known to within the time that ssh takes.
grep -Ev ' probe\.|^unknown .* cluster\.clock: ' /tmp/said >/tmp/read && mv /tmp/read /tmp/said
expect 0 '^unknown '
expect 0 '^warn '

launch='spark-perf launch --no-prefix -H node1,node2 --'
says $launch spark-perf rdma_bw --rails each -b 64K -e 64K -n 20
expect 1 '^ +65536 +2 +20 .* 0$'
expect 2 '^ +65536 +1 +20 .* 0$'
says $launch spark-perf rdma_lat -b 8 -e 8 -n 50
expect 1 '^ +8 +0 +50 .* 0$'
expect 1 '^ +8 +1 +50 .* 0$'
cut -d. -f1 /proc/uptime
[ $failed = 0 ] || diagnose
