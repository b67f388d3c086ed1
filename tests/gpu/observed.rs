//! What others are told of calls on device memory: clients of NCCL's RAS protocol, and files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Builder, Communicator, RedOp};
use spark_ccl_status::ras::{INTERNAL, Rank, Report};
use spark_ccl_testing::free_port;

use super::{builder, gpus, stream_of};
use crate::support::{Gpus, until_failed};

const LEN: usize = 1000;
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Some ranks that are observed, and what is told of them.
pub(crate) struct Observed {
    pub(crate) gpus: Gpus,
    address: String,
    folder: tempfile::TempDir,
}

impl Observed {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            gpus: gpus(2)?,
            address: format!("127.0.0.1:{}", free_port()),
            folder: tempfile::tempdir().unwrap(),
        })
    }

    pub(crate) fn builder(&self) -> Builder {
        builder()
            .set("SPARK_CCL_RAS", &self.address)
            .set("SPARK_CCL_RECORD", self.path())
            .set("SPARK_CCL_INSPECTOR", self.path())
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// Has each rank do something, and then asks for the record of each.
    fn each(&self, work: impl Fn(&Communicator, &Arc<CudaStream>) + Sync) -> Told {
        let all = self.gpus.each(&self.builder(), |comm| {
            let stream = comm.context().unwrap().new_stream().unwrap();
            work(&comm, &stream);
            comm.wait(&stream).unwrap();
            // All are there, and have called the same.
            comm.barrier().run().unwrap();
            let path = self
                .folder
                .path()
                .join(format!("asked_{}.json", comm.rank()));
            comm.record(&path).unwrap();
            let report = (comm.rank() == 0).then(|| self.report(comm.size()));
            comm.barrier().run().unwrap();
            comm.finalize().unwrap();
            (read(&path), report)
        });
        let (records, reports): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        Told {
            records,
            report: reports.into_iter().flatten().next().unwrap(),
        }
    }

    /// What runs, once all ranks have answered.
    fn report(&self, ranks: usize) -> Report {
        let deadline = Instant::now() + SOON;
        loop {
            let report = self.try_to_ask();
            let is_whole = |it: &Report| it.communicators.iter().all(|it| it.ranks.len() == ranks);
            match report.filter(is_whole) {
                Some(report) => return report,
                None => assert!(Instant::now() < deadline, "no report"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn try_to_ask(&self) -> Option<Report> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        let words = "CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nSTATUS\n";
        stream.write_all(words.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Report::parse(&text[text.find('{')?..]).ok()
    }
}

/// What was told.
struct Told {
    /// Of each rank.
    records: Vec<Value>,
    report: Report,
}

impl Told {
    /// The ranks of the program's communicator, which is the only one.
    fn ranks(&self) -> &[Rank] {
        assert_eq!(self.report.communicators_count, 1, "{:#?}", self.report);
        for record in &self.records {
            let groups = record["pg_config"].as_object().unwrap();
            assert_eq!(groups.len(), 2, "one for each kind of memory: {groups:?}");
        }
        &self.report.communicators[0].ranks
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The calls of a record on device memory, or the others.
fn calls(record: &Value, on_device: bool) -> Vec<&Value> {
    let entries = record["entries"].as_array().unwrap().iter();
    let is_device = |entry: &&Value| {
        let group = entry["process_group"][0].as_str().unwrap();
        group.ends_with("-device")
    };
    entries
        .filter(|entry| is_device(entry) == on_device)
        .collect()
}

/// A field of each call.
fn fields<'a>(calls: &[&'a Value], name: &str) -> Vec<&'a Value> {
    calls.iter().map(|call| &call[name]).collect()
}

fn memory(comm: &Communicator) -> DeviceMemory<f32> {
    let mut memory = comm.alloc_device(LEN).unwrap();
    memory.write(&[1.0; LEN]).unwrap();
    memory
}

fn sum(comm: &Communicator, memory: &mut DeviceMemory<f32>, stream: &Arc<CudaStream>) {
    let sum = comm.all_reduce_in_place(memory, RedOp::Sum);
    sum.on(stream).unwrap();
}

#[test]
fn clients_and_records_have_calls_on_device_memory() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let told = observed.each(|comm, stream| {
        let mut own = memory(comm);
        for _ in 0..3 {
            sum(comm, &mut own, stream);
        }
        comm.broadcast_in_place(&mut own, 1).on(stream).unwrap();
    });
    for rank in told.ranks() {
        let (counts, more) = (rank.collective_counts, &rank.spark_ccl);
        // What the ranks told each other is not counted.
        let counted = (counts.all_reduce, counts.broadcast, counts.all_gather);
        assert_eq!(counted, (3, 1, 0), "{more:?}");
        assert!(more.calls[INTERNAL] > 0);
        // Calls of host memory alone are compared by their numbers.
        let on_host = more.calls[INTERNAL] + more.calls["barrier"];
        assert_eq!(more.entered, on_host, "{more:?}");
        assert_eq!((more.late_sec, &more.waits), (None, &None));
    }
    for record in &told.records {
        let on_device = calls(record, true);
        let expected = ["all_reduce", "all_reduce", "all_reduce", "broadcast"];
        let expected = expected.map(|name| json!(format!("nccl:{name}")));
        assert_eq!(
            fields(&on_device, "profiling_name"),
            expected.iter().collect::<Vec<_>>()
        );
        for (number, call) in (1..).zip(&on_device) {
            assert_eq!(call["collective_seq_id"], number);
            assert_eq!(
                (&call["state"], &call["is_p2p"]),
                (&json!("completed"), &json!(false))
            );
            assert_eq!(call["input_sizes"], json!([[LEN]]));
            assert_eq!(call["input_dtypes"], json!(["Float"]));
            assert!(call.get("duration_ms").is_none(), "{call}");
        }
        let on_host = calls(record, false);
        assert_eq!(on_host.last().unwrap()["profiling_name"], "nccl:barrier");
        assert_eq!(on_host.last().unwrap()["collective_seq_id"], on_host.len());
    }
    // How long they took is not known.
    let files = std::fs::read_dir(observed.folder.path()).unwrap().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().ends_with(".log"));
    let timed: String = files
        .map(|file| std::fs::read_to_string(file.path()).unwrap())
        .collect();
    assert!(timed.contains("\"Barrier\""), "{timed}");
    assert!(!timed.contains("\"AllReduce\""), "{timed}");
}

#[test]
fn messages_are_noted_one_by_one() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let told = observed.each(|comm, stream| {
        let (own, mut other) = (memory(comm), memory(comm));
        let (next, previous) = neighbours(comm);
        comm.group(|group| {
            comm.send(&own, next).within(group, stream);
            comm.recv(&mut other, previous).within(group, stream);
            Ok(())
        })
        .unwrap();
        let both = comm.send_recv(&own, next, &mut other, previous);
        both.on(stream).unwrap();
        let counts = vec![LEN / comm.size(); comm.size()];
        let blocks = comm.all_to_all_v(&own, &counts, &mut other, &counts);
        blocks.on(stream).unwrap();
    });
    let size = told.ranks().len();
    for rank in told.ranks() {
        let made = &rank.spark_ccl.calls;
        let made = ["send", "recv", "all_to_all_v"].map(|name| made[name]);
        assert_eq!(made, [2, 2, 1]);
        assert!(!rank.spark_ccl.calls.contains_key("send_recv"));
    }
    for (rank, record) in told.records.iter().enumerate() {
        let on_device = calls(record, true);
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let pair = [
            format!("nccl:send {rank}->{next}"),
            format!("nccl:recv {rank}<-{previous}"),
        ];
        let all = [&pair[..], &pair, &["nccl:all_to_all".to_owned()]].concat();
        let names = fields(&on_device, "profiling_name");
        let names: Vec<_> = names.into_iter().filter_map(Value::as_str).collect();
        assert_eq!(names, all);
        let sent = &on_device[2];
        assert_eq!(sent["input_sizes"], json!([[LEN]]));
        assert_eq!(
            (&sent["output_sizes"], &sent["is_p2p"]),
            (&json!([]), &json!(true))
        );
        assert_eq!(on_device[4]["collective_seq_id"], 1);
    }
}

