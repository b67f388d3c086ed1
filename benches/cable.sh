# Sourced by scripts of this folder.

# lay_cable HOST HOST: makes two network namespaces, 10.78.0.1 and 10.78.0.2, that a virtual cable
# joins.
lay_cable() {
    local host number=0
    for host in "$@"; do
        ip netns add "$host"
        ip -n "$host" link set lo up
    done
    ip link add cable netns "$1" type veth peer name cable netns "$2"
    for host in "$@"; do
        number=$((number + 1))
        ip -n "$host" address add "10.78.0.$number/24" dev cable
        ip -n "$host" link set cable addrgenmode none up
    done
    for host in "$@"; do
        until ip -n "$host" link show cable | grep -q "state UP"; do sleep 0.01; done
    done
}
