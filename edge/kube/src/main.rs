//! The program `grantway-kube`: see the crate `kube-edge`.

use abi::machine::ConfigValue;
use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use kube_edge::agent::{self, AgentSettings};
use kube_edge::compile::{Cluster, Policies};
use kube_edge::list;
use kube_edge::routes;
use kube_edge::server::{ApiServer, Login, Material};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tool::{Failure, clean, exit_code, output};

/// Limit of the length of a list.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Applies the network policies of a Kubernetes cluster, and sets routes between its nodes
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
    /// Prints a JSON object per line, with `namespace`, `pod`, `addresses` and `rules`. `grantway
    /// rules GUEST --file FILE` accepts the value of `rules` as a file whose name ends in `.json`.
    /// Pods in the node's network namespace, pods without an address and pods that have ended have
    /// no line. An unknown part of a policy allows nothing and causes a warning.
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
        /// A file with a `List` of nodes, namespaces, pods and network policies, in JSON, at most
        /// 256 MiB [default: standard input]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Keep the rules of a node's pods up to date with the cluster's policies
    ///
    /// Watches Nodes, Namespaces, Pods and NetworkPolicies, compiles the policies after each
    /// change, and sets the rules of this node's pods through the control socket of the machine.
    /// Rules stay in force while the agent or the API server does not run. The agent's pods are
    /// those that `grantway-cni` attached with `"networkPolicy": true` in the network's file. Runs
    /// until a signal.
    ///
    /// The API server is that of the pod's service account, unless `--kubeconfig` or `--server`
    /// names another.
    #[command(after_help = "Examples:\n  \
        grantway-kube agent --node \"$NODE_NAME\"\n  \
        grantway-kube agent --node node-1 --kubeconfig /etc/kubernetes/agent.conf\n  \
        grantway-kube agent --node node-1 --server https://192.0.2.10:6443 \\\n    \
        --token-file /etc/grantway/token --ca-file /etc/kubernetes/pki/ca.crt")]
    Agent(AgentArgs),
    /// Keep a node's routes to the pods of all other nodes
    ///
    /// Watches Nodes, and adds a route for each pod subnet of each other node, through the node's
    /// address of the same family (an internal one, if it has any), in this process's network
    /// namespace. Nodes must be in one layer-2 network. The routes have the protocol 71 (`ip route
    /// show proto 71`); those of nodes that no longer exist are removed, and no other route is
    /// changed. Routes stay in force while the program or the API server does not run. Needs the
    /// capability CAP_NET_ADMIN and the program `ip`. Runs until a signal.
    ///
    /// The API server is that of the pod's service account, unless `--kubeconfig` or `--server`
    /// names another.
    #[command(after_help = "Examples:\n  \
        grantway-kube routes --node \"$NODE_NAME\"\n  \
        grantway-kube routes --node node-1 --kubeconfig /etc/kubernetes/agent.conf")]
    Routes {
        /// The node's name
        #[arg(long)]
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Args)]
struct AgentArgs {
    /// The node's name
    #[arg(long)]
    node: String,
    /// The machine's name
    #[arg(long, default_value = "grantway")]
    name: String,
    /// The machine's control socket, instead of its name
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    socket: Option<PathBuf>,
    /// The folder in which the plugin records pods: `pods` in the plugin's `stateDir`
    #[arg(long, value_name = "FOLDER", default_value = "/run/grantway/cni/pods")]
    pods: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// A kubeconfig, whose current context has a token or a client certificate [default: the
    /// pod's service account]
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    kubeconfig: Option<PathBuf>,
    /// The API server, as `https://HOST:PORT`; `http://` only without a token [default: the
    /// pod's]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with the token, which is read again for each request [default: no token]
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// File with the certificates of the API server's authority, in PEM
    #[arg(long, value_name = "FILE", requires = "server")]
    ca_file: Option<PathBuf>,
}

impl ServerArgs {
    fn server(&self) -> Result<ApiServer, Failure> {
        let server = match (&self.kubeconfig, &self.server) {
            (Some(path), _) => ApiServer::of_kubeconfig(path),
            (None, Some(url)) => {
                let file = |path: &Option<PathBuf>| path.clone().map(Material::File);
                let login = file(&self.token_file).map_or(Login::Anonymous, Login::Token);
                let url = url.parse().map_err(Failure::Usage)?;
                ApiServer::new(url, file(&self.ca_file), login)
            }
            (None, None) => ApiServer::of_pod(|name| std::env::var(name).ok()),
        };
        server.map_err(Failure::Usage)
    }
}

impl AgentArgs {
    fn run(self) -> anyhow::Result<()> {
        let server = self.server.server()?;
        let socket = match self.socket {
            Some(socket) => socket,
            None => client::find(&self.name)?,
        };
        let settings = AgentSettings {
            node: self.node,
            socket,
            records: self.pods,
        };
        agent::run(&server, settings, report)
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Rules { node, file } => rules(&node, file.as_deref()),
        Command::Agent(args) => args.run(),
        Command::Routes { node, server } => match server.server() {
            Ok(server) => routes::run(&server, &node, report),
            Err(failure) => Err(failure.into()),
        },
    };
    match done {
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

/// Reads all of `from`. Returns `None` if the text exceeds the limit.
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
        let vif = ConfigValue::List(vec![rules.section()]);
        output::json(&json!({
            "namespace": name.namespace,
            "pod": name.name,
            "addresses": pod.addresses,
            "rules": ConfigValue::Section(BTreeMap::from([("vif".to_owned(), vif)])),
        }))?;
    }
    Ok(())
}
