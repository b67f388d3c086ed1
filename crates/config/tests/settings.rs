//! The settings that follow from the variables that are set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use spark_ccl_config::{
    Backend, Env, Error, Family, GpuProtocol, Net, Path, Settings, SingleCopy, VARIABLES,
};
use spark_ccl_types::{Algorithm, Operation};

fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::from_env(&Env::from_pairs(pairs.iter().copied())).unwrap()
}

fn error(name: &str, value: &str) -> String {
    Settings::from_env(&Env::from_pairs([(name, value)]))
        .unwrap_err()
        .to_string()
}

#[test]
fn nothing_set_is_the_default() {
    let defaults = Settings::default();
    assert_eq!(settings(&[]), defaults);
    assert_eq!(
        settings(&[("SPARK_CCL_PATH", " "), ("NCCL_ALGO", "")]),
        defaults
    );
    assert_eq!(
        defaults.wire_summary(),
        "slot_bytes=auto slots=8 sockets=auto qps=1 path=auto net=auto shm=1 algo=auto \
         backend=host share_gpu=0"
    );
}

const EVERYTHING: [(&str, &str); 32] = [
    ("SPARK_CCL_TIMEOUT", "1.5"),
    ("SPARK_CCL_INIT_TIMEOUT", "7"),
    ("SPARK_CCL_LOST_AFTER", "15"),
    ("SPARK_CCL_CUT_AFTER", "0.5"),
    ("SPARK_CCL_PATH", "zero-copy"),
    ("SPARK_CCL_NET", "ib"),
    ("SPARK_CCL_SHM", "0"),
    ("SPARK_CCL_SINGLE_COPY", "0"),
    ("SPARK_CCL_BACKEND", "nccl"),
    ("SPARK_CCL_DEVICE", "3"),
    ("SPARK_CCL_SHARE_GPU", "1"),
    ("SPARK_CCL_GPU_PROTOCOL", "packets"),
    ("SPARK_CCL_GPU_PINNED", "1"),
    ("SPARK_CCL_GPU_DMABUF", "0"),
    ("SPARK_CCL_GPU_SET_ASIDE", "3M"),
    ("SPARK_CCL_GPU_SLOTS", "2M"),
    ("SPARK_CCL_NCCL_LIBRARY", "/opt/nccl"),
    ("SPARK_CCL_NCCL_BLOCKING", "0"),
    ("SPARK_CCL_ALGO", "ring"),
    ("SPARK_CCL_SOCKET_IFNAME", "^lo"),
    ("SPARK_CCL_SOCKET_FAMILY", "AF_INET6"),
    ("SPARK_CCL_SOCKETS", "3"),
    ("SPARK_CCL_SLOT_BYTES", "128K"),
    ("SPARK_CCL_SLOTS", "4"),
    ("SPARK_CCL_SECRET", "0123456789abcdef"),
    ("SPARK_CCL_COMM_ID", "[fd00::1]:4000"),
    ("SPARK_CCL_LOG", "spark_ccl=debug"),
    ("SPARK_CCL_LOG_FILE", "/tmp/%h.%p"),
    ("SPARK_CCL_PROGRESS_THREAD", "1"),
    ("SPARK_CCL_HELPERS", "3"),
    ("SPARK_CCL_RANK", "1"),
    ("HOME", "/root"),
];

