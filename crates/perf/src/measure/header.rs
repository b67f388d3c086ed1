//! The description of a run beside its results: the lines above and below the table, and the JSON
//! report's configuration.

use spark_ccl_console::notation::size::human;

use super::bench::Platform;
use crate::cli::options::{Blocking, Options};
use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::limits;
use crate::report::json::{Config, DeviceEntry};
use crate::report::table;

/// The lines above the table.
pub(super) fn header(
    platform: &impl Platform,
    options: &Options,
    lowered: Option<&str>,
) -> Result<String, Error> {
    let mut lines = vec![
        format!(
            "# spark-perf version {} ({})",
            env!("CARGO_PKG_VERSION"),
            spark_ccl::VERSION
        ),
        format!(
            "# Collective test starting: {}",
            options.collective.program()
        ),
        settings_line(options),
    ];
    lines.extend(
        platform
            .nccl_version()
            .map(|version| format!("# NCCL version {version}")),
    );
    lines.extend(
        options
            .notes
            .iter()
            .chain(lowered.map(str::to_owned).as_ref())
            .map(|note| format!("# {note}")),
    );
    lines.push("#".into());
    lines.push("# Using devices".into());
    lines.extend(platform.devices().iter().map(table::device));
    lines.push("#".into());
    let mut sizes = vec![options.sweep.min, options.sweep.last()];
    sizes.dedup();
    lines.extend(platform.lines(options, &sizes)?);
    Ok(lines.join("\n") + "\n")
}

/// The header's line with the arguments, as nccl-tests prints it.
fn settings_line(options: &Options) -> String {
    let Sweep {
        min,
        max,
        factor,
        step,
    } = options.sweep;
    let (step, unit) = if factor > 1 {
        (factor, "factor")
    } else {
        (step, "bytes")
    };
    format!(
        "# nThread {} nGpus {} minBytes {min} maxBytes {max} step: {step}({unit}) \
         warmup iters: {} iters: {} agg iters: {} validation: {} graph: {} unalign: {}",
        options.ranks.threads(),
        options.ranks.each(),
        options.warm_up,
        options.iterations,
        options.aggregated,
        options.checks,
        options.graph_launches,
        options.unalign,
    )
}

/// The JSON report's description of the run.
pub(super) fn config(platform: &impl Platform, options: &Options) -> Config {
    let Sweep {
        min,
        max,
        factor,
        step,
    } = options.sweep;
    Config {
        nthreads: options.ranks.threads(),
        ngpus: options.ranks.each(),
        minimum_bytes: min,
        maximum_bytes: max,
        step_factor: (factor > 1).then_some(factor),
        step_bytes: (factor <= 1).then_some(step),
        warmup_iters: options.warm_up,
        iterations: options.iterations,
        aggregated_iterations: options.aggregated,
        validation: options.checks,
        graph: options.graph_launches,
        blocking_collectives: (options.blocking != Blocking::None).into(),
        per_iter_timing: options.per_iteration.is_some().into(),
        per_iter_skip: options.per_iteration.unwrap_or(0),
        parallel_init: options.reports.parallel_init.into(),
        collective: options.collective.name(),
        memory: platform.memory(options),
        nccl_version: platform.nccl_version().map_or(0, version_code),
        devices: platform.devices().iter().map(DeviceEntry::from).collect(),
    }
}

/// The number that NCCL uses for a version: 22809 for 2.28.9.
pub(super) fn version_code(text: &str) -> u32 {
    text.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .fold(0, |code: u32, part: u32| code * 100 + part)
}

/// The memory that the run used.
pub(super) fn memory_line(options: &Options, platform: &impl Platform) -> String {
    let buffers = human(platform.need(options, options.sweep.last()));
    let peak = limits::peak_resident().map_or_else(|| "unknown".to_owned(), human);
    let taken = platform.taken().into_iter();
    let taken =
        taken.map(|(backend, bytes)| format!("{backend} {} on rank 0's GPU | ", human(bytes)));
    let taken = taken.collect::<Vec<_>>().concat();
    format!(
        "# {:<20} : buffers {buffers} a rank | {taken}peak resident of rank 0's process {peak}\n",
        "Memory usage"
    )
}

/// Reports rails that failed during the run, if any.
pub(super) fn rails_line((dropped, returned): (u64, u64)) -> String {
    if dropped == 0 {
        return String::new();
    }
    format!(
        "# {:<20} : {dropped} dropped, {returned} came back; the others carried on\n",
        "RDMA rails"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_numbers() {
        assert_eq!(version_code("2.28.9"), 22809);
        assert_eq!(version_code("2.18.1"), 21801);
    }

    #[test]
    fn the_report_says_that_rails_were_dropped() {
        assert_eq!(rails_line((0, 0)), "");
        let line = rails_line((2, 1));
        assert!(line.contains("2 dropped, 1 came back"), "{line}");
    }
}
