//! Records have what PyTorch's have.

use serde_json::json;
use spark_ccl_types::{DType, Operation as Op, Signature};

use super::*;

fn entry(record: u64, sequence: u64, operation: Op, count: u64, completed: Option<u64>) -> Entry {
    let ranks = 4;
    Entry {
        record,
        sequence,
        peer: None,
        signature: Signature::plain(operation, DType::Bf16, count),
        input: operation.extent(Side::Input).elements(count, ranks),
        output: operation.extent(Side::Output).elements(count, ranks),
        called: 1000 + record,
        completed,
    }
}

fn group(name: &str, entries: Vec<Entry>) -> Group {
    Group {
        name: name.to_owned(),
        ranks: vec![2, 0, 5, 1],
        rank: 3,
        on_device: false,
        timeout_ms: 600_000,
        entries,
    }
}

fn json(groups: &[Group]) -> Value {
    let text = Record::new("spark-ccl 9", groups).json().unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn operations_are_written_as_pytorch_writes_them() {
    let send = Entry {
        sequence: 9,
        peer: Some(Peer::To(1)),
        ..entry(2, 0, Op::Send, 3, None)
    };
    let record = json(&[group(
        "c0ffee",
        vec![
            entry(0, 1, Op::AllGather, 5, Some(3_001_000)),
            entry(1, 2, Op::Barrier, 0, None),
            send,
            entry(3, 3, Op::AllReduce, 7, None),
            entry(4, 4, Op::Alloc, 1, None),
        ],
    )]);
    assert_eq!(record["version"], "2.10");
    assert_eq!(
        record["pg_config"],
        json!({ "c0ffee": { "name": "c0ffee", "desc": "spark-ccl", "ranks": "[2, 0, 5, 1]" } })
    );
    assert_eq!(
        record["pg_status"]["0"],
        json!({
            "last_enqueued_collective": "4",
            "last_started_collective": "2",
            "last_completed_collective": "1"
        })
    );
    let entries = record["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 4, "PyTorch has no allocations");
    let gathered = &entries[0];
    assert_eq!(gathered["profiling_name"], "nccl:all_gather");
    assert_eq!(gathered["process_group"], json!(["c0ffee", "spark-ccl"]));
    assert_eq!(gathered["input_sizes"], json!([[5]]));
    assert_eq!(gathered["output_sizes"], json!([[20]]));
    assert_eq!(gathered["output_dtypes"], json!(["BFloat16"]));
    assert_eq!(gathered["duration_ms"], json!(3.0));
    assert_eq!(gathered["state"], "completed");
    assert_eq!(entries[1]["input_sizes"], json!([]));
    assert_eq!(entries[1]["state"], "started");
    assert_eq!(entries[2]["profiling_name"], "nccl:send 3->1");
    assert_eq!(entries[2]["p2p_seq_id"], MESSAGES | 2);
    assert_eq!(entries[2]["is_p2p"], true);
    assert_eq!(entries[2]["state"], "started");
    assert_eq!(entries[3]["state"], "scheduled");
}

#[test]
fn how_long_operations_on_device_memory_took_is_not_told() {
    let of_device = Group {
        on_device: true,
        ..group(
            "c0ffee-device",
            vec![entry(0, 1, Op::AllReduce, 5, Some(9000))],
        )
    };
    let record = json(&[of_device]);
    let operation = &record["entries"][0];
    assert_eq!(operation["state"], "completed");
    assert_eq!(operation["time_discovered_completed_ns"], 9000);
    assert_eq!(operation.get("duration_ms"), None);
    assert_eq!(operation["process_group"][0], "c0ffee-device");
}

#[test]
fn communicators_are_in_the_order_of_their_calls() {
    let first = group("1", vec![entry(0, 1, Op::Barrier, 0, None)]);
    let mut later = entry(7, 8, Op::Barrier, 0, None);
    later.called = 10;
    let record = json(&[first, group("2", vec![later])]);
    let entries = record["entries"].as_array().unwrap();
    let order = entries.iter().map(|entry| &entry["pg_id"]);
    assert_eq!(order.collect::<Vec<_>>(), [1, 0]);
    let numbers = entries.iter().map(|entry| &entry["record_id"]);
    assert_eq!(numbers.collect::<Vec<_>>(), [7, 8], "seven are forgotten");
}
