//! The inspector's formats have NCCL's names.

use serde_json::Value;
use spark_ccl_types::{DType, Signature};

use super::*;
use crate::entry::Peer;

fn group() -> Group {
    Group {
        context: 0xbeef,
        rank: 1,
        world_rank: 5,
        size: 4,
        nodes: 2,
        host: "spark\"1".to_owned(),
        pid: 77,
        job: None,
    }
}

fn entry(operation: Operation, count: u64, micros: Option<u64>) -> Entry {
    Entry {
        record: 0,
        sequence: 12,
        peer: None,
        signature: Signature::plain(operation, DType::F32, count),
        input: count,
        output: count,
        called: 5000,
        completed: micros.map(|micros| 5000 + 1000 * micros),
    }
}

fn parsed(entry: &Entry) -> Value {
    let line = line(&group(), entry, 99, "abc").unwrap().unwrap();
    assert!(line.ends_with('\n'));
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_line_for_each_operation() {
    // 4,000 bytes in 2 us are 2 GB/s; a link between four ranks carries 1.5 times as much.
    let json = parsed(&entry(Operation::AllReduce, 1000, Some(2)));
    assert_eq!(json["header"]["id"], "0xbeef");
    assert_eq!(json["header"]["n_ranks"], 4);
    assert_eq!(json["metadata"]["dump_timestamp_us"], 99);
    let perf = &json["coll_perf"];
    assert_eq!(perf["coll"], "AllReduce");
    assert_eq!(perf["coll_sn"], 12);
    assert_eq!(perf["coll_msg_size_bytes"], 4000);
    assert_eq!(perf["coll_exec_time_us"], 2);
    assert_eq!(perf["coll_algobw_gbs"], 2.0);
    assert_eq!(perf["coll_busbw_gbs"], 3.0);
    // The bytes of all four blocks.
    let gathered = parsed(&entry(Operation::AllGather, 1000, Some(2)));
    assert_eq!(gathered["coll_perf"]["coll_algobw_gbs"], 8.0);
    assert_eq!(gathered["coll_perf"]["coll_busbw_gbs"], 6.0);

    let received = Entry {
        peer: Some(Peer::From(3)),
        ..entry(Operation::Recv, 10, Some(1))
    };
    let json = parsed(&received);
    assert_eq!(json["p2p_perf"]["p2p_peer"], 3);
    assert_eq!(json["p2p_perf"]["p2p"], "Recv");
    assert!(json.get("coll_perf").is_none());
    let running = entry(Operation::Barrier, 0, None);
    assert_eq!(line(&group(), &running, 0, "").unwrap(), None);
}

#[test]
fn prometheus_gets_means_by_operation_and_size() {
    let group = group();
    let operations = [
        (&group, entry(Operation::AllReduce, 1024, Some(2))),
        (&group, entry(Operation::AllReduce, 1100, Some(8))),
        (&group, entry(Operation::AllReduce, 1 << 20, Some(1000))),
        (&group, entry(Operation::Barrier, 0, Some(3))),
        (&group, entry(Operation::Barrier, 0, None)),
    ];
    let text = prometheus(&operations);
    let labels = |collective: &str, size: &str| {
        format!(
            "{{version=\"v5.1\",slurm_job_id=\"unknown\",node=\"spark\\\"1\",gpu=\"CPU5\",comm_name=\"unknown\",n_nodes=\"2\",nranks=\"4\",collective=\"{collective}\",message_size=\"{size}\",algo_proto=\"unknown_unknown\"}}"
        )
    };
    let time = "nccl_collective_exec_time_microseconds";
    assert!(
        text.contains(&format!("{time}{} 5.000\n", labels("AllReduce", "4-5KB"))),
        "{text}"
    );
    assert!(text.contains(&format!(
        "{time}{} 1000.000\n",
        labels("AllReduce", "4-5MB")
    )));
    assert!(text.contains(&format!("{time}{} 3.000\n", labels("Barrier", "0B"))));
    // sqrt(4096 / 2000 * 4400 / 8000) * 1.5
    let bandwidth = "nccl_bus_bandwidth_gbs";
    let expected = format!("{bandwidth}{} 1.591980\n", labels("AllReduce", "4-5KB"));
    assert!(text.contains(&expected), "{text}");
    assert_eq!(text.lines().count(), 6);
}
