# Runs in the emulated machine for benches/rdma.sh: rounds of measurements that take turns.
# Each prints "RESULT what size value unit".
set -e
rounds=$1
# Both rails are one emulated processor's work, so what two gain shows only below what that can do.
shaped=40mbit

# bandwidth RAIL BYTES COUNT: MB/s of one-sided writes.
bandwidth() {
    PORT=$((18515 + $1)) pair rxe$1a rxe$1b ib_write_bw -x 1 -s $2 -n $3 -F |
        awk '$1 ~ /^[0-9]+$/ && NF == 5 { print $4 * 1.048576 }'
}

# us_of_pingpong BYTES: microseconds of a message there and back, sleeping in between.
us_of_pingpong() {
    pair rxe0a rxe0b ibv_rc_pingpong -e -m 4096 -g 1 -n 300 -s $1 |
        sed -n 's/.* seconds = \(.*\) usec.*/\1/p'
}

shape() {
    for device in r0a r0b r1a r1b; do rails impair $device "$@"; done
}

for round in $(seq "$rounds"); do
    for bytes in 65536 1048576; do
        echo "RESULT ib_write_bw $bytes $(bandwidth 0 $bytes $((20971520 / bytes))) MB/s"
    done
    for bytes in 8 4096; do
        echo "RESULT ibv_rc_pingpong $bytes $(us_of_pingpong $bytes) us"
    done
    shape rate $shaped
    echo "RESULT ib_write_bw,${shaped},1_rail 65536 $(bandwidth 0 65536 40) MB/s"
    bandwidth 0 65536 40 >/tmp/first &
    second=$(bandwidth 1 65536 40)
    wait $!
    echo "RESULT ib_write_bw,${shaped},2_rails 65536 $(echo "$second" | cat - /tmp/first | awk '{ sum += $1 } END { print sum }') MB/s"
    shape
done
