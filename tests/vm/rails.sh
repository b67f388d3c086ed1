#!/bin/sh
# The rails of the emulated machine of rdma.sh, where this is the command `rails`:
#   rails make one|wire|link-local   two rails, in place of those there are
#   rails down DEV SECONDS           takes a network device down, and up again after that time
#   rails down DEV                   ... and leaves it down; `rails up DEV` ends it
#   rails impair DEV NETEM...        what DEV sends suffers from now on: "loss 5%", "rate 40mbit",
#                                    "delay 20ms"; nothing given: no longer
#   rails lost DEV                   prints how many packets DEV has lost since
#
#   one         rxe0 and rxe1, on r0a and r1a; each reaches itself alone
#   wire        rxe0a and rxe0b, on r0a and r0b, are the ends of a cable; so are rxe1a and rxe1b.
#               Each cable is a subnet.
#   link-local  the same cables, but all addresses are in 169.254/16
set -e

main() {
    action=$1
    shift
    case $action in
    make) make_rails "$1" ;;
    down)
        ip link set "$1" down
        [ -z "${2:-}" ] || { sleep "$2" && bring_up "$1"; }
        ;;
    up) bring_up "$1" ;;
    impair) impair "$@" ;;
    lost) tc -s qdisc show dev "$1" | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' ;;
    *) echo "rails: unknown action: $action" >&2 && exit 64 ;;
    esac
}

make_rails() {
    mode=$1
    for rail in 0 1; do
        # The RDMA devices and the routes go with the network devices.
        ip link delete r${rail}a 2>/dev/null || true
    done
    echo "$mode" >/run/rails
    [ "$mode" = one ] || let_own_addresses_cross
    for rail in 0 1; do
        ip link add r${rail}a mtu 9000 type veth peer name r${rail}b mtu 9000
        for end in a b; do
            ip link set r$rail$end addrgenmode none
            ip link set r$rail$end up
        done
        case $mode in
        one)
            ip addr add 10.0.$rail.1/24 dev r${rail}a
            rdma link add rxe$rail type rxe netdev r${rail}a
            ;;
        wire | link-local)
            make_end $rail a 1
            make_end $rail b 2
            ;;
        *) echo "rails: unknown layout: $mode" >&2 && exit 64 ;;
        esac
    done
}

make_end() {
    device=r$1$2
    case $mode in
    wire) subnet=10.0.$1.0/24 own=10.0.$1.$3 ;;
    link-local) subnet=169.254.0.0/16 own=169.254.$1.$3 ;;
    esac
    # Each end answers only for its own addresses, as two machines would.
    set_of $device accept_local 1 rp_filter 0 arp_ignore 1 arp_announce 1
    ip addr add $own/${subnet#*/} dev $device
    ip rule add pref 20 oif $device lookup 1$1$3
    # A device reaches itself, as in a real machine.
    printf '%s\n' "$subnet dev $device src $own table 1$1$3" \
        "local $own dev $device src $own table 1$1$3" >/run/rails-$device
    add_routes $device
    rdma link add rxe$1$2 type rxe netdev $device
}

set_of() {
    settings=/proc/sys/net/ipv4/conf/$1
    shift
    while [ $# != 0 ]; do
        echo "$2" >"$settings/$1"
        shift 2
    done
}

# The kernel delivers to its own addresses locally, unless the rule for them comes after ours.
let_own_addresses_cross() {
    set_of all rp_filter 0
    if ip rule show | grep -q '^0:'; then
        ip rule add pref 32765 lookup local
        ip rule del pref 0
    fi
    while ip rule del pref 20 2>/dev/null; do :; done
}

# Routes that a device loses when it goes down do not come back by themselves.
bring_up() {
    ip link set "$1" up
    [ ! -e "/run/rails-$1" ] || add_routes "$1"
}

add_routes() {
    while read -r route; do
        # shellcheck disable=SC2086
        ip route replace $route
    done <"/run/rails-$1"
}

impair() {
    device=$1
    shift
    tc qdisc del dev "$device" root 2>/dev/null || true
    [ $# = 0 ] || tc qdisc add dev "$device" root netem limit 10000 "$@"
}

main "$@"
