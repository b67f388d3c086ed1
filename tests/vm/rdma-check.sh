# Runs in the emulated machine of rdma.sh: both rails carry data of other programs, and only the
# ends of one rail reach each other.
ibv_devinfo | grep -E 'hca_id|state|active_mtu'
grep . /sys/class/infiniband/*/ports/1/gids/[01]
[ "$RAILS" = one ] || near=a far=b
failed=0

must_work() {
    if pair "$@" >/tmp/said; then
        echo "$1 and $2: $3: $(grep -E 'iters in|^ [0-9]' /tmp/said | tail -n 1)"
    else
        echo "$1 and $2: $3 FAILED"
        cat /tmp/said
        failed=1
    fi
}

for rail in 0 1; do
    must_work rxe$rail${near:-} rxe$rail${far:-} ibv_rc_pingpong -e -m 4096 -g 1 -n 200
    must_work rxe$rail${near:-} rxe$rail${far:-} ib_write_bw -x 1 -s 65536 -n 100 -F
done
if [ "$RAILS" != one ]; then
    must_work rxe0a rxe0a ibv_rc_pingpong -e -m 4096 -g 1 -n 20
    for rail in 0 1; do
        bytes=$(cat /sys/class/net/r${rail}b/statistics/rx_bytes)
        echo "rail $rail: $bytes bytes came over the cable"
        [ "$bytes" -gt 6000000 ] || failed=1
    done
    if pair rxe0a rxe1b ibv_rc_pingpong -e -m 4096 -g 1 -n 1 >/tmp/said; then
        echo "FAILED: rxe0a and rxe1b reach each other, without a cable"
        failed=1
    fi
    # The reason in the output of one of them.
    grep Failed /tmp/said
fi

# A rail that was down carries data again. Unlike ibv_rc_pingpong, the ends of ib_write_bw leave
# together, and not while an answer may be lost.
rails down r0a 0.3
must_work rxe0${near:-} rxe0${far:-} ib_write_bw -x 1 -s 4096 -n 400 -F
# A rail that loses packets carries data, too. The kernel knows the peer's address by now: it asks
# for that only once before it refuses to connect a queue pair, and the question could be lost.
rails impair r0a loss 5%
must_work rxe0${near:-} rxe0${far:-} ib_write_bw -x 1 -s 4096 -n 400 -F
[ "$RAILS" = one ] || tc -s qdisc show dev r0a | grep 'dropped [1-9]' || failed=1
exit $failed
