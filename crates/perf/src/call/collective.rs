//! The collectives that can be measured: names, sizes, and bandwidth formulas.

use clap::ValueEnum;
use spark_ccl::{Operation, Side};

use crate::call::uneven;

/// The measured collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Collective {
    /// Every rank gets the reduction of all ranks' vectors
    #[value(alias = "allreduce")]
    AllReduce,
    /// Every rank gets all ranks' blocks
    #[value(alias = "allgather")]
    AllGather,
    /// Every rank gets its block of the reduction
    #[value(alias = "reducescatter")]
    ReduceScatter,
    /// Every rank gets the root's vector
    Broadcast,
    /// The root gets the reduction
    Reduce,
    /// The root gets all ranks' blocks
    Gather,
    /// Every rank gets its block of the root's vector
    Scatter,
    /// Every rank sends a block to every rank
    #[value(name = "alltoall", alias = "all_to_all")]
    AllToAll,
    /// As alltoall, with blocks that grow with the distance between the ranks
    #[value(name = "alltoallv", alias = "all_to_all_v")]
    AllToAllV,
    /// Every rank sends to the next rank and receives from the one before
    #[value(name = "sendrecv", alias = "send_recv")]
    SendRecv,
    /// All-gather by pairwise exchanges along the edges of a hypercube; needs a power of two of
    /// ranks
    Hypercube,
}

/// The lengths of a rank's buffers for one size of the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The table's count column, which is the count argument of the call.
    pub(crate) count: usize,
    /// The length of the send buffer in elements.
    pub(crate) send: usize,
    /// The length of the receive buffer in elements.
    pub(crate) recv: usize,
}

impl Layout {
    /// The length of the larger buffer; the size column is this times the element size.
    pub(crate) fn larger(&self) -> usize {
        self.send.max(self.recv)
    }
}

impl Collective {
    /// The name in the table's header and footer: that of nccl-tests' program.
    pub(crate) fn program(self) -> String {
        format!("{}_perf", self.name())
    }

    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "alltoall",
            Self::AllToAllV => "alltoallv",
            Self::SendRecv => "sendrecv",
            Self::Hypercube => "hypercube",
            _ => self.operation().name(),
        }
    }

    /// The library's operation that it is, or consists of.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Broadcast => Operation::Broadcast,
            Self::Reduce => Operation::Reduce,
            Self::Gather => Operation::Gather,
            Self::Scatter => Operation::Scatter,
            Self::AllToAll => Operation::AllToAll,
            Self::AllToAllV => Operation::AllToAllV,
            Self::SendRecv | Self::Hypercube => Operation::SendRecv,
        }
    }

    /// The text of the redop column if `-o` has no effect, as in nccl-tests.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::SendRecv => "sum",
            Self::Hypercube => "",
            _ => "none",
        }
    }

    /// The element counts for a size of `bytes`; a rank's share is rounded down to 16 bytes.
    pub(crate) fn layout(self, bytes: u64, element: usize, ranks: usize) -> Layout {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / element;
        let share = uneven::floor_to_16_bytes(count / ranks, element);
        let whole = share * ranks;
        match self {
            Self::SendRecv => Layout {
                count,
                send: count,
                recv: count,
            },
            Self::Hypercube => Layout {
                count: share,
                send: share,
                recv: whole,
            },
            Self::AllToAllV => {
                let total = uneven::total(whole, element, ranks);
                Layout {
                    count: share,
                    send: total,
                    recv: total,
                }
            }
            _ => {
                let operation = self.operation();
                let count = if operation.is_divided() { share } else { count };
                let [send, recv] = [Side::Input, Side::Output].map(|side| {
                    let elements = operation.extent(side).elements(count as u64, ranks as u32);
                    elements as usize
                });
                Layout { count, send, recv }
            }
        }
    }

    /// The algorithm bandwidth and the bus bandwidth, in GB/s (1e9), of a call that took `seconds`.
    pub(crate) fn bandwidth(
        self,
        layout: &Layout,
        element: usize,
        ranks: usize,
        seconds: f64,
    ) -> (f64, f64) {
        let n = ranks as f64;
        let count = (layout.count * element) as f64;
        let (bytes, factor) = match self {
            Self::AllReduce => (count, 2.0 * (n - 1.0) / n),
            Self::Broadcast | Self::Reduce | Self::SendRecv => (count, 1.0),
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter => (count * n, (n - 1.0) / n),
            Self::AllToAllV => ((layout.larger() * element) as f64, (n - 1.0) / n),
            Self::Hypercube => (count * (n - 1.0), 1.0),
        };
        let algorithm = bytes / 1e9 / seconds;
        (algorithm, algorithm * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let layout = |c: Collective, bytes, n| c.layout(bytes, 4, n);
        assert_eq!(
            layout(Collective::AllReduce, 1024, 3),
            Layout {
                count: 256,
                send: 256,
                recv: 256
            }
        );
        // 256 / 3 = 85, rounded down to a multiple of four floats.
        assert_eq!(
            layout(Collective::AllGather, 1024, 3),
            Layout {
                count: 84,
                send: 84,
                recv: 252
            }
        );
        assert_eq!(
            layout(Collective::ReduceScatter, 1024, 3),
            Layout {
                count: 84,
                send: 252,
                recv: 84
            }
        );
        assert_eq!(
            layout(Collective::AllToAll, 1024, 3),
            Layout {
                count: 84,
                send: 252,
                recv: 252
            }
        );
        assert_eq!(
            layout(Collective::Gather, 8, 2),
            Layout {
                count: 0,
                send: 0,
                recv: 0
            }
        );
    }

    #[test]
    fn bandwidths() {
        let bus = |c: Collective, n: usize| {
            let layout = c.layout(1 << 20, 4, n);
            c.bandwidth(&layout, 4, n, 1e-3)
        };
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let s = f64::from(1 << 20) / 1e9 / 1e-3;
        close(bus(Collective::AllReduce, 4).0, s);
        close(bus(Collective::AllReduce, 4).1, s * 1.5);
        close(bus(Collective::AllGather, 4).1, s * 0.75);
        close(bus(Collective::Broadcast, 4).1, s);
        close(bus(Collective::Hypercube, 4).0, s * 0.75);
        close(bus(Collective::Hypercube, 4).1, s * 0.75);
    }

    #[test]
    fn names_parse_back() {
        for c in Collective::value_variants() {
            assert_eq!(Collective::from_str(c.name(), false), Ok(*c));
        }
    }
}