#[test]
fn everything_can_be_set() {
    let s = settings(&EVERYTHING);
    assert_eq!(s.operation_timeout, Duration::from_millis(1500));
    assert_eq!(s.init_timeout, Duration::from_secs(7));
    assert_eq!(s.lost_after, Duration::from_secs(15));
    assert_eq!(s.cut_after, Duration::from_millis(500));
    assert_eq!((s.path, s.net, s.shm), (Path::ZeroCopy, Net::Rdma, false));
    assert_eq!(s.single_copy, SingleCopy::Never);
    let single_copy = |text| settings(&[("SPARK_CCL_SINGLE_COPY", text)]).single_copy;
    assert_eq!(
        (single_copy("on"), single_copy("Auto")),
        (SingleCopy::Always, SingleCopy::Auto)
    );
    assert!(
        s.algo.allows(Operation::AllReduce, Algorithm::Ring)
            && !s.algo.allows(Operation::AllReduce, Algorithm::Direct)
    );
    let ifname = s.socket_ifname.as_ref().unwrap();
    assert_eq!(
        (&*ifname.pattern, ifname.variable),
        ("^lo", "SPARK_CCL_SOCKET_IFNAME")
    );
    assert_eq!(s.socket_family, Some(Family::V6));
    assert_eq!(
        (s.sockets, s.slot_bytes, s.slots),
        (Some(3), Some(128 << 10), 4)
    );
    assert_eq!(s.secret.as_ref().unwrap().as_bytes(), b"0123456789abcdef");
    assert_eq!(s.comm_id.as_ref().unwrap().port, 4000);
    assert_eq!(s.log.filter.as_deref(), Some("spark_ccl=debug"));
    assert_eq!(s.log.file.as_deref(), Some("/tmp/%h.%p"));
    assert!(s.progress_thread);
    assert_eq!(s.helpers, Some(3));
    assert_eq!(settings(&[("SPARK_CCL_HELPERS", "auto")]).helpers, None);
    let nccl = s.nccl.library.as_deref().unwrap();
    assert_eq!(nccl.to_str(), Some("/opt/nccl"));
    assert_eq!((s.backend, s.nccl.blocking), (Backend::Nccl, false));
    assert!(s.gpu.may_be_shared);
    assert_eq!(s.gpu.protocol, GpuProtocol::Packets);
    assert_eq!((s.gpu.pinned, s.gpu.dma_buf), (true, false));
    let most = (s.gpu.most_set_aside, s.gpu.most_in_slots);
    assert_eq!(most, (3 << 20, 2 << 20));
    assert_eq!(s.gpu.own_device, Some(3));
    assert_eq!(s.origins().len(), 31);
    assert!(s.warnings().is_empty() && s.without_effect().is_empty());
}

