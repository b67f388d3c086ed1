//! Chooses an operation's kernel and grid: a pure function of data that all ranks know, so that all
//! choose the same.

use spark_ccl_types::Operation;

use crate::layout::{MAX_CTAS, MAX_RANKS, MAX_WARPS};

/// A kernel of `kernels/collectives.cu`. *Packets* are 16 bytes with 8 of data, and work over any
/// connection between GPUs. *Lines* are 128 bytes with 120 of data, and require a connection that
/// does not tear them. Through the host's memory, there are *quads*, of 16 bytes with 12 of data.
/// In one shot, each rank sends its data to all and reduces what it receives; in two, each reduces
/// a part and sends the result to all. If a rank *leads*, its warps divide a buffer among
/// themselves at run time, and the other rank's warps follow. That helps on a saturated link, where
/// a GPU does not serve its multiprocessors equally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Reduces, by one shot, with packets.
    OneShotPackets,
    /// Reduces, by one shot, with lines.
    OneShotLines,
    /// Reduces, by two shots, with packets.
    TwoShotsPackets,
    /// Reduces, by two shots, with lines.
    TwoShotsLines,
    /// Concatenates the parts of ranks, with packets.
    SideBySidePackets,
    /// Concatenates the parts of ranks, with lines.
    SideBySideLines,
    /// Reduces between two ranks with lines; one rank leads.
    LedReduction,
    /// Concatenates the parts of two ranks with lines; one rank leads.
    LedSideBySide,
    /// Reduces, by one shot, with quads.
    OneShotQuads,
    /// Reduces, by two shots, with quads.
    TwoShotsQuads,
    /// Concatenates the parts of ranks, with quads.
    SideBySideQuads,
}

/// How a kernel passes a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Packets,
    Lines,
    Quads,
}

impl Protocol {
    /// The protocols of messages.
    pub(crate) const OF_MESSAGES: [Self; 3] = [Self::Packets, Self::Lines, Self::Quads];

    /// The words of 8 bytes that a warp sends at once.
    pub(crate) const fn batch(self) -> u64 {
        match self {
            Self::Packets => 32,
            Self::Lines => 240,
            Self::Quads => 192,
        }
    }
}

/// How a kernel uses the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OneShot,
    TwoShots,
    SideBySide,
}

impl Kernel {
    /// All kernels, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::OneShotPackets,
        Self::OneShotLines,
        Self::TwoShotsPackets,
        Self::TwoShotsLines,
        Self::SideBySidePackets,
        Self::SideBySideLines,
        Self::LedReduction,
        Self::LedSideBySide,
        Self::OneShotQuads,
        Self::TwoShotsQuads,
        Self::SideBySideQuads,
    ];

    /// Its name in the source.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneShotPackets => "one_shot_packets",
            Self::OneShotLines => "one_shot_lines",
            Self::TwoShotsPackets => "two_shots_packets",
            Self::TwoShotsLines => "two_shots_lines",
            Self::SideBySidePackets => "side_by_side_packets",
            Self::SideBySideLines => "side_by_side_lines",
            Self::LedReduction => "led_reduction",
            Self::LedSideBySide => "led_side_by_side",
            Self::OneShotQuads => "one_shot_quads",
            Self::TwoShotsQuads => "two_shots_quads",
            Self::SideBySideQuads => "side_by_side_quads",
        }
    }

    /// Whether the kernel works over a wire.
    pub const fn fits(self, wire: Wire) -> bool {
        match self.protocol() {
            Protocol::Packets => true,
            Protocol::Lines => matches!(wire, Wire::Whole),
            Protocol::Quads => matches!(wire, Wire::Host),
        }
    }

    /// Whether the kernel is for this number of ranks.
    pub const fn takes(self, ranks: usize) -> bool {
        ranks == 2 || !self.is_led()
    }

    pub(crate) const fn is_led(self) -> bool {
        matches!(self, Self::LedReduction | Self::LedSideBySide)
    }

    /// Whether the kernel does an operation.
    pub const fn does(self, operation: Operation) -> bool {
        match operation {
            Operation::AllReduce => !matches!(self.shape(), Shape::SideBySide),
            Operation::ReduceScatter | Operation::Reduce => matches!(self.shape(), Shape::OneShot),
            Operation::AllGather
            | Operation::AllToAll
            | Operation::Broadcast
            | Operation::Gather
            | Operation::Scatter => matches!(self.shape(), Shape::SideBySide),
            _ => false,
        }
    }

    pub(crate) const fn shape(self) -> Shape {
        match self {
            Self::OneShotPackets | Self::OneShotLines | Self::LedReduction | Self::OneShotQuads => {
                Shape::OneShot
            }
            Self::TwoShotsPackets | Self::TwoShotsLines | Self::TwoShotsQuads => Shape::TwoShots,
            Self::SideBySidePackets
            | Self::SideBySideLines
            | Self::LedSideBySide
            | Self::SideBySideQuads => Shape::SideBySide,
        }
    }

    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            Self::OneShotPackets | Self::TwoShotsPackets | Self::SideBySidePackets => {
                Protocol::Packets
            }
            Self::OneShotLines
            | Self::TwoShotsLines
            | Self::SideBySideLines
            | Self::LedReduction
            | Self::LedSideBySide => Protocol::Lines,
            Self::OneShotQuads | Self::TwoShotsQuads | Self::SideBySideQuads => Protocol::Quads,
        }
    }
}

