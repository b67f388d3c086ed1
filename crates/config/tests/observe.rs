//! Which reports the variables that are set ask for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use spark_ccl_config::{Env, InspectorFormat, Record, Settings};

fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::from_env(&Env::from_pairs(pairs.iter().copied())).unwrap()
}

#[test]
fn clients_may_ask_only_if_someone_wants_that() {
    let asked = |values: &[(&str, &str)]| {
        let ras = settings(values).observe.ras;
        ras.map(|address| address.to_string())
    };
    let usual = Some("localhost:28028".to_owned());
    let named = Some("10.0.0.1:5".to_owned());
    let address = ("NCCL_RAS_ADDR", "10.0.0.1:5");
    assert_eq!(asked(&[]), None);
    assert_eq!(asked(&[("SPARK_CCL_RAS", "1")]), usual);
    assert_eq!(asked(&[("NCCL_RAS_ENABLE", "1")]), usual);
    assert_eq!(asked(&[("SPARK_CCL_RAS", "10.0.0.1:5")]), named);
    assert_eq!(asked(&[address]), named);
    assert_eq!(asked(&[address, ("SPARK_CCL_RAS", "1")]), named);
    assert_eq!(asked(&[address, ("NCCL_RAS_ENABLE", "0")]), None);
    assert_eq!(
        asked(&[address, ("SPARK_CCL_RAS", "0"), ("NCCL_RAS_ENABLE", "1")]),
        None
    );
    let error = Settings::from_env(&Env::from_pairs([("SPARK_CCL_RAS", "28028")]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("expected 0, 1 or host:port"), "{error}");
}

#[test]
fn what_is_written_about_operations() {
    let observe = |values: &[(&str, &str)]| settings(values).observe;
    assert!(!observe(&[]).is_on());
    assert!(!observe(&[("SPARK_CCL_RECORD", "0")]).is_on());
    assert_eq!(observe(&[("SPARK_CCL_RECORD", "1")]).record, Record::Kept);
    let folder = observe(&[("SPARK_CCL_RECORD", "/tmp/records")]).record;
    assert_eq!(folder, Record::Folder("/tmp/records".into()));

    let inspector = |values: &[(&str, &str)]| observe(values).inspector.unwrap();
    let in_folder = ("SPARK_CCL_INSPECTOR", "/tmp/operations");
    let json = inspector(&[in_folder]);
    assert_eq!(json.folder, std::path::Path::new("/tmp/operations"));
    assert_eq!(
        (json.format, json.every),
        (InspectorFormat::Json, Duration::from_secs(1))
    );
    let format = ("SPARK_CCL_INSPECTOR_FORMAT", "prometheus");
    let prometheus = inspector(&[in_folder, format]);
    let expected = (InspectorFormat::Prometheus, Duration::from_secs(30));
    assert_eq!((prometheus.format, prometheus.every), expected);
    let often = inspector(&[in_folder, format, ("SPARK_CCL_INSPECTOR_EVERY", "0.5")]);
    assert_eq!(often.every, Duration::from_millis(500));
    assert_eq!(observe(&[format]).inspector, None);
}