#[test]
fn nccl_names_are_honoured() {
    let s = settings(&[
        ("NCCL_NET", "Socket"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_ALGO", "Tree"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_SOCKET_FAMILY", "AF_INET"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("NCCL_NSOCKS_PERTHREAD", "2"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_COMM_ID", "spark1:4000"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h"),
    ]);
    assert_eq!((s.net, s.shm, s.sockets), (Net::Tcp, false, Some(8)));
    assert!(s.algo.allows(Operation::Broadcast, Algorithm::DoubleTree));
    assert_eq!(
        s.socket_ifname.as_ref().unwrap().variable,
        "NCCL_SOCKET_IFNAME"
    );
    assert_eq!(s.socket_family, Some(Family::V4));
    assert_eq!(s.slot_bytes, Some(1 << 20));
    assert_eq!(s.comm_id.as_ref().unwrap().host, "spark1");
    assert_eq!(s.log.filter.as_deref(), Some("info"));
    assert_eq!(s.log.file.as_deref(), Some("/tmp/nccl.%h"));
    assert_eq!(s.origins().len(), 11);
    assert!(s.warnings().is_empty() && s.without_effect().is_empty());
}

#[test]
fn rdma_has_nccls_defaults_and_names() {
    let rdma = Settings::default().rdma;
    assert!(rdma.hcas.allows("mlx5_0", 1) && rdma.hcas.to_string() == "all devices");
    assert_eq!((rdma.timeout, rdma.retry_count), (17, 7));
    assert_eq!(rdma.gid_index, None);
    assert_eq!((rdma.traffic_class, rdma.qps_per_connection), (0, 1));
    let s = settings(&[
        ("NCCL_IB_HCA", "=rocep1s0f0:1,roceP2p1s0f0"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_IB_TIMEOUT", "14"),
        ("NCCL_IB_RETRY_CNT", "6"),
        ("NCCL_IB_TC", "106"),
        ("NCCL_IB_QPS_PER_CONNECTION", "4"),
        ("SPARK_CCL_IBVERBS_LIBRARY", "/opt/lib/libibverbs.so.1"),
    ]);
    let rdma = &s.rdma;
    assert!(rdma.hcas.allows("rocep1s0f0", 1) && rdma.hcas.allows("roceP2p1s0f0", 2));
    assert!(!rdma.hcas.allows("rocep1s0f0", 2) && !rdma.hcas.allows("rocep1s0f1", 1));
    assert_eq!(
        rdma.hcas.to_string(),
        "NCCL_IB_HCA==rocep1s0f0:1,roceP2p1s0f0"
    );
    assert_eq!((rdma.timeout, rdma.retry_count), (14, 6));
    let gid_index = rdma.gid_index.as_ref().unwrap();
    assert_eq!(gid_index.index, 3);
    assert_eq!(
        gid_index.to_string(),
        "NCCL_IB_GID_INDEX (from environment)"
    );
    assert_eq!((rdma.traffic_class, rdma.qps_per_connection), (106, 4));
    let library = rdma.library.as_deref().unwrap();
    assert_eq!(library.to_str(), Some("/opt/lib/libibverbs.so.1"));
    assert_eq!(s.origins().len(), 7);
    assert!(s.warnings().is_empty() && s.without_effect().is_empty());
    let gid_index = |text| {
        let only = settings(&[("NCCL_IB_GID_INDEX", text)]).rdma.gid_index;
        only.map(|only| only.index)
    };
    assert_eq!((gid_index("-1"), gid_index("0")), (None, Some(0)));
}

#[test]
fn rdma_can_be_demanded_and_ruled_out() {
    for (pairs, net) in [
        (&[("NCCL_IB_DISABLE", "1")][..], Net::Tcp),
        (&[("NCCL_IB_DISABLE", "0")], Net::Auto),
        (&[("NCCL_NET", "IB")], Net::Rdma),
        (
            &[("SPARK_CCL_NET", "rdma"), ("NCCL_IB_DISABLE", "1")],
            Net::Rdma,
        ),
    ] {
        assert_eq!(settings(pairs).net, net, "{pairs:?}");
    }
}

#[test]
fn our_names_win_over_nccls() {
    let s = settings(&[
        ("SPARK_CCL_ALGO", "direct"),
        ("NCCL_ALGO", "Ring"),
        ("SPARK_CCL_SHM", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("SPARK_CCL_SOCKETS", "1"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("SPARK_CCL_IB_HCA", "mlx5_1"),
        ("NCCL_IB_HCA", "mlx5_0"),
    ]);
    assert!(s.rdma.hcas.allows("mlx5_1", 1) && !s.rdma.hcas.allows("mlx5_0", 1));
    assert!(
        s.algo.allows(Operation::AllReduce, Algorithm::Direct)
            && !s.algo.allows(Operation::AllReduce, Algorithm::Ring)
    );
    assert!(s.shm);
    assert_eq!(s.sockets, Some(1));
    let names: Vec<_> = s.without_effect().iter().map(|used| &*used.name).collect();
    assert_eq!(
        names,
        [
            "NCCL_ALGO",
            "NCCL_IB_HCA",
            "NCCL_SHM_DISABLE",
            "NCCL_SOCKET_NTHREADS"
        ]
    );
}

#[test]
fn what_nccl_has_and_we_lack_stops_nobody() {
    let s = settings(&[
        ("NCCL_NET", "AWS Libfabric"),
        ("NCCL_ALGO", "NVLS"),
        ("NCCL_DEBUG", "LOUD"),
        ("NCCL_NVLS_ENABLE", "1"),
        ("NCCL_IB_SL", "3"),
    ]);
    assert_eq!(s.net, Net::Auto);
    assert!(s.algo.is_auto());
    assert_eq!(s.warnings().len(), 3, "{:?}", s.warnings());
    let names: Vec<_> = s.without_effect().iter().map(|used| &*used.name).collect();
    assert_eq!(names, ["NCCL_IB_SL", "NCCL_NVLS_ENABLE"]);
}

#[test]
fn errors_name_variable_value_origin_and_what_is_allowed() {
    let text = error("SPARK_CCL_PATH", "fast");
    assert_eq!(
        text,
        "SPARK_CCL_PATH=\"fast\" (from environment) is not valid: expected safe, zero-copy or auto"
    );
    let mut env = Env::from_pairs([("SPARK_CCL_PATH", "safe")]);
    env.set("SPARK_CCL_PATH", "fast", "--path");
    let error_of_code = Settings::from_env(&env).unwrap_err();
    assert!(matches!(error_of_code, Error::Invalid { .. }));
    assert!(error_of_code.to_string().contains("(from --path)"));
    for (name, value, expected) in [
        ("SPARK_CCL_TIMEOUT", "-1", "seconds"),
        ("SPARK_CCL_INIT_TIMEOUT", "soon", "seconds"),
        ("SPARK_CCL_NET", "carrier-pigeon", "tcp"),
        ("SPARK_CCL_ALGO", "rign", "ring, direct"),
        ("SPARK_CCL_SHM", "maybe", "0 or 1"),
        ("SPARK_CCL_SINGLE_COPY", "yes please", "0, 1 or auto"),
        ("NCCL_SHM_DISABLE", "2", "0 or 1"),
        ("SPARK_CCL_SOCKET_FAMILY", "AF_UNIX", "AF_INET6"),
        ("SPARK_CCL_SOCKETS", "0", "1 to 16"),
        ("SPARK_CCL_SLOT_BYTES", "100", "multiple of 64"),
        ("SPARK_CCL_SLOT_BYTES", "1G", "multiple of 64"),
        ("SPARK_CCL_SLOTS", "1", "2 to 1024"),
        ("SPARK_CCL_COMM_ID", "nowhere", "host:port"),
        ("SPARK_CCL_PROGRESS_THREAD", "2", "0 or 1"),
        ("SPARK_CCL_HELPERS", "65", "0 to 64"),
        ("SPARK_CCL_BACKEND", "gpu", "host, nccl, engine or auto"),
        ("SPARK_CCL_DEVICE", "-1", "0 to 1023"),
        ("SPARK_CCL_SHARE_GPU", "2", "0 or 1"),
        (
            "SPARK_CCL_GPU_PROTOCOL",
            "lines",
            "packets, proxy, slots, pieces or auto",
        ),
        ("SPARK_CCL_GPU_PINNED", "2", "0 or 1"),
        ("SPARK_CCL_GPU_DMABUF", "2", "0 or 1"),
        ("SPARK_CCL_GPU_CTAS", "33", "1 to 32"),
        ("SPARK_CCL_GPU_SET_ASIDE", "much", "a number of bytes"),
        ("SPARK_CCL_GPU_SLOTS", "few", "a number of bytes"),
        ("NCCL_IB_DISABLE", "2", "0 or 1"),
        ("NCCL_IB_HCA", "^", "mlx5_0:1"),
        ("NCCL_IB_HCA", "mlx5_0:x", "mlx5_0:1"),
        ("SPARK_CCL_IB_HCA", "mlx5_0:0", "mlx5_0:1"),
        ("NCCL_IB_GID_INDEX", "-2", "0 to 255"),
        ("NCCL_IB_GID_INDEX", "256", "0 to 255"),
        ("NCCL_IB_TIMEOUT", "0", "1 to 31"),
        ("NCCL_IB_RETRY_CNT", "8", "0 to 7"),
        ("NCCL_IB_TC", "256", "0 to 255"),
        ("NCCL_IB_QPS_PER_CONNECTION", "0", "1 to 128"),
    ] {
        let text = error(name, value);
        assert!(
            text.contains(name) && text.contains(value) && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn secrets_are_read_checked_and_never_shown() {
    let text = error("SPARK_CCL_SECRET", "hunter2");
    assert!(
        text.contains("16 to 4096") && !text.contains("hunter2"),
        "{text}"
    );

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "swordfish-swordfish\n").unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let s = settings(&[("SPARK_CCL_SECRET_FILE", path)]);
    assert_eq!(
        s.secret.as_ref().unwrap().as_bytes(),
        b"swordfish-swordfish"
    );
    assert!(s.warnings()[0].contains("chmod 600"));
    assert!(!format!("{s:?}").contains("swordfish"));

    let s = settings(&[
        ("SPARK_CCL_SECRET", "swordfish-swordfish"),
        ("SPARK_CCL_UNIQUE_ID", "fish"),
    ]);
    assert!(s.origins().iter().all(|used| used.value == "redacted"));
    assert!(!format!("{s:?}").contains("fish"));
    assert!(error("SPARK_CCL_SECRET_FILE", "/nowhere/at/all").contains("/nowhere/at/all"));
}

#[test]
fn a_mistyped_name_is_told_with_the_nearest() {
    let s = settings(&[("SPARK_CCL_TIMOUT", "3"), ("SPARK_CCL_FLUX_CAPACITOR", "3")]);
    assert_eq!(s.warnings().len(), 2);
    assert!(!s.warnings()[0].contains("did you mean"));
    assert!(
        s.warnings()[1].contains("did you mean SPARK_CCL_TIMEOUT?"),
        "{:?}",
        s.warnings()
    );
}

#[test]
fn a_name_that_the_program_mistypes_is_an_error() {
    let mut env = Env::from_pairs([("SPARK_CCL_TIMOUT", "3")]);
    assert!(Settings::from_env(&env).is_ok());
    env.set("SPARK_CCL_SLOT_BYTE", "swordfish", "the program");
    let error = Settings::from_env(&env).unwrap_err();
    assert!(matches!(&error, Error::Unknown { name, .. } if name == "SPARK_CCL_SLOT_BYTE"));
    assert_eq!(
        error.to_string(),
        "SPARK_CCL_SLOT_BYTE (from the program) is unknown; did you mean SPARK_CCL_SLOT_BYTES?"
    );
}

#[test]
fn typed_values_need_no_parsing_and_show_their_text() {
    let mut env = Env::from_pairs([("SPARK_CCL_TIMEOUT", "never"), ("NCCL_SHM_DISABLE", "1")]);
    let time = Duration::from_nanos(1_000_000_000_000_000_001);
    env.set_typed("SPARK_CCL_TIMEOUT", "long", time, "here");
    env.set_typed("SPARK_CCL_SHM", "yes", true, "here");
    let secret = b"swordfish-swordfish".to_vec();
    env.set_typed("SPARK_CCL_SECRET", "redacted", secret, "here");
    let s = Settings::from_env(&env).unwrap();
    assert_eq!((s.operation_timeout, s.shm), (time, true));
    assert_eq!(
        s.secret.as_ref().unwrap().as_bytes(),
        b"swordfish-swordfish"
    );
    let used: Vec<_> = s.origins().iter().map(ToString::to_string).collect();
    assert_eq!(
        used,
        [
            "SPARK_CCL_TIMEOUT=long (from here)",
            "SPARK_CCL_SHM=yes (from here)",
            "SPARK_CCL_SECRET=redacted (from here)"
        ]
    );
    // A value of another type is ignored: its text counts.
    env.set_typed("SPARK_CCL_SHM", "perhaps", 1_u8, "here");
    let error = Settings::from_env(&env).unwrap_err().to_string();
    assert!(
        error.contains("SPARK_CCL_SHM=\"perhaps\" (from here)"),
        "{error}"
    );
}

#[test]
fn values_that_exclude_each_other_are_named_with_their_origins() {
    let mut pairs = vec![
        ("SPARK_CCL_PATH", "zero-copy"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_IB_DISABLE", "1"),
    ];
    let error = Settings::from_env(&Env::from_pairs(pairs.clone())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "SPARK_CCL_PATH=zero-copy (from environment), NCCL_IB_DISABLE=1 (from environment), \
         NCCL_SHM_DISABLE=1 (from environment) exclude each other: the zero-copy path needs shared \
         memory or RDMA: allow one of them, or another path"
    );
    for any_one in 0..pairs.len() {
        let one = pairs.remove(any_one);
        settings(&pairs);
        pairs.insert(any_one, one);
    }
}

#[test]
fn the_wire_hash_covers_what_ranks_must_agree_on_and_nothing_else() {
    let base = Settings::default().wire_hash();
    for (name, value) in [
        ("SPARK_CCL_PATH", "safe"),
        ("SPARK_CCL_NET", "tcp"),
        ("SPARK_CCL_SHM", "0"),
        ("SPARK_CCL_ALGO", "ring"),
        ("SPARK_CCL_SOCKETS", "1"),
        ("SPARK_CCL_SLOT_BYTES", "4096"),
        ("SPARK_CCL_SLOTS", "4"),
        ("SPARK_CCL_IB_QPS_PER_CONNECTION", "2"),
        ("SPARK_CCL_BACKEND", "engine"),
        ("SPARK_CCL_SHARE_GPU", "1"),
    ] {
        assert_ne!(settings(&[(name, value)]).wire_hash(), base, "{name}");
    }
    for (name, value) in [
        ("SPARK_CCL_TIMEOUT", "1"),
        ("SPARK_CCL_SOCKET_IFNAME", "eth0"),
        ("SPARK_CCL_SECRET", "0123456789abcdef"),
        ("SPARK_CCL_LOG", "info"),
        ("SPARK_CCL_PROGRESS_THREAD", "1"),
        ("SPARK_CCL_GPU_PROTOCOL", "packets"),
        ("SPARK_CCL_GPU_PINNED", "1"),
        ("SPARK_CCL_GPU_DMABUF", "0"),
        ("SPARK_CCL_GPU_CTAS", "1"),
        ("SPARK_CCL_GPU_SET_ASIDE", "1"),
        ("SPARK_CCL_GPU_SLOTS", "1"),
        ("SPARK_CCL_DEVICE", "1"),
        ("SPARK_CCL_TUNING", "/a/file"),
        // Ranks may use different ports.
        ("SPARK_CCL_IB_HCA", "mlx5_0"),
        ("SPARK_CCL_IB_GID_INDEX", "3"),
        ("SPARK_CCL_IB_TIMEOUT", "14"),
    ] {
        assert_eq!(settings(&[(name, value)]).wire_hash(), base, "{name}");
    }
}

#[test]
fn the_document_explains_exactly_the_variables_that_have_an_effect() {
    let text = include_str!("../../../docs/environment.md");
    let explained: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| !name.contains('*'))
        .collect();
    for variable in VARIABLES {
        assert!(
            explained.contains(&variable.name),
            "{} is not explained",
            variable.name
        );
    }
    for name in explained {
        assert!(
            VARIABLES.iter().any(|variable| variable.name == name),
            "{name} has no effect"
        );
    }
}

#[test]
fn measured_choices_are_kept_in_the_cache_unless_told_otherwise() {
    let file = |values: &[(&str, &str)]| settings(values).tuning;
    let home = ("HOME", "/a");
    let in_cache = file(&[home]).unwrap();
    assert!(in_cache.starts_with("/a/.cache/spark-ccl"));
    assert_eq!(in_cache.extension().unwrap(), "json");
    let elsewhere = file(&[home, ("XDG_CACHE_HOME", "/cache")]).unwrap();
    assert!(elsewhere.starts_with("/cache/spark-ccl"));
    assert_eq!(file(&[home, ("XDG_CACHE_HOME", "cache")]), Some(in_cache));
    assert_eq!(file(&[home, ("SPARK_CCL_TUNING", "off")]), None);
    let named = file(&[home, ("SPARK_CCL_TUNING", "a.json")]);
    assert_eq!(named, Some("a.json".into()));
    assert_eq!(file(&[]), None);
}
