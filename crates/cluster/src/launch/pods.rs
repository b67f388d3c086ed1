//! The command line of the launcher in each pod of a Kubernetes job.

use spark_ccl_config::Env;

use super::args::LaunchArgs;
use super::kubernetes::Launch;
use super::orders;
use crate::error::Error;

/// The manifest of the job, whose ranks are admitted by the secret.
pub(super) fn manifest(args: &LaunchArgs, secret: &str) -> Result<String, Error> {
    let launch = Launch {
        flags: flags(args)?,
        command: &args.command,
        patience: args.connect_timeout(),
    };
    args.kubernetes.manifest(&launch, secret)
}

/// This launcher's options, as flags for the launchers in the pods.
fn flags(args: &LaunchArgs) -> Result<Vec<String>, Error> {
    let first = || args.kubernetes.first_pod();
    let connect_timeout = args.connect_timeout().as_secs_f64();
    let mut flags = vec![
        (
            "--master-addr",
            args.master_addr.clone().unwrap_or_else(first),
        ),
        ("--connect-timeout", connect_timeout.to_string()),
        ("--grace", args.grace.to_string()),
        ("--lost-after", args.lost_after.to_string()),
    ];
    flags.extend(
        args.master_port
            .map(|port| ("--master-port", port.to_string())),
    );
    if let Some(folder) = &args.chdir {
        let shown = folder.display();
        let text = folder.to_str();
        let text = text
            .ok_or_else(|| Error::usage(format!("--chdir {shown}: a manifest takes UTF-8 only")));
        flags.push(("--chdir", text?.to_owned()));
    }
    let asked = orders::asked(&args.env, &Env::from_process())?;
    flags.extend(
        asked
            .iter()
            .map(|(name, value)| ("-x", format!("{name}={value}"))),
    );
    let words = flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value]);
    let no_prefix = args.no_prefix.then(|| "--no-prefix".to_owned());
    Ok(words.chain(no_prefix).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    /// The manifest that these words, and a command, come to.
    fn manifest(words: &[&str], command: &[&str]) -> Result<Value, Error> {
        let start = ["launch", "--kubernetes", "--image", "registry/train:1"];
        let args = LaunchArgs::try_parse_from([&start, words, &["--"], command].concat()).unwrap();
        let text = super::manifest(&args, "of this test")?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    fn container(manifest: &Value) -> &Value {
        &manifest["items"][2]["spec"]["template"]["spec"]["containers"][0]
    }

    #[test]
    fn each_pod_finds_itself_by_its_name() {
        let words = "--nodes 2 --slots 4 --gpus 4 --job-name train";
        let words: Vec<_> = words.split(' ').collect();
        let list = manifest(&words, &["true"]).unwrap();
        let job = &list["items"][2]["spec"];
        assert_eq!(
            (&job["completionMode"], &job["completions"]),
            (&json!("Indexed"), &json!(2))
        );
        let container = container(&list);
        let command = "spark-perf launch --node-of train-0:4,train-1:4 --master-addr train-0.train --connect-timeout 600 \
                       --grace 5 --lost-after 60 -- true";
        let command: Vec<_> = command.split_whitespace().collect();
        assert_eq!(container["command"], json!(command));
        assert_eq!(container["env"][1]["value"], "600");
        assert!(!container.to_string().contains("of this test"));
        assert_eq!(list["items"][1]["spec"]["selector"]["job-name"], "train");
    }

    #[test]
    fn pods_get_what_rdma_needs() {
        let plain = manifest(&["--nodes", "2"], &["true"]).unwrap();
        assert_eq!(container(&plain)["resources"], Value::Null);
        assert_eq!(container(&plain)["securityContext"], Value::Null);
        let pod = |list: &Value| list["items"][2]["spec"]["template"].clone();
        let spread = &pod(&plain)["spec"]["topologySpreadConstraints"][0];
        assert_eq!(
            spread["labelSelector"]["matchLabels"]["job-name"],
            "spark-ccl"
        );

        let words = "--nodes 2 --gpus 1 --rdma rdma/hca=2 --networks rail-0,rail-1";
        let words: Vec<_> = words.split(' ').collect();
        let list = manifest(&words, &["true"]).unwrap();
        let expected = json!({ "nvidia.com/gpu": 1, "rdma/hca": 2 });
        assert_eq!(container(&list)["resources"]["limits"], expected);
        let added = &container(&list)["securityContext"]["capabilities"]["add"];
        assert_eq!(added, &json!(["IPC_LOCK"]));
        let annotations = &pod(&list)["metadata"]["annotations"];
        assert_eq!(annotations["k8s.v1.cni.cncf.io/networks"], "rail-0,rail-1");

        let start = [
            "launch",
            "--kubernetes",
            "--image",
            "i",
            "--nodes",
            "1",
            "--rdma",
        ];
        for bad in ["hca", "rdma/", "rdma/hca=0", "rdma/hca=x", "rdma/h a"] {
            let words = [&start[..], &[bad, "--", "true"]].concat();
            assert!(LaunchArgs::try_parse_from(words).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_asked_of_the_launcher_is_asked_of_that_in_the_pod() {
        let words = "--nodes 1 --connect-timeout 900 --grace 0.5 --lost-after 7 --master-port 4000 --chdir /a -x A=b=c -x E=$$ \
                     --no-prefix --master-addr there";
        let words: Vec<_> = words.split_whitespace().collect();
        let list = manifest(&words, &["true"]).unwrap();
        let command = "spark-perf launch --node-of spark-ccl-0:1 --master-addr there --connect-timeout 900 --grace 0.5 \
                       --lost-after 7 --master-port 4000 --chdir /a -x A=b=c -x E=$$$$ --no-prefix -- true";
        let command: Vec<_> = command.split_whitespace().collect();
        assert_eq!(container(&list)["command"], json!(command));
        assert_eq!(container(&list)["env"][1]["value"], "900");
        let unset = manifest(&["--nodes", "1", "-x", "NOWHERE"], &["true"]).unwrap_err();
        assert!(unset.to_string().contains("-x NOWHERE"), "{unset}");
    }

    #[test]
    fn dollars_are_those_of_the_program() {
        let words = ["$HOME", "$$", "$$(x)", "$(date)", "a$", "$$$"];
        let list = manifest(&["--nodes", "1"], &words).unwrap();
        let command = container(&list)["command"].as_array().unwrap();
        let texts = command.iter().map(|word| expanded(word.as_str().unwrap()));
        let texts: Vec<_> = texts.collect();
        assert_eq!(texts[texts.len() - words.len()..], words);
    }

    /// What Kubernetes makes of a word, which has no variable that it knows.
    fn expanded(word: &str) -> String {
        let mut text = String::new();
        let mut rest = word.chars().peekable();
        while let Some(c) = rest.next() {
            assert!(c != '$' || rest.peek() != Some(&'('), "{word}: a variable");
            if c == '$' && rest.peek() == Some(&'$') {
                rest.next();
            }
            text.push(c);
        }
        text
    }

    #[test]
    fn names_and_numbers_are_checked() {
        for name in ["", "Train", "-a", "a-", "0a", "a.b", &"a".repeat(51)] {
            let name = format!("--job-name={name}");
            assert!(
                manifest(&["--nodes", "1", &name], &["true"]).is_err(),
                "{name}"
            );
        }
        let error = manifest(&["--nodes", "0"], &["true"]).unwrap_err();
        assert!(error.to_string().contains("--nodes 0"));
    }
}
