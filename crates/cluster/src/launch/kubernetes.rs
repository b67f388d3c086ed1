//! The manifest of an indexed job of Kubernetes, in which each pod starts its own ranks.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

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
    /// RDMA devices that each pod gets, by the name of their device plugin's resource. The pods may
    /// then lock memory
    #[arg(long, value_name = "DOMAIN/NAME[=N]", requires = "kubernetes", value_parser = resource)]
    rdma: Option<(String, usize)>,
    /// The networks that each pod joins, as an annotation of Multus: rail-0,rail-1
    #[arg(long, value_name = "NAME,..", requires = "kubernetes")]
    networks: Option<String>,
    /// The name of the job, and of what belongs to it
    #[arg(
        long,
        value_name = "NAME",
        default_value = "spark-ccl",
        requires = "kubernetes"
    )]
    job_name: String,
}

/// The arguments for the launcher of each pod.
pub(super) struct Launch<'a> {
    pub(super) flags: Vec<String>,
    pub(super) command: &'a [String],
    /// How long pods wait for each other.
    pub(super) patience: Duration,
}

impl KubernetesArgs {
    /// The name of the first pod for the others.
    pub(super) fn first_pod(&self) -> String {
        format!("{0}-0.{0}", self.job_name)
    }

    /// The manifest, as JSON, which `kubectl` takes as it takes YAML.
    pub(super) fn manifest(&self, launch: &Launch, secret: &str) -> Result<String, Error> {
        self.check()?;
        let nodes = self.nodes.unwrap_or(1);
        let container = self.container(nodes, launch);
        let items = [
            self.secret(secret),
            self.service(),
            self.job(nodes, &container),
        ];
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        Ok(spark_ccl_console::json(&list)?)
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
            return Err(Error::usage(format!(
                "--job-name {name}: expected at most {LONGEST_NAME} of a-z, 0-9 and -, of which \
                 the first is a letter and the last no -"
            )));
        }
        for (flag, value, least) in [
            ("--nodes", self.nodes.unwrap_or(1), 1),
            ("--slots", self.slots, 1),
            ("--gpus", self.gpus, 0),
        ] {
            if !(least..=MOST_NODES).contains(&value) {
                return Err(Error::usage(format!(
                    "{flag} {value}: expected {least} to {MOST_NODES}"
                )));
            }
        }
        Ok(())
    }

    /// The secret, which a command line would show.
    fn secret(&self, secret: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": self.job_name },
            "type": "Opaque",
            "stringData": { "secret": secret },
        })
    }

    /// A headless service: gives the pods names that the others can resolve, even before all have
    /// started.
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
                "template": self.template(container),
            },
        })
    }

    fn template(&self, container: &Value) -> Value {
        let name = &self.job_name;
        let mut template = json!({
            "spec": {
                "subdomain": name,
                "restartPolicy": "Never",
                "containers": [container],
                // Ranks of a pod share memory; by default there are 64 MiB.
                "volumes": [{ "name": "shared-memory", "emptyDir": { "medium": "Memory" } }],
                // Two pods of a node would share its network card.
                "topologySpreadConstraints": [{
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": { "matchLabels": { "job-name": name } },
                }],
            },
        });
        if let Some(networks) = &self.networks {
            let annotations = json!({ "k8s.v1.cni.cncf.io/networks": networks });
            template["metadata"] = json!({ "annotations": annotations });
        }
        template
    }

    fn container(&self, nodes: usize, launch: &Launch) -> Value {
        let name = &self.job_name;
        // A pod's own name is that of the job and its number.
        let pods: Vec<String> = (0..nodes)
            .map(|pod| format!("{name}-{pod}:{}", self.slots))
            .collect();
        let mut words = ["spark-perf", "launch", "--node-of", &pods.join(",")]
            .map(str::to_owned)
            .to_vec();
        words.extend(launch.flags.iter().cloned());
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
                // A pod's name resolves before its image is there, so the others already wait for
                // its ranks.
                {
                    "name": "SPARK_CCL_INIT_TIMEOUT",
                    "value": launch.patience.as_secs_f64().max(1.0).to_string(),
                },
            ],
            "volumeMounts": [{ "name": "shared-memory", "mountPath": "/dev/shm" }],
        });
        if self.gpus > 0 {
            container["resources"]["limits"]["nvidia.com/gpu"] = json!(self.gpus);
        }
        if let Some((name, count)) = &self.rdma {
            container["resources"]["limits"][name.as_str()] = json!(count);
            let capabilities = json!({ "add": ["IPC_LOCK"] });
            container["securityContext"] = json!({ "capabilities": capabilities });
        }
        container
    }
}

/// Reads `DOMAIN/RESOURCE[=N]`.
fn resource(text: &str) -> Result<(String, usize), String> {
    let (name, count) = text.split_once('=').unwrap_or((text, "1"));
    let is_part = |part: &str| {
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        !part.is_empty() && part.chars().all(is_fine)
    };
    let is_name = name
        .split_once('/')
        .is_some_and(|(domain, resource)| is_part(domain) && is_part(resource));
    match count.parse() {
        Ok(count @ 1..=MOST_NODES) if is_name => Ok((name.to_owned(), count)),
        _ => Err("expected a resource's name with its domain, and a number: \
                  rdma/rdma_shared_device_a=1"
            .to_owned()),
    }
}
