# Runs in the emulated machine for benches/rdma.sh: rounds of measurements that take turns.
# Each prints "RESULT what size value unit".
set -e
rounds=$1
# One emulated processor does the work of both rails: two are faster only below its limit.
shaped=40mbit

# bandwidth RAIL BYTES COUNT: MB/s of one-sided writes.
bandwidth() {
    PORT=$((18515 + $1)) pair rxe$1a rxe$1b ib_write_bw -x 1 -s $2 -n $3 -F |
        awk '$1 ~ /^[0-9]+$/ && NF == 5 { print $4 * 1.048576 }'
}

# ranks DEVICES DEVICES ARGUMENT...: the table of spark-perf, whose two ranks have these devices.
ranks() {
    devices=$1 others=$2
    shift 2
    export SPARK_CCL_SIZE=2 SPARK_CCL_SECRET=a-secret-of-this-measurement
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=4177
    SPARK_CCL_RANK=1 NCCL_IB_HCA=$others timeout 30 spark-perf "$@" &
    SPARK_CCL_RANK=0 NCCL_IB_HCA=$devices timeout 30 spark-perf "$@" | grep -v '^#'
    wait $!
}

# rdma_bw NAME DEVICES DEVICES BYTES COUNT [ARGUMENT...]: the same as ib_write_bw does, and its
# processor time.
rdma_bw() {
    name=$1 devices=$2 others=$3 bytes=$4 count=$5
    shift 5
    ranks $devices $others rdma_bw -b $bytes -e $bytes -n $count -w 0 "$@" | awk -v name=$name '{
        print "RESULT", name, $1, $1 * $3 / $4, "MB/s"
        print "RESULT", name ",processors", $1, $7, "us/MiB"
    }'
}

# all_reduce NAME NETWORK MEMORY: 16 MiB between two ranks, both ways counted; and the processor
# time of both programs for a MiB of the vector.
all_reduce() {
    # A report is never replaced.
    rm -f /tmp/report.json
    (
        export SPARK_CCL_SHM=0 SPARK_CCL_NET=$2
        ranks rxe0a rxe0b all_reduce -b 16M -e 16M -n 1 -w 0 -c 0 --memory $3 -C 1 -J /tmp/report.json >/dev/null
    )
    awk -v name=$1 -F '[:,]' '
        /"time"/ && !us { us = $2 }
        /"cpu_time"/ && !busy { busy = $2 }
        END {
            print "RESULT", name, 16777216, 2 * 16777216 / us, "MB/s"
            print "RESULT", name ",processors", 16777216, 2 * busy / 16, "us/MiB"
        }' /tmp/report.json
}

# us_of_rdma_lat BYTES: microseconds of a message there and back, sleeping in between.
us_of_rdma_lat() {
    ranks rxe0a rxe0b rdma_lat --verb send --wait events -b $1 -e $1 -n 300 -w 0 | awk '{ print 2 * $6 }'
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
        rdma_bw rdma_bw rxe0a rxe0b $bytes $((20971520 / bytes))
    done
    for bytes in 8 4096; do
        echo "RESULT ibv_rc_pingpong $bytes $(us_of_pingpong $bytes) us"
        echo "RESULT rdma_lat $bytes $(us_of_rdma_lat $bytes) us"
    done
    # The limit of all_reduce: messages of the same length, both ways.
    rdma_bw rdma_bw,both_ways rxe0a rxe0b 262144 40 --bidirectional
    all_reduce all_reduce rdma ordinary
    all_reduce all_reduce,registered rdma registered
    all_reduce all_reduce,TCP tcp ordinary
    shape rate $shaped
    echo "RESULT ib_write_bw,${shaped},1_rail 65536 $(bandwidth 0 65536 40) MB/s"
    bandwidth 0 65536 40 >/tmp/first &
    second=$(bandwidth 1 65536 40)
    wait $!
    echo "RESULT ib_write_bw,${shaped},2_rails 65536 $(echo "$second" | cat - /tmp/first | awk '{ sum += $1 } END { print sum }') MB/s"
    rdma_bw rdma_bw,${shaped},1_rail rxe0a rxe0b 65536 40
    rdma_bw rdma_bw,${shaped},2_rails rxe0a,rxe1a rxe0b,rxe1b 65536 80
    shape
done
