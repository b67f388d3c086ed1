# Runs in the emulated machine of netem.sh.
# busybox's shell prefers its own `ip`, unless a function has that name.
ip() { /tools/ip "$@"; }
tc() { /tools/tc "$@"; }
loss=$(sed -n 's/.*loss=\([^ ]*\).*/\1/p' /proc/cmdline)
export WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 SPARK_CCL_SECRET=of-this-test-only

set -e
for name in a b; do ip netns add $name; done
ip link add veth-a netns a type veth peer name veth-b netns b
address=1
for name in a b; do
    ip -n $name link set lo up
    ip -n $name addr add 10.77.0.$address/24 dev veth-$name
    ip -n $name link set veth-$name up
    tc -n $name qdisc add dev veth-$name root netem loss "$loss"
    address=$((address + 1))
done
# IPv6 addresses cannot be used until the kernel has looked for others that have them.
for name in a b; do
    while ip -n $name addr show tentative | grep -q inet6; do sleep 0.2; done
done
set +e

bytes() { ip netns exec a cat /sys/class/net/veth-a/statistics/tx_bytes; }

failed=0
for collective in all_reduce alltoall; do
    before=$(bytes)
    perf="timeout 120 spark-perf $collective -b 8 -e 2M -f 8 -n 3"
    ip netns exec b env RANK=1 $perf >/tmp/other 2>&1 &
    ip netns exec a env RANK=0 $perf >/tmp/table 2>&1
    first=$?
    wait $!
    second=$?
    cat /tmp/table
    sent=$(($(bytes) - before))
    echo "$collective: exit codes $first and $second, $sent bytes sent by one side"
    if [ $first != 0 ] || [ $second != 0 ]; then
        cat /tmp/other
        failed=1
    fi
    # Without the table, or with another path than the lossy one, the test proves nothing.
    grep -q 'Out of bounds values : 0 OK' /tmp/table || failed=1
    [ "$sent" -gt 1000000 ] || failed=1
done
tc -n a -s qdisc show dev veth-a | tee /tmp/netem
grep -q 'dropped [1-9]' /tmp/netem || failed=1
exit $failed
