//! Tests which arguments are refused, and how the others are understood.

use clap::Parser;
use spark_ccl_console::Failure;

use super::*;

fn options(args: &[&str]) -> Result<Options, Error> {
    let all = ["spark-perf"].iter().chain(args).copied();
    Options::new(&MeasureArgs::try_parse_from(all).unwrap(), BackendArg::Host)
}

fn refusal(args: &[&str]) -> String {
    match options(args) {
        Err(error) => {
            assert_eq!(error.exit_code(), 6);
            error.to_string()
        }
        Ok(options) => panic!("{args:?} gave {options:?}"),
    }
}

#[test]
fn defaults() {
    let options = options(&["all_reduce"]).unwrap();
    assert_eq!(
        (
            options.sweep.min,
            options.sweep.max,
            options.iterations,
            options.warm_up,
            options.checks
        ),
        (32 << 20, 32 << 20, 20, 1, 1)
    );
    assert_eq!(
        (options.ops.as_slice(), options.dtypes.as_slice()),
        (&[ReduceOp::Sum][..], &[DType::F32][..])
    );
    assert!(options.notes.is_empty());
}

#[test]
fn refusals_say_what() {
    assert!(refusal(&["all_reduce", "-b", "0"]).contains("at least 1 byte"));
    assert!(refusal(&["all_reduce", "-b", "2M", "-e", "1M"]).contains("larger than the last"));
    assert!(refusal(&["all_reduce", "-o", "xor"]).contains("xor"));
    assert!(refusal(&["broadcast", "-o", "xor"]).contains("xor"));
    assert!(refusal(&["all_reduce", "-d", "float128"]).contains("bfloat16"));
    assert!(refusal(&["reduce", "-r", "-2"]).contains("-1"));
    assert!(refusal(&["all_reduce", "-n", "0"]).contains("-n 0"));
    assert!(refusal(&["all_reduce", "-u", "2000000"]).contains("-u 2000000"));
    assert!(refusal(&["all_reduce", "-f", "0"]).contains("-f 0"));
    assert!(refusal(&["all_reduce", "-b", "8", "-i", "0"]).contains("-i 0"));
    assert!(refusal(&["all_reduce", "-I", "1", "-K", "20"]).contains("-K 20"));
}

#[test]
fn ranks_matter() {
    let reduce = options(&["reduce", "-r", "3"]).unwrap();
    assert!(reduce.check_ranks(4).is_ok());
    assert!(reduce.check_ranks(3).is_err());
    assert!(options(&["hypercube"]).unwrap().check_ranks(6).is_err());
    assert!(
        options(&["all_reduce", "--plant", "2:0"])
            .unwrap()
            .check_ranks(2)
            .is_err()
    );
    assert_eq!(
        options(&["reduce", "-r", "-1"]).unwrap().roots(3),
        [0, 1, 2]
    );
    assert_eq!(options(&["all_reduce", "-r", "-1"]).unwrap().roots(3), [0]);
}

#[test]
fn flags_for_gpus_get_a_note_each() {
    let options = options(&[
        "all_reduce",
        "-G",
        "1",
        "-x",
        "0",
        "-D",
        "1",
        "-V",
        "16",
        "-y",
        "1",
        "-R",
        "2",
        "-p",
        "1",
    ])
    .unwrap();
    assert_eq!(options.notes.len(), 7);
    assert!(options.registered);
}

#[test]
fn what_cannot_be_done_on_gpus_is_refused() {
    let on_gpus = |args: &[&str], backend| {
        let all = ["spark-perf", "all_reduce"].iter().chain(args).copied();
        Options::new(&MeasureArgs::try_parse_from(all).unwrap(), backend)
    };
    for (args, code) in [
        (&["-G", "2", "-z", "1"][..], 6),
        (&["-G", "1", "-y", "1"], 6),
        (&["-G", "1", "-I", "1"], 6),
        (&["-x", "0"], 5),
        (&["-D", "1"], 5),
        (&["-V", "16"], 5),
    ] {
        for backend in [BackendArg::Nccl, BackendArg::Engine] {
            let error = on_gpus(args, backend).unwrap_err();
            assert_eq!(error.exit_code(), code, "{args:?}: {error}");
            let flag = args.last_chunk::<2>().unwrap()[0];
            assert!(error.to_string().contains(flag), "{error}");
        }
    }
    for flag in ["1", "2"] {
        for backend in [BackendArg::Engine, BackendArg::EngineAndNccl] {
            let error = on_gpus(&["-R", flag], backend).unwrap_err();
            assert_eq!(error.exit_code(), 5, "{error}");
            assert!(error.to_string().contains("nothing to register"), "{error}");
        }
    }
    let engine = on_gpus(&["-G", "3", "-R", "0"], BackendArg::Engine).unwrap();
    assert_eq!(engine.graph_launches, 3);
    let options = on_gpus(&["-G", "3", "-R", "2", "-D", "0"], BackendArg::Nccl).unwrap();
    assert_eq!(options.graph_launches, 3);
    assert_eq!(options.registration, Registered::Symmetric);
    assert!(options.notes.is_empty());
}

#[test]
fn all_types_and_operations() {
    let options = options(&["all_reduce", "-d", "all", "-o", "all"]).unwrap();
    assert_eq!((options.dtypes.len(), options.ops.len()), (12, 6));
}
