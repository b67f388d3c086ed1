//! Fuzz targets: the parsers of launchers' variables and of their answers to requests.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::{detect, hex, node_list, pmi1, tcp_store};

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("launcher-variables", variables, some_variables),
    ("node-list", node_list, || {
        seeds(&["n[01-02,7],m3", "rack[1-2]n[0-9]"])
    }),
    ("launcher-hex", from_hex, || seeds(&["00ff10"])),
    ("pmi1-answers", pmi1_answers, some_pmi1_answers),
    ("tcp-store-answers", tcp_store_answers, || {
        vec![[&3_u64.to_ne_bytes()[..], b"abc"].concat()]
    }),
];

fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn variables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<_> = text
        .split(' ')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let find = |name: &str| {
        let found = pairs.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    if let Ok(Some(launch)) = detect(&find, std::time::Instant::now()) {
        assert!(launch.rank < launch.size, "{text}");
    }
}

fn some_variables() -> Vec<Vec<u8>> {
    seeds(&[
        "SPARK_CCL_RANK=1 SPARK_CCL_SIZE=4 SPARK_CCL_UNIQUE_ID=u",
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=x PMIX_RANK=1",
        "PMI_RANK=1 PMI_SIZE=4 PMI_FD=9 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4",
        "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29500",
        "SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[01-02] \
         SLURM_JOB_ID=7 SLURM_STEP_ID=0",
    ])
}

fn node_list(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let host = node_list::first_host(&text);
    assert!(host.is_none_or(|host| !host.is_empty()), "{text}");
}

fn from_hex(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(decoded) = hex::decode(&text) {
        assert!(hex::encode(&decoded).eq_ignore_ascii_case(&text));
    }
}

/// Nobody reads the parsers' requests: with many answers at once, they wait this long for room.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

/// A pair of streams; the first reads these bytes and then the end of the stream.
fn answers(bytes: &[u8]) -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs
        .write_all(&bytes[..bytes.len().min(100_000)])
        .unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    (ours, theirs)
}

fn pmi1_answers(bytes: &[u8]) {
    let (ours, _theirs) = answers(bytes);
    let _ = pmi1::begin_and_read(ours, soon());
}

fn some_pmi1_answers() -> Vec<Vec<u8>> {
    seeds(
        &["cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
        cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
        cmd=my_kvsname kvsname=kvs_1\n\
        cmd=barrier_out\n\
        cmd=get_result rc=0 msg=success value=2.00ff\n\
        cmd=get_result rc=0 msg=success value=10\n"],
    )
}

fn tcp_store_answers(bytes: &[u8]) {
    let (ours, _theirs) = answers(bytes);
    let _ = tcp_store::read_value(ours, soon());
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
