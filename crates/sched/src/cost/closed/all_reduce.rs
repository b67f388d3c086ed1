//! Closed forms of `all_reduce`, which account for shared ports.

use super::super::Fabric;
use super::ClosedForm;
use super::path::{
    Path, RECV, RECV_COPY_SEND, RECV_REDUCE, RECV_REDUCE_COPY_SEND, RECV_REDUCE_SEND, SEND, Work,
};

impl ClosedForm<'_> {
    /// Messages go around the ring of all ranks twice, mostly within hosts.
    pub(super) fn all_reduce_ring(&self) -> f64 {
        let inner = self.ranks - 2.0;
        self.rounds(self.bytes / self.ranks, |bytes| {
            self.path.busy(SEND, bytes)
                + inner * self.ring_step(RECV_REDUCE_SEND, bytes)
                + self.ring_step(RECV_REDUCE_COPY_SEND, bytes)
                + inner * self.ring_step(RECV_COPY_SEND, bytes)
                + self.ring_step(RECV, bytes)
        })
    }

    /// A link that is always busy determines the time of all steps; otherwise each latency counts
    /// as often as its kind of link occurs in the ring.
    fn ring_step(&self, work: Work, bytes: f64) -> f64 {
        let step = self.path.stage(work, bytes);
        match self.fabric {
            Fabric::Hosts {
                per_host, inside, ..
            } if self.size > *per_host => {
                let inside = Path::new(inside);
                let hosts = f64::from(self.size.div_ceil(*per_host));
                let around = hosts * self.path.slice_time(work, bytes)
                    + (self.ranks - hosts) * inside.slice_time(work, bytes);
                let flow = self.path.busy(work, bytes).max(self.path.wire(bytes));
                flow.max(around / self.ranks)
            }
            _ => step,
        }
    }

    /// Halves of what is left go to the rank at distance 1, 2, 4, ..., and come back.
    pub(super) fn halving(&self) -> f64 {
        let phases = self.size.ilog2();
        let core = 1 << phases;
        let exchange = |phase: u32| {
            let path = self.path_at(1 << phase);
            let bytes = self.bytes / f64::from(2_u32 << phase);
            self.rounds(bytes, |bytes| {
                path.hop(SEND, RECV_REDUCE, bytes, false) + path.hop(SEND, RECV, bytes, false)
            })
        };
        let exchanges: f64 = (0..phases).map(exchange).sum();
        if self.size == core {
            return exchanges;
        }
        let extras = f64::from(self.size - core);
        let path = self.path_at(core);
        let path = Path {
            sharing: path.sharing.min(extras),
            ..path
        };
        let fold = |receive, bytes| path.hop(SEND, receive, bytes, true);
        let round = self.bytes.min(f64::from(core) * self.chunk);
        let rounds = self.bytes / round;
        exchanges + rounds * (fold(RECV_REDUCE, round) + fold(RECV, round))
    }

    /// The path of messages that all ranks exchange with the rank at `distance`.
    fn path_at(&self, distance: u32) -> Path<'_> {
        match self.fabric {
            Fabric::Switch(_) => self.path,
            Fabric::Cables(_) => {
                let short = distance.min(self.size - distance);
                // A rank forwards, in both directions, what the ranks between it and its partners
                // send. At half the ring's length, all send in the same direction.
                let sharing = if 2 * distance == self.size {
                    distance
                } else {
                    2 * short - 1
                };
                Path {
                    hops: f64::from(short),
                    sharing: f64::from(sharing),
                    ..self.path
                }
            }
            Fabric::Hosts {
                per_host,
                cards,
                inside,
                ..
            } => {
                if distance < *per_host && per_host.is_multiple_of(2 * distance) {
                    Path::new(inside)
                } else {
                    Path {
                        sharing: f64::from(per_host.div_ceil(*cards)),
                        ..self.path
                    }
                }
            }
        }
    }

    /// Turns of the ring within each host, and steps of the ring of hosts between them.
    pub(super) fn hierarchical(&self) -> f64 {
        let per_host = self.fabric.per_host(self.size).min(self.size);
        let hosts = self.size.div_ceil(per_host);
        let columns = match self.size % per_host {
            0 => per_host,
            last => last,
        };
        let levels = Levels {
            inside: self.path_inside(per_host),
            across: self.path_to_next_host(per_host, columns),
            per_host: f64::from(per_host),
            hosts: f64::from(hosts),
            is_one_port: !matches!(self.fabric, Fabric::Hosts { .. }),
        };
        self.rounds(self.bytes / f64::from(columns * hosts), |block| {
            let fit = (self.chunk / block).floor().clamp(1.0, levels.hosts);
            levels.round(block, fit)
        })
    }

    /// The path of messages that the ranks of all columns send to the rank `per_host` further.
    fn path_to_next_host(&self, per_host: u32, columns: u32) -> Path<'_> {
        let path = self.path_at(per_host);
        match self.fabric {
            Fabric::Cables(_) => Path {
                sharing: path.hops,
                ..path
            },
            Fabric::Hosts { cards, .. } => Path {
                sharing: f64::from(columns.div_ceil(*cards)),
                ..path
            },
            Fabric::Switch(_) => path,
        }
    }

    /// The path of messages between neighbours in a host's ring.
    fn path_inside(&self, per_host: u32) -> Path<'_> {
        match self.fabric {
            Fabric::Switch(_) => self.path,
            // From the last rank of a host to the first, through all ranks between them.
            Fabric::Cables(_) => Path {
                sharing: if per_host > 2 { 2.0 } else { 1.0 },
                hops: 2.0 * f64::from(per_host - 1) / f64::from(per_host),
                ..self.path
            },
            Fabric::Hosts { inside, .. } => Path::new(inside),
        }
    }
}

