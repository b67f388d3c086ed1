//! The manifest of an indexed job of Kubernetes, in which each pod starts its own ranks.

use clap::Args;
use serde_json::{Value, json};

use super::args::LaunchArgs;
use crate::error::Error;

/// The most pods of a job here.
const MOST_NODES: usize = 1024;
/// Kubernetes takes names of at most 63 characters, of which the pods' numbers need some.
const LONGEST_NAME: usize = 50;

/// What a job of Kubernetes needs besides the command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(crate) struct KubernetesArgs {
    /// Print the manifest of an indexed job, and start nothing; the image must have spark-perf
    #[arg(long, requires_all = ["image", "nodes"], conflicts_with_all = ["list", "hostfile", "local", "node_of", "found", "ssh", "remote_program"])]
    pub(super) kubernetes: bool,
    /// The image of the pods
    #[arg(long, value_name = "IMAGE", requires = "kubernetes")]
    image: Option<String>,
    /// The number of pods
    #[arg(long, value_name = "N", requires = "kubernetes")]
    nodes: Option<usize>,
    /// Ranks in each pod
    #[arg(long, value_name = "N", default_value_t = 1, requires = "kubernetes")]
    slots: usize,
    /// GPUs of each pod
    #[arg(long, value_name = "N", default_value_t = 0, requires = "kubernetes")]
    gpus: usize,
    /// The name of the job, and of what belongs to it
    #[arg(
        long,
        value_name = "NAME",
        default_value = "spark-ccl",
        requires = "kubernetes"
    )]
    job_name: String,
}

impl KubernetesArgs {
    /// The manifest, as JSON, which `kubectl` takes as it takes YAML.
    pub(super) fn manifest(&self, launch: &LaunchArgs, secret: &str) -> Result<String, Error> {
        self.check()?;
        let nodes = self.nodes.unwrap_or(1);
        let container = self.container(nodes, launch)?;
        let items = [
            self.secret(secret),
            self.service(),
            self.job(nodes, &container),
        ];
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let text = serde_json::to_string_pretty(&list);
        let text = text.map_err(|error| Error::system("writing the manifest")(error.into()))?;
        Ok(text + "\n")
    }

    fn check(&self) -> Result<(), Error> {
        let name = &self.job_name;
        let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_edge = |c: char| c.is_ascii_lowercase();
        let is_fine = name.len() <= LONGEST_NAME
            && name.chars().all(is_label)
            && name.starts_with(is_edge)
            && !name.ends_with('-');
        if !is_fine {
            return Err(Error::Usage(format!(
                "--job-name {name}: expected at most {LONGEST_NAME} of a-z, 0-9 and -, of which the first is a letter and \
                 the last no -"
            )));
        }
        for (flag, value, least) in [
            ("--nodes", self.nodes.unwrap_or(1), 1),
            ("--slots", self.slots, 1),
            ("--gpus", self.gpus, 0),
        ] {
            if !(least..=MOST_NODES).contains(&value) {
                return Err(Error::Usage(format!(
                    "{flag} {value}: expected {least} to {MOST_NODES}"
                )));
            }
        }
        Ok(())
    }

    /// What admits a rank. A command line would show it.
    fn secret(&self, secret: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": self.job_name },
            "type": "Opaque",
            "stringData": { "secret": secret },
        })
    }

    /// Gives the pods names that the others know, also while not all have started.
    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.job_name },
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": { "job-name": self.job_name },
            },
        })
    }

    fn job(&self, nodes: usize, container: &Value) -> Value {
        let name = &self.job_name;
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": name },
            "spec": {
                "completionMode": "Indexed",
                "completions": nodes,
                "parallelism": nodes,
                "backoffLimit": 0,
                "template": {
                    "spec": {
                        "subdomain": name,
                        "restartPolicy": "Never",
                        "containers": [container],
                        // Ranks of a pod share memory; by default there are 64 MiB.
                        "volumes": [{ "name": "shared-memory", "emptyDir": { "medium": "Memory" } }],
                    },
                },
            },
        })
    }

    fn container(&self, nodes: usize, launch: &LaunchArgs) -> Result<Value, Error> {
        let name = &self.job_name;
        // A pod's own name is that of the job and its number.
        let pods: Vec<String> = (0..nodes)
            .map(|pod| format!("{name}-{pod}:{}", self.slots))
            .collect();
        let first = format!("{name}-0.{name}");
        let mut words = ["spark-perf", "launch", "--node-of", &pods.join(",")]
            .map(str::to_owned)
            .to_vec();
        words.extend(launch.of_pod(first)?);
        words.push("--".to_owned());
        words.extend(launch.command.iter().cloned());
        // Kubernetes takes $(NAME) for a variable of its own, and $$ for one dollar.
        let words: Vec<String> = words.iter().map(|word| word.replace('$', "$$")).collect();
        let mut container = json!({
            "name": "ranks",
            "image": self.image,
            "command": words,
            "env": [
                {
                    "name": "SPARK_CCL_SECRET",
                    "valueFrom": { "secretKeyRef": { "name": name, "key": "secret" } },
                },
                // A pod has its name, and with it its ranks are awaited, before its image is there.
                {
                    "name": "SPARK_CCL_INIT_TIMEOUT",
                    "value": launch.connect_timeout().as_secs_f64().max(1.0).to_string(),
                },
            ],
            "volumeMounts": [{ "name": "shared-memory", "mountPath": "/dev/shm" }],
        });
        if self.gpus > 0 {
            container["resources"] = json!({ "limits": { "nvidia.com/gpu": self.gpus } });
        }
        Ok(container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// The manifest that these words, and a command, come to.
    fn manifest(words: &[&str], command: &[&str]) -> Result<Value, Error> {
        let start = ["launch", "--kubernetes", "--image", "registry/train:1"];
        let args = LaunchArgs::try_parse_from([&start, words, &["--"], command].concat()).unwrap();
        let text = args.kubernetes.manifest(&args, "of this test")?;
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
