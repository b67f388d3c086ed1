//! Each launcher is recognised by the variables that it sets.

use proptest::prelude::*;

use super::*;

/// Variables written as in a shell.
fn lookup(variables: &str) -> impl Fn(&str) -> Option<String> {
    move |name| {
        let mut pairs = variables
            .split_whitespace()
            .filter_map(|v| v.split_once('='));
        pairs.find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
    }
}

/// Runs `detect` with variables written as in a shell.
fn detected(variables: &str) -> Result<Option<Launch>, Error> {
    detect(&lookup(variables), Instant::now())
}

fn launch(variables: &str) -> Launch {
    detected(variables).unwrap().unwrap()
}

fn refusal(variables: &str) -> String {
    detected(variables).unwrap_err().to_string()
}

/// The debug text of the rendezvous, which hides only secrets.
fn meeting(variables: &str) -> String {
    format!("{:?}", launch(variables).rendezvous)
}

const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=x PMIX_RANK=1";
const MPICH: &str = "PMI_RANK=1 PMI_SIZE=4 PMI_FD=9 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4";
const TORCH: &str =
    "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29500";
const STEP: &str = "SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[01-02] SLURM_JOB_ID=7 SLURM_STEP_ID=0";

#[test]
fn nobody() {
    assert!(detected("").unwrap().is_none());
    assert!(
        detected("MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK=0 RANK=")
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_started_rank_finds_what_it_was_told() {
    let set = rank_variables(2, 3, "u".to_owned());
    let find = |name: &str| {
        let mut pairs = set.iter();
        pairs.find(|pair| pair.0 == name).map(|pair| pair.1.clone())
    };
    let launch = detect(&find, Instant::now()).unwrap().unwrap();
    assert_eq!(
        (launch.kind, launch.rank, launch.size),
        (LauncherKind::Own, 2, 3)
    );
    assert_eq!((launch.local_rank, launch.local_size), (Some(2), Some(3)));
    assert!(matches!(launch.rendezvous, Rendezvous::UniqueId(id) if id == "u"));
}

#[test]
fn each_launcher_is_recognised() {
    for (variables, kind, local) in [
        (
            "SPARK_CCL_RANK=1 SPARK_CCL_SIZE=4 SPARK_CCL_UNIQUE_ID=u",
            LauncherKind::Own,
            None,
        ),
        (TORCH, LauncherKind::Torchrun, Some(1)),
        (OMPI, LauncherKind::OpenMpi, None),
        (MPICH, LauncherKind::Hydra, Some(1)),
        (STEP, LauncherKind::Slurm, Some(0)),
    ] {
        let launch = launch(variables);
        assert_eq!(
            (launch.kind, launch.rank, launch.size),
            (kind, 1, 4),
            "{variables}"
        );
        assert_eq!(launch.local_rank, local, "{variables}");
    }
}

#[test]
fn own_rendezvous_in_order_of_preference() {
    let own = "SPARK_CCL_RANK=0 SPARK_CCL_SIZE=2";
    let id = launch(&format!("{own} SPARK_CCL_UNIQUE_ID=abc NCCL_COMM_ID=h:5"));
    assert!(matches!(id.rendezvous, Rendezvous::UniqueId(id) if id == "abc"));
    let address = |setting| format!(r#"Address {{ {setting}: "fe80::1", port: 5, bind: true }}"#);
    let theirs = meeting(&format!("{own} NCCL_COMM_ID=[fe80::1]:5"));
    assert_eq!(theirs, address("NCCL_COMM_ID"));
    let both = "SPARK_CCL_COMM_ID=[fe80::1]:5 NCCL_COMM_ID=h:6";
    let ours = meeting(&format!("{own} {both}"));
    assert_eq!(ours, address("SPARK_CCL_COMM_ID"));
    let address = r#"Address { MASTER_ADDR: "h", port: 7, bind: true }"#;
    assert_eq!(
        meeting(&format!("{own} MASTER_ADDR=h MASTER_PORT=7")),
        address
    );
    assert!(refusal(own).contains("SPARK_CCL_UNIQUE_ID is not set, although SPARK_CCL_RANK=0"));
}

#[test]
fn a_unique_id_is_read_from_a_file_and_not_shown() {
    let path = std::env::temp_dir().join(format!("spark-ccl-id-{}", std::process::id()));
    std::fs::write(&path, "secret-id\n").unwrap();
    let own = "SPARK_CCL_RANK=0 SPARK_CCL_SIZE=2 SPARK_CCL_UNIQUE_ID_FILE=";
    let found = launch(&format!("{own}{}", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert!(!format!("{found:?}").contains("secret-id"));
    assert!(matches!(found.rendezvous, Rendezvous::UniqueId(id) if id == "secret-id"));
    assert!(refusal(&format!("{own}/nonexistent/id")).contains("UNIQUE_ID_FILE=/nonexistent/id"));
}

#[test]
fn the_agents_port_is_never_bound() {
    assert_eq!(
        meeting(TORCH),
        r#"Address { MASTER_ADDR: "h", port: 29500, bind: true }"#
    );
    let agent = format!("{TORCH} TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=r");
    assert_eq!(meeting(&agent), "KeyValue(torchrun's store at h:29500)");
    let Rendezvous::KeyValue(space) = launch(&agent).rendezvous else {
        panic!()
    };
    assert!(!space.is_private());
    let without = agent.replace("=True", "=False");
    assert!(meeting(&without).contains("bind: true"));
}

#[test]
fn mpi_has_private_spaces_and_gives_way_to_an_address_with_a_secret() {
    for variables in [OMPI, MPICH] {
        let Rendezvous::KeyValue(space) = launch(variables).rendezvous else {
            panic!()
        };
        assert!(space.is_private());
        let address = format!("{variables} MASTER_ADDR=h MASTER_PORT=7");
        assert!(
            meeting(&address).starts_with("KeyValue"),
            "an address alone is not enough"
        );
        assert!(meeting(&format!("{address} SPARK_CCL_SECRET=s")).starts_with("Address"));
        assert!(meeting(&format!("{address} SPARK_CCL_SECRET_FILE=s")).starts_with("Address"));
    }
    assert!(
        refusal("PMI_RANK=0 PMI_SIZE=2").contains("MASTER_ADDR, MASTER_PORT and SPARK_CCL_SECRET")
    );
}

#[test]
fn slurm_offers_pmix_or_pmi_or_its_first_node() {
    assert!(meeting(&format!("{STEP} PMIX_NAMESPACE=x")).contains("PMIx"));
    let pmi = format!("{STEP} PMI_RANK=1 PMI_SIZE=4 PMI_FD=9");
    assert!(meeting(&pmi).contains("PMI_FD=9"));
    assert_eq!(launch(&pmi).kind, LauncherKind::Slurm);
    assert!(meeting(STEP).starts_with(r#"Address { SLURM_STEP_NODELIST: "n01", port: "#));
    assert_ne!(
        meeting(STEP),
        meeting(&STEP.replace("STEP_ID=0", "STEP_ID=1"))
    );
    assert!(refusal(&STEP.replace("n[01-02]", "n[")).contains("SLURM_STEP_NODELIST=\"n[\""));
}

#[test]
fn the_batch_script_of_slurm_is_no_rank() {
    assert!(
        detected("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7")
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_inner_launcher_wins() {
    let agent = "TORCHELASTIC_RUN_ID=r TORCHELASTIC_USE_AGENT_STORE=True";
    // One agent per node, started by mpirun or srun, which count the agents.
    let nested = format!("RANK=5 WORLD_SIZE=16 MASTER_ADDR=h MASTER_PORT=1 {agent} {OMPI} {STEP}");
    let found = launch(&nested);
    assert_eq!(
        (found.kind, found.rank, found.size),
        (LauncherKind::Torchrun, 5, 16)
    );
    // In a Slurm job, mpirun starts its daemons as a step.
    let found = launch(&format!("{} {STEP}", OMPI.replace('4', "9")));
    assert_eq!((found.kind, found.size), (LauncherKind::OpenMpi, 9));
    let found = launch(&format!("{} {STEP}", MPICH.replace("SIZE=4", "SIZE=9")));
    assert_eq!((found.kind, found.size), (LauncherKind::Hydra, 9));
    // A script under mpirun that sets torch's variables.
    assert_eq!(
        launch(&format!("{OMPI} {TORCH}")).kind,
        LauncherKind::OpenMpi
    );
}

#[test]
fn contradictions_name_both_variables() {
    for (variables, first, second) in [
        (
            format!("{OMPI} RANK=1 WORLD_SIZE=8"),
            "OMPI_COMM_WORLD_SIZE=4",
            "WORLD_SIZE=8",
        ),
        (
            format!("{OMPI} RANK=0 WORLD_SIZE=4"),
            "OMPI_COMM_WORLD_RANK=1",
            "RANK=0",
        ),
        (
            format!("{OMPI} PMI_RANK=1 PMI_SIZE=2"),
            "OMPI_COMM_WORLD_SIZE=4",
            "PMI_SIZE=2",
        ),
        (
            format!("{STEP} PMI_RANK=1 PMI_SIZE=2 PMI_FD=9"),
            "SLURM_NTASKS=4",
            "PMI_SIZE=2",
        ),
        (
            format!("{TORCH} SPARK_CCL_RANK=0 SPARK_CCL_SIZE=1"),
            "SPARK_CCL_SIZE=1",
            "WORLD_SIZE=4",
        ),
    ] {
        let text = refusal(&variables);
        assert!(text.contains(first) && text.contains(second), "{text}");
    }
}

#[test]
fn impossible_values_are_named() {
    for (variables, parts) in [
        ("RANK=x WORLD_SIZE=2", ["RANK=\"x\"", "a rank"]),
        ("RANK=-1 WORLD_SIZE=2", ["RANK=\"-1\"", "a rank"]),
        ("RANK=0 WORLD_SIZE=0", ["WORLD_SIZE=\"0\"", "at least 1"]),
        (
            "RANK=2 WORLD_SIZE=2",
            ["RANK=\"2\"", "a rank below WORLD_SIZE=2"],
        ),
        (
            "RANK=0 WORLD_SIZE=99999999999",
            ["WORLD_SIZE", "at least 1"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=z",
            ["LOCAL_RANK=\"z\"", "within the host"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0",
            ["MASTER_PORT=\"0\"", "1 to 65535"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h",
            ["MASTER_PORT is not set", "RANK=0"],
        ),
        ("RANK=0 WORLD_SIZE=2", ["MASTER_ADDR is not set", "RANK=0"]),
        ("WORLD_SIZE=2", ["RANK is not set", "WORLD_SIZE=2"]),
        (
            "OMPI_COMM_WORLD_SIZE=2",
            ["OMPI_COMM_WORLD_RANK is not set", "SIZE=2"],
        ),
        (
            "PMI_RANK=0 PMI_SIZE=1 PMI_FD=x",
            ["PMI_FD=\"x\"", "file descriptor"],
        ),
        (
            "SPARK_CCL_RANK=0 SPARK_CCL_SIZE=1 NCCL_COMM_ID=::1:5",
            ["NCCL_COMM_ID", "host:port"],
        ),
        (
            "SPARK_CCL_RANK=0 SPARK_CCL_SIZE=1 SPARK_CCL_COMM_ID=::1:5",
            ["SPARK_CCL_COMM_ID", "host:port"],
        ),
    ] {
        let text = refusal(variables);
        for part in parts {
            assert!(text.contains(part), "{variables}: {text}");
        }
    }
}

#[test]
fn half_a_pair_of_another_launcher_does_no_harm() {
    assert_eq!(
        launch(&format!("{OMPI} WORLD_SIZE=9")).kind,
        LauncherKind::OpenMpi
    );
}

proptest! {
    #[test]
    fn any_values_are_answered(
        values in proptest::collection::vec(proptest::option::of("[0-9]{0,3}|[a-z:\\[\\]\\-]{1,6}"), 16),
    ) {
        const NAMES: [&str; 16] = [
            "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "PMI_RANK", "PMI_SIZE",
            "PMI_FD", "SPARK_CCL_RANK", "SPARK_CCL_SIZE", "NCCL_COMM_ID", "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST",
        ];
        let find = |name: &str| {
            values[NAMES.iter().position(|n| *n == name)?].clone()
        };
        if let Ok(Some(launch)) = detect(&find, Instant::now()) {
            prop_assert!(launch.rank < launch.size);
        }
    }

    #[test]
    fn slurm_ports_stay_in_their_range(job: u32, step: u32) {
        prop_assert!((20_000..32_000).contains(&slurm_port(job, step)));
    }

    #[test]
    fn host_and_port_come_back(host in "[a-z0-9.-]{1,20}", port in 1_u16..) {
        let expected = Some((host.clone(), port));
        prop_assert_eq!(host_and_port(&format!("{host}:{port}")), expected.clone());
        prop_assert_eq!(host_and_port(&format!("[{host}]:{port}")), expected);
    }
}

#[test]
fn the_number_on_a_host_is_that_of_the_innermost_launcher() {
    let of = |variables: &str| local_rank(&lookup(variables));
    assert_eq!(
        of("SPARK_CCL_LOCAL_RANK=1 LOCAL_RANK=2 SLURM_LOCALID=3"),
        Some(1)
    );
    assert_eq!(of("LOCAL_RANK=2 SLURM_LOCALID=3"), Some(2));
    assert_eq!(of("LOCAL_RANK=x SLURM_LOCALID=3"), Some(3));
    assert_eq!(of("RANK=4"), None);
}
