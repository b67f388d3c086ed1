//! Hosts to launch on: network namespaces on a bridge, with a real ssh server in each. They belong
//! to their processes alone, so nothing is left behind whatever becomes of the test.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};

/// Only guards against deadlock.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hosts on a bridge, and one more, on which the launcher runs.
pub(crate) struct Cluster {
    hub: Host,
    hosts: Vec<Host>,
    folder: tempfile::TempDir,
}

/// A process in namespaces of its own, or in those of another. It is killed when this is dropped.
pub(crate) struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cluster {
    /// `None`, loudly, where this process may not make namespaces, or there is no ssh server.
    pub(crate) fn new(count: u8) -> Option<Self> {
        Self::with_idle(count, 0)
    }

    /// The last `idle` hosts have no ssh server.
    pub(crate) fn with_idle(servers: u8, idle: u8) -> Option<Self> {
        if !has(Need::Namespaces) || !has(Need::Sshd) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        write_keys(folder.path());
        write_configurations(folder.path(), servers);
        let sleeper = ["sleep", "infinity"];
        let hub = Host::start(folder.path(), "hub", &sleeper);
        let configuration = folder.path().join("sshd");
        let server = [
            "/usr/sbin/sshd",
            "-D",
            "-e",
            "-f",
            configuration.to_str().unwrap(),
        ];
        let start = |number| {
            let program = if number <= servers {
                &server[..]
            } else {
                &sleeper
            };
            Host::start(folder.path(), &format!("host{number}"), program)
        };
        let hosts: Vec<Host> = (1..=servers + idle).map(start).collect();
        let cluster = Self { hub, hosts, folder };
        cluster.lay_cables();
        Some(cluster)
    }

    fn lay_cables(&self) {
        let mut hub = "link add bridge type bridge\nlink set bridge up\nlink set lo up\n\
                       address add 10.88.0.100/24 dev bridge\n"
            .to_owned();
        for (host, number) in self.hosts.iter().zip(1..) {
            let pid = host.0.id();
            let _ = write!(
                hub,
                "link add port{number} type veth peer name cable netns {pid}\n\
                 link set port{number} master bridge up\n"
            );
        }
        self.hub.ip(&hub);
        for (host, number) in self.hosts.iter().zip(1..) {
            host.ip(&format!(
                "link set lo up\naddress add {} dev cable\nlink set cable up\n",
                format_args!("{}/24", address(number))
            ));
        }
    }

    /// spark-perf on the host of the launcher. It reaches the others by ssh.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.hub.command(args)
    }

    /// spark-perf on another host.
    pub(crate) fn command_on(&self, number: usize, args: &[&str]) -> Command {
        self.hosts[number - 1].command(args)
    }

    /// The ssh client with this cluster's keys and names: node1 and so on, and some that are wrong.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh -F {}", self.folder.path().join("ssh").display())
    }

    /// Launches over ssh, and waits for the end. The words come before the command.
    pub(crate) fn launch(&self, words: &str, command: &[&str]) -> crate::program::Run {
        let ssh = self.ssh();
        let mut args = vec!["launch", "--ssh", &ssh];
        args.extend(words.split_whitespace());
        args.push("--");
        args.extend(command);
        let output: Output = self.command(&args).output().unwrap();
        output.into()
    }

    /// Joins two hosts by another cable, with an interface of each.
    pub(crate) fn cable(&self, ends: [(usize, &str); 2]) {
        let [(one, name), (other, peer)] = ends;
        let pid = self.hosts[other - 1].0.id();
        self.hosts[one - 1].ip(&format!(
            "link add {name} type veth peer name {peer} netns {pid}\nlink set {name} up\n"
        ));
        self.hosts[other - 1].ip(&format!("link set {peer} up\n"));
    }

    /// Makes all other networks than those of two further cables internal ones, so that these are
    /// the rails between the first two hosts.
    pub(crate) fn rails(&self) {
        self.rails_between(&[[1, 2]]);
    }

    /// The same with two rails between each of these pairs of hosts: rail0 in 10.90.0.0/24, rail1
    /// in 10.91.0.0/24, and so on.
    pub(crate) fn rails_between(&self, pairs: &[[usize; 2]]) {
        let hosts: BTreeSet<usize> = pairs.iter().flatten().copied().collect();
        for host in hosts {
            self.on(
                host,
                "ip link set cable down; ip link set cable name docker0; ip link set docker0 up",
            );
        }
        for number in 0..2 * pairs.len() {
            let (name, pair) = (format!("rail{number}"), pairs[number / 2]);
            self.cable(pair.map(|host| (host, &*name)));
            for host in pair {
                let address = format!("10.9{number}.0.{host}/24");
                self.on(
                    host,
                    &format!("ip address add {address} dev {name}; ip link set {name} mtu 9000"),
                );
            }
        }
    }

    /// What a shell command prints on a host.
    pub(crate) fn on(&self, number: usize, script: &str) -> String {
        let output = self.hosts[number - 1]
            .enter("sh")
            .args(["-c", script])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a program on a host, until it is dropped.
    pub(crate) fn start_on(&self, number: usize, program: &str, args: &[&str]) -> Host {
        let mut command = self.hosts[number - 1].enter(program);
        Host(command.args(args).stdin(Stdio::null()).spawn().unwrap())
    }

    /// The folder in which the ssh servers look for programs first.
    pub(crate) fn programs(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Takes a host off the network.
    pub(crate) fn cut(&self, number: usize) {
        self.hub.ip(&format!("link set port{number} down\n"));
    }

    /// Waits until nothing runs on any host but its ssh server.
    pub(crate) fn until_clean(&self) {
        self.until(<[String]>::is_empty);
    }

    /// Waits until what is left on the hosts is as it should be.
    pub(crate) fn until(&self, is_fine: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.left();
            if is_fine(&left) {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processes in the hosts' namespaces, but for those that hold them.
    pub(crate) fn left(&self) -> Vec<String> {
        let all = self.hosts.iter().chain([&self.hub]);
        let holders: Vec<(PathBuf, u32)> =
            all.map(|host| (host.namespace(), host.0.id())).collect();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let foreign = entries.filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let namespace = namespace(pid)?;
            holders
                .iter()
                .find(|(held, holder)| *held == namespace && *holder != pid)?;
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            // A zombie has none.
            (!line.is_empty()).then(|| format!("{pid} {}", line.replace('\0', " ")))
        });
        foreign.collect()
    }
}

impl Host {
    /// Starts a program in namespaces of its own, with an empty `/run`, and an `/etc` that it may
    /// change.
    fn start(folder: &Path, name: &str, program: &[&str]) -> Self {
        let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
        let layers = folder.join(name);
        fs::create_dir(&layers).unwrap();
        let mut all = Command::new("unshare");
        all.args(["--net", "--mount", "sh", "-ec", IN_NAMESPACES, "sh"])
            .arg(layers)
            .args(program);
        all.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let host = Self(all.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        // By then, everything is mounted.
        while !host.is_running(program[0]) {
            assert!(
                Instant::now() < deadline,
                "{}",
                fs::read_to_string(folder.join(format!("{name}.log"))).unwrap()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        host
    }

    fn is_running(&self, program: &str) -> bool {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", self.0.id())).unwrap_or_default();
        // The server says so once it listens.
        let first = line.split('\0').next().unwrap_or_default();
        if program.ends_with("sshd") {
            first.contains("[listener]")
        } else {
            first == program
        }
    }

    fn namespace(&self) -> PathBuf {
        namespace(self.0.id()).unwrap()
    }

    fn ip(&self, lines: &str) {
        let mut command = self.enter("ip");
        let mut child = command
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(lines.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success(), "{lines}");
    }

    /// A program in this namespace.
    fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.0.id().to_string(),
            "--net",
            "--mount",
            program,
        ]);
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.enter(env!("CARGO_BIN_EXE_spark-perf"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .args(args)
            .env_clear()
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Interfaces have their IPv6 addresses at once. The first argument is a folder to mount layers in.
const IN_NAMESPACES: &str = "
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
mount -t tmpfs none $1
mkdir $1/upper $1/work
mount -t overlay none -o lowerdir=/etc,upperdir=$1/upper,workdir=$1/work /etc
mount -t tmpfs none /run
mount -t sysfs none /sys
mkdir /run/sshd /run/netplan
mkdir -p /etc/netplan
shift
exec \"$@\"
";

/// The address of the host with this number, from 1.
pub(crate) fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, number)
}

fn namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// The server's key, and the user's, which it accepts.
fn write_keys(folder: &Path) {
    for name in ["server-key", "key"] {
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(folder.join(name));
        assert!(command.status().unwrap().success());
    }
    let public = fs::read_to_string(folder.join("key.pub")).unwrap();
    fs::write(folder.join("accepted"), public).unwrap();
}

fn write_configurations(folder: &Path, count: u8) {
    let path = folder.display();
    let server = format!(
        "HostKey {path}/server-key\nAuthorizedKeysFile {path}/accepted\nStrictModes no\nPidFile \
         none\nUsePAM no\nUseDNS no\nPermitRootLogin yes\nMaxStartups 100\nSetEnv \
         PATH={path}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    );
    fs::create_dir(folder.join("bin")).unwrap();
    fs::write(folder.join("sshd"), server).unwrap();
    let mut client = String::new();
    for number in 1..=count {
        let _ = write!(client, "Host node{number}\nHostName {}\n", address(number));
    }
    let _ = write!(client, "Host refusing\nHostName {}\nPort 9\n", address(1));
    let _ = write!(
        client,
        "Host absent\nHostName {}\nConnectTimeout 1\n",
        address(99)
    );
    let _ = write!(
        client,
        "Host stranger\nHostName {}\nIdentityFile /dev/null\n",
        address(1)
    );
    let _ = write!(
        client,
        "Host unknown\nHostName {}\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n",
        address(1)
    );
    let _ = write!(
        client,
        "Host * !stranger\nIdentityFile {path}/key\nHost *\nIdentitiesOnly yes\nIdentityAgent \
         none\nUserKnownHostsFile {path}/known\nStrictHostKeyChecking accept-new\n"
    );
    fs::write(folder.join("ssh"), client).unwrap();
}
