//! A case. Everything follows from its seed.

use std::time::Duration;

use spark_ccl_testing::scramble;

/// The network between the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    Shm,
    Loopback,
    /// Several hosts on a switch, with shared memory within each.
    Hosts,
    Rdma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    BeforeTheFirstCall,
    Idle,
    InALoop,
}

/// The fault of the victim, or of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Kill,
    /// Stopped until the others have given up, then woken up.
    Stop,
    /// Stopped for a moment that the others wait.
    Pause,
    /// The network between two hosts is gone.
    Cut([usize; 2]),
    /// ... but only from the first to the second.
    Mute([usize; 2]),
    /// ... for a moment.
    Gap([usize; 2]),
    /// The network between hosts loses this percentage of packets.
    Loss(usize),
    /// One of two rails carries nothing.
    Rail,
    /// It makes this call instead of the others'.
    Mismatch(String),
    /// Strangers write to every port of the job.
    Garbage,
    /// Strangers hold hundreds of silent connections to these ports.
    Silence,
    /// It is killed, and nobody reads the ranks' logs.
    BlockedLog,
    /// It is killed, while all ranks drop memory that is in use.
    Frees,
    /// It has a child that does this.
    Fork(&'static str),
    /// It is killed, and has a child that lives on.
    KillParent,
}

impl Fault {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Cut(_) => "cut",
            Self::Mute(_) => "mute",
            Self::Gap(_) => "gap",
            Self::Loss(_) => "loss",
            Self::Rail => "rail",
            Self::Mismatch(_) => "mismatch",
            Self::Garbage => "garbage",
            Self::Silence => "silence",
            Self::BlockedLog => "blocked log",
            Self::Frees => "frees",
            Self::Fork(what) => what,
            Self::KillParent => "kill parent",
        }
    }
}

#[derive(Debug)]
pub(super) struct Case {
    pub(super) seed: u32,
    pub(super) net: Net,
    pub(super) size: usize,
    /// The number of hosts; 1 unless the network is between hosts.
    pub(super) hosts: usize,
    pub(super) call: String,
    /// How often the call is made, in a loop.
    pub(super) rounds: usize,
    pub(super) moment: Moment,
    pub(super) victim: usize,
    pub(super) fault: Fault,
    /// Rounds that the victim makes with the others before a fault that it is ordered to commit.
    pub(super) victim_rounds: usize,
    /// The time from the start of the loop to the fault, or from the fault to the next call.
    pub(super) delay: Duration,
    /// How long a temporary fault lasts.
    pub(super) pause: Duration,
}

impl Case {
    pub(super) fn of(seed: u32) -> Self {
        let dice = &mut Dice { seed, thrown: 0 };
        let net = dice.one_of(&[Net::Shm, Net::Loopback, Net::Hosts, Net::Rdma]);
        let most = if net == Net::Rdma { 4 } else { 7 };
        let size = 2 + dice.below(most - 1);
        let hosts = match net {
            Net::Hosts => 2 + dice.below(size.min(4) - 1),
            _ => 1,
        };
        let call = Call::of(size, dice);
        let rounds = (2_000_000 / (call.count * size)).clamp(4, 300);
        let moment = dice.one_of(&[Moment::BeforeTheFirstCall, Moment::Idle, Moment::InALoop]);
        Self {
            seed,
            net,
            size,
            hosts,
            rounds,
            moment,
            victim: dice.below(size),
            fault: fault(&call, size, net, hosts, dice),
            victim_rounds: 1 + dice.below(rounds - 1),
            delay: Duration::from_millis(dice.below(150) as u64),
            pause: Duration::from_millis(100 + dice.below(900) as u64),
            call: call.order(),
        }
    }

    pub(super) fn host_of(&self, rank: usize) -> usize {
        rank * self.hosts / self.size
    }
}

