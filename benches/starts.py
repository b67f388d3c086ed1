#!/usr/bin/env python3
"""Measures how long a start takes on hosts as owners have them, from `launch` to `all links`, and
which wires carry the data. Hosts are namespaces with an ssh server. Prints for each layout the
seconds of RUNS starts, best, median and worst, those that ssh takes by itself to run a program on
all hosts, and the megabytes that each interface of the first host sends and receives meanwhile. A
loaded machine starts processes late: the load stands beside.
Needs root, iproute2 and openssh-server; leaves nothing behind. LAYOUTS are functions below.
  benches/starts.py SPARK_PERF [RUNS] [LAYOUT]..."""

import atexit, datetime, os, pathlib, random, re, shutil, signal, statistics, subprocess, sys
import tempfile, time

QUIET = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
FAST, LAN, RADIO = 200_000, 1_000, 600
LEFT, RIGHT, TWIN = "enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0"
BOOT = """hostname "$1"
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad || true
mount -t sysfs none /sys; mount -t tmpfs none /run; mkdir -p /run/sshd
mount -t tmpfs none /dev/shm; ip link set lo up
exec /usr/sbin/sshd -D -e -f "$2" """
SSHD = """HostKey {0}/key
AuthorizedKeysFile {0}/key.pub
StrictModes no
PidFile none
UsePAM no
UseDNS no
PermitRootLogin yes
MaxStartups 100
"""
SSH = (
    "ssh -i {0}/key -o IdentitiesOnly=yes -o UserKnownHostsFile={0}/known"
    " -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR"
)