fn neighbours(comm: &Communicator) -> (usize, usize) {
    let (rank, size) = (comm.rank(), comm.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

#[test]
fn captured_calls_are_not_noted() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let told = observed.each(|comm, stream| {
        let mut own = memory(comm);
        // NCCL connects the ranks for it, which cannot be captured.
        sum(comm, &mut own, stream);
        // SAFETY: `own` outlives the graph, and is used in `stream` only.
        let raw = unsafe {
            DeviceSlice::<f32>::from_raw(own.address(), own.len(), comm.device().unwrap())
        };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).unwrap();
        for _ in 0..2 {
            let sum = comm.all_reduce_in_place(raw, RedOp::Sum);
            sum.on(stream).unwrap();
        }
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        let graph = graph.unwrap();
        for _ in 0..3 {
            graph.launch().unwrap();
        }
        comm.wait(stream).unwrap();
        sum(comm, &mut own, stream);
    });
    for rank in told.ranks() {
        assert_eq!(rank.collective_counts.all_reduce, 2);
    }
    for record in &told.records {
        let numbers = fields(&calls(record, true), "collective_seq_id");
        assert_eq!(numbers, [&json!(1), &json!(2)]);
    }
}

#[test]
fn a_call_that_does_not_end_is_recorded_as_such() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let builder = observed.builder().operation_timeout(Duration::from_secs(2));
    observed.gpus.each(&builder, |comm| {
        let stream = stream_of(&comm);
        let mut own = memory(&comm);
        sum(&comm, &mut own, &stream);
        comm.wait(&stream).unwrap();
        if comm.rank() == 0 {
            until_failed(&comm);
            return;
        }
        for _ in 0..2 {
            sum(&comm, &mut own, &stream);
        }
        comm.wait(&stream).unwrap_err();
        // It is there before the rank hears of the fault.
        let file = format!("rank_{}.json", comm.rank());
        let record = read(&observed.folder.path().join(file));
        let on_device = calls(&record, true);
        let states = fields(&on_device, "state");
        assert_eq!(states, ["completed", "started", "scheduled"]);
        let group = on_device[0]["process_group"][0].as_str().unwrap();
        assert_eq!(record["pg_config"][group]["ranks"], ranks(comm.size()));
        let status = &record["pg_status"][on_device[0]["pg_id"].to_string()];
        assert_eq!(status["last_enqueued_collective"], "3");
        assert_eq!(status["last_completed_collective"], "1");
    });
}

/// As PyTorch writes them.
fn ranks(count: usize) -> String {
    format!("{:?}", (0..count).collect::<Vec<_>>())
}