/// The limits of plans, the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most CTAs of a kernel, from 1 to 32. All CTAs of ranks that share a GPU must fit on it.
    pub ctas: u32,
    /// The connection between the GPUs.
    pub wire: Wire,
}

/// The connection between the GPUs of all ranks, as far as it decides how data is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Any connection by which they reach each other's memory.
    Any,
    /// A connection that does not tear lines: within a GPU, or over `NVLink`.
    Whole,
    /// Pinned memory of the host, which all of them reach over `PCIe`.
    Host,
}

/// How an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The kernel.
    pub kernel: Kernel,
    /// How many CTAs its grid has.
    pub ctas: u32,
    /// How many threads each CTA has.
    pub threads: u32,
}

impl Plan {
    /// The plan of an operation in which each rank sends `bytes` bytes to each other one. `None` if
    /// there is no kernel for the operation, or for this number of ranks.
    ///
    /// ```
    /// use spark_ccl_gpu::{Kernel, Limits, Plan, Wire};
    /// use spark_ccl_types::Operation;
    ///
    /// let limits = Limits { ctas: 32, wire: Wire::Whole };
    /// let plan = Plan::new(Operation::AllReduce, 8, 2, limits);
    /// let small = Plan { kernel: Kernel::OneShotPackets, ctas: 1, threads: 32 };
    /// assert_eq!(plan, Some(small));
    /// ```
    pub fn new(operation: Operation, bytes: u64, ranks: usize, limits: Limits) -> Option<Self> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return None;
        }
        let sent = bytes.saturating_mul(ranks as u64 - 1);
        let has_two_shots = operation == Operation::AllReduce && ranks > 2 && sent > TWO_SHOTS;
        let protocol = limits.wire.protocol(sent, has_two_shots);
        let is_led =
            ranks == 2 && protocol == Protocol::Lines && sent > LED && limits.ctas >= LED_CTAS;
        let mut kernels = Kernel::ALL.into_iter();
        let kernel = kernels.find(|kernel| {
            kernel.does(operation)
                && (kernel.shape() == Shape::TwoShots) == has_two_shots
                && kernel.protocol() == protocol
                && kernel.is_led() == is_led
        })?;
        Some(Self::of(kernel, bytes, ranks, limits))
    }

    /// Why [`new`](Self::new) takes this kernel, for people.
    pub const fn reason(&self, limits: Limits) -> &'static str {
        if self.kernel.is_led() {
            return "more than 4 MiB between two ranks: one divides the work at run time";
        }
        if matches!(self.kernel.shape(), Shape::TwoShots) {
            return "more than 256 KiB to all peers, three ranks and more: fewest bytes";
        }
        match (self.kernel.protocol(), limits.wire) {
            (Protocol::Lines, _) => "more than 64 KiB to all peers: fewer bytes than in packets",
            (Protocol::Quads, _) => "more than 8 KiB to all peers, through the host",
            (Protocol::Packets, Wire::Whole) => "at most 64 KiB to all peers: fewest waits",
            (Protocol::Packets, Wire::Host) => "at most 8 KiB to all peers, through the host",
            (Protocol::Packets, Wire::Any) => "lines may be torn on the way",
        }
    }

    /// The grid of a kernel: few warps in each CTA, as long as there are CTAs left. A kernel in
    /// which a rank leads has the same grid for all lengths, since its warps share one count.
    pub fn of(kernel: Kernel, bytes: u64, ranks: usize, limits: Limits) -> Self {
        let words = bytes.div_ceil(8);
        let parts = match kernel.shape() {
            Shape::TwoShots => ranks.max(1),
            Shape::OneShot | Shape::SideBySide => 1,
        };
        let batches = words
            .div_ceil(parts as u64)
            .div_ceil(kernel.protocol().batch());
        let most = limits.ctas.clamp(1, MAX_CTAS);
        if kernel.is_led() {
            return Self {
                kernel,
                ctas: most,
                threads: 32 * MAX_WARPS,
            };
        }
        let most = u64::from(if ranks == 2 && bytes <= NARROW {
            most.min(NARROW_CTAS)
        } else {
            most
        });
        let ctas = batches.div_ceil(WARPS_OF_SMALL_CTA).clamp(1, most);
        let warps = batches.div_ceil(ctas).clamp(1, u64::from(MAX_WARPS));
        Self {
            kernel,
            ctas: ctas as u32,
            threads: 32 * warps as u32,
        }
    }
}

