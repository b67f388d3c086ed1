//! A warp's share of an operation, and the check that it does that.

use spark_ccl_sched::check::{Case, Contributions, Goal, Layout, Want, check};
use spark_ccl_sched::lockstep::Window;
use spark_ccl_sched::{Algorithm, Buf, Defect, Rank, Span, Step};
use spark_ccl_types::{DType, Operation, ReduceOp};

use super::{DEPTHS, Setting, Trace, trace};
use crate::call::Call;
use crate::plan::{Kernel, Plan};

/// An operation of `ranks` ranks on `words` words, by a grid of two warps.
pub(super) fn setting(kernel: Kernel, operation: Operation, ranks: usize, words: u64) -> Setting {
    let plan = Plan {
        kernel,
        ctas: 1,
        threads: 64,
    };
    let call = Call {
        operation,
        dtype: DType::U64,
        op: ReduceOp::Sum,
        factor: 0,
        is_factor_in_memory: false,
        root: 0,
        count: words as usize,
        input: 0,
        output: 0,
        in_place: false,
        words: [0; 2],
    };
    Setting {
        plans: [plan; 2],
        call,
        ranks,
        times: 2,
        seed: 1,
        depths: DEPTHS,
    }
}

/// A warp's share of an operation: its own batches, and nothing else.
struct Share<'a> {
    case: Case,
    setting: &'a Setting,
    /// By operation, then by batch: whether the batch is this warp's.
    batches: Vec<Vec<bool>>,
}

impl<'a> Share<'a> {
    fn new(setting: &'a Setting, warp: u64, in_place: bool) -> Self {
        let case = Case {
            operation: setting.call.operation,
            algorithm: Algorithm::Direct,
            in_place,
            size: setting.ranks as u32,
            count: setting.words(),
            root: setting.call.root as u32,
            chunk: 1,
            slice: 1,
        };
        let batches = |time| {
            let all = setting
                .divided(setting.kernel(time))
                .div_ceil(setting.batch());
            let own = setting.batches(warp, time);
            (0..all).map(|batch| own.contains(&batch)).collect()
        };
        Self {
            case,
            setting,
            batches: (0..setting.times).map(batches).collect(),
        }
    }

    /// Whether an element of a buffer is in a batch of this warp's.
    fn has(&self, index: u64) -> bool {
        let mut times = (0..).zip(&self.batches);
        times.any(|(time, batches)| {
            let divided = self.setting.divided(self.setting.kernel(time));
            batches[(index % divided / self.setting.batch()) as usize]
        })
    }

    /// Whether a step keeps to this warp's batches. The first one, which only gets what stands for
    /// flags, is not asked.
    fn keeps_to_its_batches(&self, step: &Step) -> bool {
        // None has more elements than a batch.
        let is_own = |Span { buf, offset, len }| {
            buf == Buf::Scratch || len == 0 || (self.has(offset) && self.has(offset + len - 1))
        };
        is_own(step.src) && is_own(step.dst)
    }
}

impl Goal for Share<'_> {
    fn layout(&self, rank: Rank) -> Layout {
        let mut layout = self.case.layout(rank);
        if layout.input.1 == 0 {
            // A word that stands for flags.
            layout.input = (layout.output.0 + layout.output.1, 1);
        }
        layout
    }

    fn want(&self, rank: Rank, index: u64) -> Want {
        if self.has(index) {
            self.case.want(rank, index)
        } else {
            Want::Same
        }
    }

    fn reduces(&self) -> bool {
        self.case.reduces()
    }
}

/// Checks all warps, after a change of their steps.
pub(super) fn checked(
    setting: &Setting,
    in_place: bool,
    tamper: impl Fn(&mut [Trace]),
) -> Result<(), Defect> {
    // In place, a second call would have another input.
    let setting = &Setting {
        times: if in_place { 1 } else { setting.times },
        ..*setting
    };
    // Kernels never wait for room.
    let window = Window {
        slice: setting.batch(),
        slots: usize::MAX,
    };
    (0..setting.times).for_each(|time| assert_each_batch_is_done_once(setting, time));
    for warp in 0..setting.warps() {
        let mut ranks = trace(setting, warp);
        let share = Share::new(setting, warp, in_place);
        tamper(&mut ranks);
        check::<Contributions, _>(&share, &ranks, window)?;
        for trace in &ranks {
            let mut steps = trace.steps.iter().skip(1);
            assert!(steps.all(|step| share.keeps_to_its_batches(step)));
        }
        assert_rounds_meet(&ranks);
    }
    Ok(())
}

fn assert_each_batch_is_done_once(setting: &Setting, time: u64) {
    let of_warps = (0..setting.warps()).flat_map(|warp| setting.batches(warp, time));
    let mut all: Vec<_> = of_warps.collect();
    all.sort_unstable();
    let divided = setting.divided(setting.kernel(time));
    assert!(all.into_iter().eq(0..divided.div_ceil(setting.batch())));
}

/// Each round that a rank sends is the next one that its peer receives.
fn assert_rounds_meet(ranks: &[Trace]) {
    let of = |all: &[(Rank, u64)], peer: Rank| -> Vec<u64> {
        let rounds = all.iter().filter(|(other, _)| *other == peer);
        rounds.map(|(_, round)| *round).collect()
    };
    for one in ranks {
        for other in ranks {
            let sent = of(&one.sent, other.rank);
            assert!(sent.is_sorted_by(|a, b| a < b));
            assert_eq!(sent, of(&other.received, one.rank));
        }
    }
}
