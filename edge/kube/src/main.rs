//! The program `grantway-kube`: see the crate `kube-edge`.

use abi::machine::Setting;
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use kube_edge::compile::{Cluster, Policies};
use kube_edge::list;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tool::{Failure, clean, exit_code, output};

/// Limit of the length of a list.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Compiles the network policies of a Kubernetes cluster
#[derive(Debug, Parser)]
#[command(name = "grantway-kube", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the firewall rules of each pod of a node
    ///
    /// Prints a JSON object a line, with `namespace`, `pod`, `addresses` and `rules`. `grantway
    /// rules GUEST --file FILE` accepts the value of `rules` as a file whose name ends in `.json`.
    /// Pods in the node's network namespace, pods without an address and pods that have ended have
    /// no line. A part of a policy that is not understood allows nothing, and is a warning.
    #[command(after_help = "Examples:\n  \
        kubectl get nodes,namespaces,pods,networkpolicies -A -o json > cluster.json\n  \
        grantway-kube rules --node node-1 --file cluster.json\n  \
        grantway-kube rules --node node-1 --file cluster.json |\n    \
        jq 'select(.namespace == \"shop\" and .pod == \"db-0\").rules' > rules.json\n  \
        grantway rules GUEST --file rules.json")]
    Rules {
        /// The node's name
        #[arg(long)]
        node: String,
        /// A file with a `List` of nodes, namespaces, pods and network policies, in JSON, of at
        /// most 256 MiB; without it, standard input
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Command::Rules { node, file } = Cli::parse().command;
    match rules(&node, file.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Writes a message to standard error, without terminal control codes.
fn report(text: &str) {
    eprintln!("grantway-kube: {}", clean::line(text));
}

fn rules(node_name: &str, file: Option<&Path>) -> anyhow::Result<()> {
    let from = file.map_or("standard input".into(), Path::to_string_lossy);
    let wrong = |why: String| Failure::Usage(format!("{from}: {why}"));
    let text = match file {
        Some(path) => File::open(path).and_then(limited),
        None => limited(io::stdin().lock()),
    };
    let text = text.with_context(|| format!("cannot read {from}"))?;
    let text = text.ok_or_else(|| wrong("it exceeds 256 MiB".to_owned()))?;
    let cluster = list::cluster(&text).map_err(&wrong)?;
    drop(text);
    print(&cluster, node_name).map_err(|error| error.context(from.into_owned()))
}

/// Reads to the end. Returns `None` if the text exceeds the limit.
fn limited(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    from.take(LIST_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok((text.len() as u64 <= LIST_BYTES_MAX).then_some(text))
}

fn print(cluster: &Cluster, node_name: &str) -> anyhow::Result<()> {
    let Some(node) = cluster.nodes.get(node_name) else {
        return Err(Failure::Usage(format!("it has no Node {node_name}")).into());
    };
    if node.addresses.is_empty() {
        let why = format!("Node {node_name} has no address, so its pods could not be probed");
        return Err(Failure::Usage(why).into());
    }
    let policies = Policies::of(cluster);
    for (policy, note) in &policies.notes {
        report(&format!("warning: NetworkPolicy {policy}: {note}"));
    }
    let here = |pod: &&kube_edge::api::Pod| pod.node == node_name && !pod.addresses.is_empty();
    for (name, pod) in cluster.pods.iter().filter(|(_, pod)| here(pod)) {
        let rules = policies.rules_of(name, pod, node);
        if rules.left_out > 0 {
            report(&format!(
                "warning: Pod {name}: {} rules exceed the limit: their traffic is denied",
                rules.left_out
            ));
        }
        let vif = Setting::List(vec![rules.section()]);
        output::json(&json!({
            "namespace": name.namespace,
            "pod": name.name,
            "addresses": pod.addresses,
            "rules": Setting::Section(BTreeMap::from([("vif".to_owned(), vif)])),
        }))?;
    }
    Ok(())
}