impl Wire {
    /// The protocol of messages between two ranks.
    pub(crate) const fn of_messages(self) -> Protocol {
        match self {
            Self::Any => Protocol::Packets,
            Self::Whole => Protocol::Lines,
            Self::Host => Protocol::Quads,
        }
    }

    /// The protocol for this many bytes to all peers together.
    const fn protocol(self, sent: u64, has_two_shots: bool) -> Protocol {
        match self {
            Self::Whole
                if sent
                    > (if has_two_shots {
                        TWO_SHOTS_PACKETS
                    } else {
                        PACKETS
                    }) =>
            {
                Protocol::Lines
            }
            Self::Host if sent > HOST_PACKETS => Protocol::Quads,
            _ => Protocol::Packets,
        }
    }
}

const WARPS_OF_SMALL_CTA: u64 = 4;
/// Above this many bytes to all peers together, data goes in lines, if it can.
const PACKETS: u64 = 64 << 10;
/// Above this many bytes, an `all_reduce` of three ranks and more goes in two shots.
const TWO_SHOTS: u64 = 256 << 10;
const TWO_SHOTS_PACKETS: u64 = 1 << 20;
/// Above this many bytes, data goes through the host in quads.
const HOST_PACKETS: u64 = 8 << 10;
/// Above this many bytes, one of two ranks leads. Measured on two H100: that takes 21 % longer at 2
/// MiB. Above, it takes less time: 2 % at 4 MiB, 6 % at 8 MiB, 13 % at 16 MiB.
const LED: u64 = 4 << 20;
/// With fewer CTAs, the follower's waits are not hidden.
const LED_CTAS: u32 = 24;
/// Up to this many bytes between two ranks, more CTAs would only take multiprocessors from other
/// kernels. On two H100, 24 CTAs take as long as 32 from 128 KiB to 4 MiB.
const NARROW: u64 = 4 << 20;
const NARROW_CTAS: u32 = 24;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) const OPERATIONS: [Operation; 8] = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::AllToAll,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Gather,
        Operation::Scatter,
    ];

    proptest! {
        #[test]
        fn plans_keep_their_limits(
            operation in 0..OPERATIONS.len(),
            bytes in prop_oneof![0..100_u64, 0..1_u64 << 20, any::<u64>()],
            ranks in 1..=crate::MAX_RANKS,
            ctas in 1..=MAX_CTAS,
            wire in prop_oneof![Just(Wire::Any), Just(Wire::Whole), Just(Wire::Host)],
        ) {
            let operation = OPERATIONS[operation];
            let limits = Limits { ctas, wire };
            let plan = Plan::new(operation, bytes, ranks, limits).unwrap();
            prop_assert!(plan.kernel.does(operation));
            prop_assert!(plan.kernel.fits(wire));
            prop_assert!((1..=ctas).contains(&plan.ctas));
            prop_assert!(plan.threads.is_multiple_of(32));
            prop_assert!((1..=MAX_WARPS).contains(&(plan.threads / 32)));
            if plan.kernel.is_led() {
                prop_assert!(ranks == 2 && plan.ctas == ctas && plan.threads == 32 * MAX_WARPS);
                return Ok(());
            }
            // Every CTA has work, except for an operation without data, which only sends
            // signatures.
            let parts = if plan.kernel.shape() == Shape::TwoShots { ranks as u64 } else { 1 };
            let batches = bytes.div_ceil(8).div_ceil(parts).div_ceil(plan.kernel.protocol().batch());
            prop_assert!(u64::from(plan.ctas) <= batches.max(1));
            // With more bytes, the same kernel has no fewer threads.
            let twice = Plan::of(plan.kernel, bytes.saturating_mul(2), ranks, limits);
            prop_assert!(twice.ctas >= plan.ctas);
        }
    }

    #[test]
    fn large_messages_take_what_sends_the_least() {
        let kernel = |bytes, ranks, wire| {
            let limits = Limits { ctas: 32, wire };
            Plan::new(Operation::AllReduce, bytes, ranks, limits)
                .unwrap()
                .kernel
        };
        assert_eq!(kernel(64 << 10, 2, Wire::Whole), Kernel::OneShotPackets);
        assert_eq!(kernel((64 << 10) + 1, 2, Wire::Whole), Kernel::OneShotLines);
        assert_eq!(kernel(4 << 20, 2, Wire::Whole), Kernel::OneShotLines);
        assert_eq!(kernel((4 << 20) + 1, 2, Wire::Whole), Kernel::LedReduction);
        assert_eq!(kernel(1 << 30, 2, Wire::Any), Kernel::OneShotPackets);
        assert_eq!(kernel(1 << 20, 8, Wire::Whole), Kernel::TwoShotsLines);
        assert_eq!(kernel(100 << 10, 8, Wire::Whole), Kernel::TwoShotsPackets);
        assert_eq!(kernel(1 << 30, 8, Wire::Any), Kernel::TwoShotsPackets);
    }

    #[test]
    fn reasons_name_the_limits() {
        let reason = |bytes, ranks, wire| {
            let limits = Limits { ctas: 32, wire };
            let plan = Plan::new(Operation::AllReduce, bytes, ranks, limits).unwrap();
            plan.reason(limits)
        };
        for (bytes, ranks, wire, says) in [
            (LED + 1, 2, Wire::Whole, "more than 4 MiB"),
            (TWO_SHOTS, 3, Wire::Whole, "more than 256 KiB"),
            (PACKETS + 1, 2, Wire::Whole, "more than 64 KiB"),
            (PACKETS, 2, Wire::Whole, "at most 64 KiB"),
            (HOST_PACKETS + 1, 2, Wire::Host, "more than 8 KiB"),
            (HOST_PACKETS, 2, Wire::Host, "at most 8 KiB"),
            (LED, 2, Wire::Any, "lines may be torn"),
        ] {
            let said = reason(bytes, ranks, wire);
            assert!(said.starts_with(says), "{bytes}: {said}");
        }
    }

    #[test]
    fn numbers_of_ranks_without_kernels_have_no_plan() {
        let limits = Limits {
            ctas: 8,
            wire: Wire::Whole,
        };
        for ranks in [0, MAX_RANKS + 1, usize::MAX] {
            assert_eq!(Plan::new(Operation::AllReduce, 100, ranks, limits), None);
            assert_eq!(Plan::of(Kernel::TwoShotsLines, 0, ranks, limits).ctas, 1);
        }
    }

    #[test]
    fn other_operations_have_no_kernel() {
        let limits = Limits {
            ctas: 8,
            wire: Wire::Whole,
        };
        for operation in Operation::ALL {
            let plan = Plan::new(operation, 100, 4, limits);
            assert_eq!(
                plan.is_some(),
                OPERATIONS.contains(&operation),
                "{operation:?}"
            );
        }
    }
}