class Lab:
    """Hosts, and what joins them."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.hosts, self.ports = {}, 0
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key"]
        subprocess.run(keygen, check=True)
        (self.folder / "sshd").write_text(SSHD.format(self.folder))
        self.ssh = SSH.format(self.folder)
        atexit.register(self.end)

    def host(self, name):
        command = ["unshare", "--net", "--mount", "--uts", "sh", "-ec", BOOT, "sh", name]
        process = subprocess.Popen([*command, self.folder / "sshd"], **QUIET)
        while b"listener" not in pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        self.hosts[name] = process

    def inside(self, host):
        enter = ["nsenter", "--target", str(self.hosts[host].pid), "--net", "--mount", "--uts"]
        return [*enter, "env", "-u", "SSH_CONNECTION"]

    def on(self, host, *command):
        command = [*self.inside(host), *map(str, command)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def plug(self, host, interface, there, port):
        peer = ["peer", "name", port, "netns", self.hosts[there].pid]
        self.on(host, "ip", "link", "add", interface, "type", "veth", *peer)

    def bring_up(self, host, interface, address, speed):
        mac = ":".join(["02", *(f"{random.randrange(256):02x}" for _ in range(5))])
        self.on(host, "ip", "link", "set", interface, "address", mac)
        mtu = 9000 if speed == FAST else 1500
        self.on(host, "ip", "link", "set", interface, "up", "mtu", mtu)
        self.on(host, "ip", "address", "add", address, "dev", interface)
        file = self.folder / f"{host}.{interface}"
        file.write_text(f"{speed}\n")
        there = self.on(host, "readlink", "-f", f"/sys/class/net/{interface}").strip()
        self.on(host, "mount", "--bind", file, f"{there}/speed")

    def cable(self, *ends):
        (host, interface, _), (there, port, _) = ends
        self.plug(host, interface, there, port)
        for end in ends:
            self.bring_up(*end, FAST)

    def switch(self, name, speed, *ends):
        self.host(name)
        self.on(name, *"ip link add bridge up mtu 9000 type bridge".split())
        for host, interface, address in ends:
            self.ports += 1
            port = f"port{self.ports}"
            self.plug(host, interface, name, port)
            self.on(name, "ip", "link", "set", port, "master", "bridge", "up", "mtu", 9000)
            self.bring_up(host, interface, address, speed)

    def lan(self, count, interface="enP7s7", speed=LAN, network=1):
        ends = [(f"s{n}", interface, f"192.168.{network}.{n}/24") for n in range(1, count + 1)]
        self.switch(f"switch{network}", speed, *ends)

    def counters(self, host):
        lines = self.on(host, "cat", "/proc/net/dev").splitlines()[2:]
        fields = [line.replace(":", " ").split() for line in lines]
        return {one[0]: (int(one[9]), int(one[1])) for one in fields if one[0] != "lo"}

    def end(self):
        spaces = {os.readlink(f"/proc/{one.pid}/ns/net") for one in self.hosts.values()}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/net") in spaces:
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass
        for one in self.hosts.values():
            one.wait()
        self.hosts = {}
        shutil.rmtree(self.folder, ignore_errors=True)


def hosts(lab, count):
    lab.size = count
    for n in range(1, count + 1):
        lab.host(f"s{n}")


def twins(lab):
    """Both functions of a cage in one subnet."""
    hosts(lab, 2)
    ends = []
    for number, interface in enumerate((LEFT, TWIN)):
        ends += [(f"s{n}", interface, f"192.168.1.{n + 10 * number}/24") for n in (1, 2)]
    lab.switch("cage", FAST, *ends)


def link_local(lab):
    """All cables in 169.254/16, beside a LAN."""
    hosts(lab, 2)
    lab.lan(2)
    for number, interface in enumerate((LEFT, RIGHT)):
        lab.cable(*((f"s{n}", interface, f"169.254.{n}{number}.7/16") for n in (1, 2)))


def rails(lab, *slow):
    """Two cables beside a LAN."""
    hosts(lab, 2)
    lab.lan(2, *slow)
    for number, interface in enumerate((LEFT, TWIN)):
        lab.cable(*((f"s{n}", interface, f"10.0.{number}.{n}/24") for n in (1, 2)))


def wifi(lab):
    """Two cables beside Wi-Fi, which the default route takes."""
    rails(lab, "wlP9s9", RADIO)
    for n in (1, 2):
        lab.on(f"s{n}", *"ip route add default via 192.168.1.254".split())


def many(lab):
    """Four interfaces for each host, with link-local addresses at random."""
    rails(lab)
    lab.lan(2, "wlP9s9", RADIO, 2)


def pair(lab):
    """One cable and nothing else."""
    hosts(lab, 2)
    lab.cable(*((f"s{n}", LEFT, f"192.168.1.{n}/24") for n in (1, 2)))


def ring(lab):
    """Four hosts, each with a cable to the next one, beside a LAN."""
    hosts(lab, 4)
    lab.lan(4)
    for n in range(1, 5):
        after = n % 4 + 1
        lab.cable((f"s{n}", LEFT, f"10.0.{n}.1/24"), (f"s{after}", RIGHT, f"10.0.{n}.2/24"))


def bare_ring(lab):
    """The same, of which ranks may use the cables only."""
    ring(lab)
    return ["-x", "NCCL_SOCKET_IFNAME=enp"]


def lan(lab):
    """One cable beside a LAN."""
    hosts(lab, 2)
    lab.lan(2)
    lab.cable(*((f"s{n}", LEFT, f"10.0.1.{n}/24") for n in (1, 2)))


def names(lab):
    """One cable, whose interfaces have different names, beside a LAN."""
    hosts(lab, 2)
    lab.lan(2)
    lab.cable(("s1", LEFT, "10.0.0.1/24"), ("s2", RIGHT, "10.0.0.2/24"))
    return ["-x", f"NCCL_SOCKET_IFNAME={LEFT},{RIGHT}"]


def ssh_alone(lab, program):
    """The seconds until a program has run on all hosts."""
    begin = time.time()
    command = [*lab.inside("s1"), *lab.ssh.split()]
    hosts = [f"192.168.1.{n}" for n in range(1, lab.size + 1)]
    runs = [subprocess.Popen([*command, host, program, "--version"], **QUIET) for host in hosts]
    for run in runs:
        run.wait()
    return time.time() - begin


def start(lab, program, settings):
    """The seconds until all links are up, and what the first host's interfaces have carried."""
    ranks = ",".join(f"192.168.1.{n}" for n in range(1, lab.size + 1))
    launch = [program, "launch", "--ssh", lab.ssh, "-H", ranks, "-x", "SPARK_CCL_LOG=info"]
    call = [program, "all_reduce", "-b", "4M", "-e", "4M", "-n", "5", "--backend", "host"]
    before, begin = lab.counters("s1"), time.time()
    command = [*lab.inside("s1"), "timeout", "60", *launch, *settings, "--", *call]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    up = re.search(r"(\S+)Z +INFO spark_ccl_bootstrap::gathering: all links", run.stdout)
    if run.returncode or not up:
        sys.exit(f"{run.stdout}\nended with {run.returncode}")
    utc = datetime.datetime.fromisoformat(up[1]).replace(tzinfo=datetime.timezone.utc)
    after = lab.counters("s1")
    carried = {name: [b - a for a, b in zip(before[name], after[name])] for name in after}
    return utc.timestamp() - begin, carried


def measure(layout, program, runs):
    seconds, floors, carried = [], [], []
    for seed in range(1, runs + 1):
        random.seed(seed)
        lab = Lab()
        settings = layout(lab) or []
        # The kernel takes a moment to see carriers and to find link-local addresses.
        time.sleep(1)
        floors.append(ssh_alone(lab, program))
        one = start(lab, program, settings)
        seconds.append(one[0])
        carried.append(one[1])
        lab.end()
    of = lambda all: f"{min(all):.2f} {statistics.median(all):.2f} {max(all):.2f} s"
    times = f"{of(seconds)}, ssh alone {of(floors)}"
    wires = []
    for name in sorted(carried[0]):
        ways = ([run[name][way] / 1e6 for run in carried] for way in (0, 1))
        wires.append(name + "".join(f" {min(way):.0f}-{max(way):.0f}" for way in ways))
    load = os.getloadavg()[0]
    print(f"{layout.__name__:<11} {times}, MB: {', '.join(wires)}; load {load:.1f}", flush=True)


ALL = [twins, link_local, wifi, many, pair, ring, bare_ring, lan, names, rails]
program = os.path.realpath(sys.argv[1])
wanted = sys.argv[3:] or [layout.__name__ for layout in ALL]
for layout in (layout for layout in ALL if layout.__name__ in wanted):
    measure(layout, program, int(sys.argv[2] if len(sys.argv) > 2 else 10))
