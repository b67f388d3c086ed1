//! The kernels that `spark-perf tune` has found fastest between GPUs like these.

use spark_ccl_config::{GpuLayout, GpuWire, KernelEntry, Tuning};
use spark_ccl_gpu::{Kernel, Limits, Wire};
use spark_ccl_types::Operation;

use crate::device::agreement::ToldGpu;
use crate::plan::measured::Measured;

/// The layout on which the times of these ranks' kernels depend; `None` if their GPUs are of
/// several models.
pub(super) fn layout(all: &[ToldGpu], limits: Limits) -> Option<GpuLayout> {
    let gpu = &all.first()?.model;
    all.iter()
        .all(|other| other.model == *gpu)
        .then(|| GpuLayout {
            gpu: gpu.clone(),
            wire: match limits.wire {
                Wire::Any => GpuWire::Packets,
                Wire::Whole => GpuWire::Lines,
                Wire::Host => GpuWire::Host,
            },
            ctas: limits.ctas,
            ranks: all.len() as u32,
        })
}

/// The fastest kernels, the same on all ranks, as the layout and the measurements are.
pub(super) fn measured(tuning: &Tuning, layout: &GpuLayout, limits: Limits) -> Measured<Kernel> {
    let entries = tuning.kernels_of(layout);
    entries.filter_map(|entry| steps(entry, limits)).collect()
}

/// The kernels that do an operation between these ranks.
pub(super) fn candidates(
    operation: Operation,
    ranks: usize,
    limits: Limits,
) -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(move |kernel| {
        kernel.does(operation) && kernel.takes(ranks) && kernel.fits(limits.wire)
    })
}

/// Nothing if the entry names a kernel that does not do this collective here.
fn steps(entry: &KernelEntry, limits: Limits) -> Option<(Operation, Vec<(u64, Kernel)>)> {
    let (operation, layout) = (entry.collective, &entry.layout);
    let find = |name: &str| {
        let mut all = candidates(operation, layout.ranks as usize, limits);
        all.find(|kernel| kernel.name() == name)
    };
    let steps = entry.steps.iter().map(|step| {
        let kernel = find(&step.kernel);
        if kernel.is_none() {
            spark_ccl_log::warn!(
                "measured kernels of {operation} are not used: {:?} does not do it among {layout}; \
                 spark-perf tune --backend engine measures them anew",
                step.kernel
            );
        }
        Some((step.up_to, kernel?))
    });
    Some((operation, steps.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use spark_ccl_config::KernelStep;

    use super::*;

    const LIMITS: Limits = Limits {
        ctas: 32,
        wire: Wire::Whole,
    };

    fn gpus(models: &[&str]) -> Vec<ToldGpu> {
        let gpu = |model: &&str| ToldGpu {
            revision: 1,
            place: "a".to_owned(),
            model: (*model).to_owned(),
            generation: 9,
            multiprocessors: 132,
            most_ctas: 32,
        };
        models.iter().map(gpu).collect()
    }

    fn tuned(layout: &GpuLayout, collective: Operation, kernels: [&str; 2]) -> Tuning {
        let [small, large] = kernels.map(str::to_owned);
        let step = |up_to, kernel| KernelStep { up_to, kernel };
        let mut tuning = Tuning::default();
        tuning.put_kernels(KernelEntry {
            layout: layout.clone(),
            collective,
            steps: vec![step(1000, small), step(5000, large)],
        });
        tuning
    }

    #[test]
    fn tables_are_of_one_model_and_way() {
        let both = layout(&gpus(&["NVIDIA H200"; 2]), LIMITS).unwrap();
        assert_eq!((both.wire, both.ranks, both.ctas), (GpuWire::Lines, 2, 32));
        assert_eq!(layout(&gpus(&["NVIDIA H200", "NVIDIA H100"]), LIMITS), None);
        let kernels = ["one_shot_lines", "led_reduction"];
        let tuning = tuned(&both, Operation::AllReduce, kernels);
        let found = measured(&tuning, &both, LIMITS);
        let of = |operation, bytes| found.fastest(operation, bytes);
        assert_eq!(of(Operation::AllReduce, 1000), Some(Kernel::OneShotLines));
        assert_eq!(of(Operation::AllReduce, 1001), Some(Kernel::LedReduction));
        assert_eq!(
            of(Operation::AllReduce, 1 << 40),
            Some(Kernel::LedReduction)
        );
        assert_eq!(of(Operation::ReduceScatter, 8), None);
        let limits = Limits {
            wire: Wire::Host,
            ..LIMITS
        };
        let by_host = layout(&gpus(&["NVIDIA H200"; 2]), limits).unwrap();
        let found = measured(&tuning, &by_host, limits);
        assert_eq!(found.fastest(Operation::AllReduce, 8), None);
    }

    #[test]
    fn kernels_that_cannot_do_it_are_not_taken() {
        let three = layout(&gpus(&["NVIDIA H200"; 3]), LIMITS).unwrap();
        for wrong in [
            "side_by_side_lines",
            "led_reduction",
            "one_shot_quads",
            "one_shot_pockets",
        ] {
            let kernels = ["two_shots_packets", wrong];
            let tuning = tuned(&three, Operation::AllReduce, kernels);
            let found = measured(&tuning, &three, LIMITS);
            assert_eq!(found.fastest(Operation::AllReduce, 8), None, "{wrong}");
        }
        let kernels = ["two_shots_packets", "two_shots_lines"];
        let tuning = tuned(&three, Operation::AllReduce, kernels);
        let found = measured(&tuning, &three, LIMITS);
        let found = found.fastest(Operation::AllReduce, 8);
        assert_eq!(found, Some(Kernel::TwoShotsPackets));
    }
}