/// The two rings of a hierarchical `all_reduce`.
struct Levels<'a> {
    inside: Path<'a>,
    across: Path<'a>,
    per_host: f64,
    hosts: f64,
    /// Whether both rings go through the same ports.
    is_one_port: bool,
}

impl Levels<'_> {
    /// A round with blocks of `block` bytes. The ranks of a host process `fit` of them at a time.
    fn round(&self, block: f64, fit: f64) -> f64 {
        let turns = (self.hosts / fit).ceil();
        let reduce = self.turn(RECV_REDUCE_SEND, RECV_REDUCE, block * fit);
        let gather = self.turn(RECV_COPY_SEND, RECV, block * fit);
        if self.hosts < 2.0 {
            return reduce + gather;
        }
        let half = |turn: f64, work: Work, steps: f64| {
            let step = self.across.stage(work, block);
            let busy = self.across.busy(work, block);
            let wire = self.across.wire(block);
            // If both rings use one port, messages of the ring of hosts go first.
            let port = if self.is_one_port && self.per_host > 1.0 {
                let inside = (self.per_host - 1.0) * self.inside.wire(block * fit);
                inside + wire + self.inside.slice_time(SEND, block * fit)
            } else {
                0.0
            };
            let begin = (turn + busy).max(wire).max(port);
            // The longest chain of dependencies. One that follows a block around has each latency
            // once, and one turn. One that stays at a rank has all turns, but between them only the
            // time that the messages take.
            let longest = |turns: f64| {
                let stay = (turns - 1.0) * (fit - 1.0);
                let around = (steps - turns - stay).max(0.0);
                turns * begin + stay * busy.max(wire) + around * step
            };
            let others = match turns - 1.0 {
                later if later >= 1.0 => longest(1.0).max(longest(later)),
                _ => steps * step,
            };
            // The ring of hosts is idle during the first turn. Short messages wait for each other's
            // latency in any case.
            let fill = (step - self.across.slice_time(work, block)).min(self.across.latency());
            turn + others + fill
        };
        half(reduce, RECV_REDUCE_SEND, self.hosts - 1.0)
            + half(gather, RECV_COPY_SEND, self.hosts - 1.0)
    }

    /// One pass around the ring of a host's ranks.
    fn turn(&self, inner: Work, last: Work, bytes: f64) -> f64 {
        if self.per_host < 2.0 {
            return 0.0;
        }
        self.inside.busy(SEND, bytes)
            + (self.per_host - 2.0) * self.inside.stage(inner, bytes)
            + self.inside.stage(last, bytes)
    }
}