fn fault(call: &Call, size: usize, net: Net, hosts: usize, dice: &mut Dice) -> Fault {
    let kinds = match net {
        Net::Shm | Net::Loopback => 13,
        Net::Rdma => 17,
        Net::Hosts => 21,
    };
    match dice.below(kinds) {
        0 => Fault::None,
        1 => Fault::Kill,
        2 => Fault::Stop,
        3 => Fault::Pause,
        4 | 5 => Fault::Mismatch(call.other(size, dice).order()),
        6 => Fault::Garbage,
        7 => Fault::Fork(dice.one_of(&["return", "use"])),
        8 => Fault::Fork("sleep"),
        9 => Fault::KillParent,
        10 => Fault::Silence,
        11 => Fault::BlockedLog,
        12 => Fault::Frees,
        13 | 14 => Fault::Loss(1 + dice.below(5)),
        _ if net == Net::Rdma => Fault::Rail,
        way => {
            let one = dice.below(hosts);
            let other = (one + 1 + dice.below(hosts - 1)) % hosts;
            match way {
                15 | 16 => Fault::Cut([one, other]),
                17 | 18 => Fault::Mute([one, other]),
                _ => Fault::Gap([one, other]),
            }
        }
    }
}

const MEMORIES: [&str; 3] = ["", "allocated ", "registered "];
const TYPES: [&str; 3] = ["f32", "i32", "f64"];
const OPS: [&str; 2] = ["sum", "max"];
const OPERATIONS: [&str; 11] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    ALL_TO_ALL_V,
    "ring",
    BARRIER,
];
const ALL_TO_ALL_V: &str = "all_to_all_v";
/// A barrier has no type, count or memory.
const BARRIER: &str = "barrier";

/// An order of `processes_rank.rs`.
#[derive(Clone)]
struct Call {
    memory: &'static str,
    dtype: &'static str,
    operation: &'static str,
    op: &'static str,
    root: usize,
    count: usize,
    /// In `all_to_all_v`: the distance to the rank that is sent more than it expects.
    ahead: Option<usize>,
}

impl Call {
    fn of(size: usize, dice: &mut Dice) -> Self {
        let magnitude = 1 << dice.below(17);
        Self {
            memory: dice.one_of(&MEMORIES),
            dtype: dice.one_of(&TYPES),
            operation: dice.one_of(&OPERATIONS),
            op: dice.one_of(&OPS),
            root: dice.below(size),
            count: magnitude + dice.below(magnitude),
            ahead: None,
        }
    }

    /// Another call, which differs in one thing that ranks may get wrong.
    fn other(&self, size: usize, dice: &mut Dice) -> Self {
        let mut other = self.clone();
        match dice.below(4) {
            _ if self.operation == BARRIER => {
                other.operation = dice.one_of_others(&OPERATIONS, BARRIER);
            }
            0 => other.dtype = dice.one_of_others(&TYPES, self.dtype),
            1 if self.operation == "all_reduce" => {
                other.op = dice.one_of_others(&OPS, self.op);
            }
            1 if self.is_rooted() => {
                other.root = (self.root + 1 + dice.below(size - 1)) % size;
            }
            1 if self.operation == ALL_TO_ALL_V => other.ahead = Some(1 + dice.below(size - 1)),
            2 => other.operation = dice.one_of_others(&OPERATIONS, self.operation),
            _ => other.count += 1 + dice.below(self.count),
        }
        other
    }

    fn is_rooted(&self) -> bool {
        ["broadcast", "reduce", "gather", "scatter"].contains(&self.operation)
    }

    fn order(&self) -> String {
        let argument = match self.operation {
            BARRIER => return BARRIER.to_owned(),
            "all_reduce" => format!("{} ", self.op),
            _ if self.is_rooted() => format!("{} ", self.root),
            _ => String::new(),
        };
        let (memory, dtype, count) = (self.memory, self.dtype, self.count);
        let ahead = self
            .ahead
            .map_or_else(String::new, |ahead| format!(" {ahead}"));
        format!(
            "{memory}{dtype} {} {argument}{count}{ahead}",
            self.operation
        )
    }
}

pub(super) struct Dice {
    pub(super) seed: u32,
    pub(super) thrown: u64,
}

impl Dice {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.thrown += 1;
        (scramble(u64::from(self.seed), self.thrown) % end as u64) as usize
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn one_of_others(&mut self, all: &[&'static str], not: &str) -> &'static str {
        let others: Vec<_> = all.iter().copied().filter(|&one| one != not).collect();
        self.one_of(&others)
    }
}
