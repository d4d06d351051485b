//! A truth table of connections between all pairs of nine pods in three namespaces, at two TCP
//! ports and two UDP ports.

use super::oracle::{ConnectionKind, Endpoint, Labels, Protocol, allows};
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods::{self, Pod};
use crate::kubernetes::traffic::{Echo, answers, connects};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const NAMES: [&str; 3] = ["a", "b", "c"];
const PORTS: [u16; 2] = [80, 81];
/// Timeout for an allowed connection: longer than TCP's first retransmission takes.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1200);

/// A connection: the indices of its two pods, and its kind.
type Connection = (usize, usize, ConnectionKind);

/// The pods of the truth table.
pub(super) struct Table {
    pub(super) pods: Vec<Pod>,
    endpoints: Vec<Endpoint>,
    /// The UDP echo servers of all pods.
    _echoes: Vec<Echo>,
}

impl Table {
    /// Creates the pods and waits until they are ready.
    pub(super) fn new(cluster: &Cluster) -> Result<Self> {
        for (row, namespace) in NAMESPACES.iter().enumerate() {
            super::results::namespace(cluster, namespace)?;
            for (column, name) in NAMES.iter().enumerate() {
                let node = ["n1", "n2"][(row + column) % 2];
                cluster.put("pods", &pods::server(namespace, name, node))?;
            }
        }
        let mut pods = Vec::new();
        for namespace in NAMESPACES {
            pods.extend(cluster.pods(namespace, &NAMES)?);
        }
        let endpoints = pods.iter().map(endpoint).collect::<Result<_>>()?;
        let echoes = pods
            .iter()
            .flat_map(|pod| PORTS.map(|port| Echo::start(&pod.netns, port)));
        Ok(Self {
            _echoes: echoes.collect::<Result<_>>()?,
            pods,
            endpoints,
        })
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.pods.len() * self.targets().count()
    }

    /// Replaces `@NAMESPACE/POD@` by a pod's IPv4 address, and `@NAMESPACE/POD/v6@` by its IPv6
    /// address.
    pub(super) fn with_addresses(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for pod in &self.pods {
            for ip in &pod.ips {
                let family = if ip.is_ipv4() { "" } else { "/v6" };
                let mark = format!("@{}/{}{family}@", pod.namespace, pod.name);
                text = text.replace(&mark, &ip.to_string());
            }
        }
        text
    }

    /// Attempts all connections concurrently. Returns the successful ones.
    pub(super) fn connected(&self) -> Result<BTreeSet<Connection>> {
        let from = |number: usize| {
            self.pods[number].netns.run(|| {
                let made = std::thread::scope(|scope| {
                    let attempts: Vec<_> = self
                        .targets()
                        .map(|(to, kind)| {
                            let ip: IpAddr = self.pods[to].ips[kind.family];
                            let attempt = scope.spawn(move || match kind.protocol {
                                Protocol::Tcp => connects(ip, kind.port, CONNECT_TIMEOUT),
                                Protocol::Udp => answers(ip, kind.port, CONNECT_TIMEOUT),
                            });
                            ((number, to, kind), attempt)
                        })
                        .collect();
                    let made = attempts.into_iter().filter_map(|(which, attempt)| {
                        attempt.join().unwrap_or(false).then_some(which)
                    });
                    made.collect::<Vec<_>>()
                });
                Ok(made)
            })
        };
        std::thread::scope(|scope| {
            let from = &from;
            let rows: Vec<_> = (0..self.pods.len())
                .map(|number| scope.spawn(move || from(number)))
                .collect();
            let mut all = BTreeSet::new();
            for row in rows {
                all.extend(row.join().ok().context("a probe panicked")??);
            }
            Ok(all)
        })
    }

    /// Returns the connections that `policies` allow, according to the evaluation of the objects.
    pub(super) fn allowed(&self, policies: &[Value]) -> BTreeSet<Connection> {
        let mut all = BTreeSet::new();
        for (number, from) in self.endpoints.iter().enumerate() {
            for (to, kind) in self.targets() {
                // A pod reaches itself without the network.
                if number == to || allows(policies, from, &self.endpoints[to], kind) {
                    all.insert((number, to, kind));
                }
            }
        }
        all
    }

    fn targets(&self) -> impl Iterator<Item = (usize, ConnectionKind)> {
        let families = 0..self.pods[0].ips.len();
        let of_family = |family: usize| {
            [Protocol::Tcp, Protocol::Udp]
                .into_iter()
                .flat_map(move |protocol| {
                    PORTS.map(|port| ConnectionKind {
                        family,
                        protocol,
                        port,
                    })
                })
        };
        let ways: Vec<ConnectionKind> = families.flat_map(of_family).collect();
        let of_pod = move |to| ways.clone().into_iter().map(move |kind| (to, kind));
        (0..self.pods.len()).flat_map(of_pod)
    }

    /// Describes a connection as text.
    pub(super) fn describe(&self, (from, to, kind): Connection) -> String {
        let name = |number: usize| {
            let pod = &self.pods[number];
            format!("{}/{}", pod.namespace, pod.name)
        };
        let family = if self.pods[to].ips[kind.family].is_ipv4() {
            "IPv4"
        } else {
            "IPv6"
        };
        let (protocol, port) = (kind.protocol.name(), kind.port);
        format!("{} to {} {protocol} {port} {family}", name(from), name(to))
    }
}

fn endpoint(pod: &Pod) -> Result<Endpoint> {
    let labels = |all: &[(&str, &str)]| -> Labels {
        let all = all.iter();
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let namespace = pod.namespace.as_str();
    Ok(Endpoint {
        namespace: namespace.to_owned(),
        pod: labels(&[("pod", &pod.name)]),
        of_namespace: labels(&[
            ("team", namespace),
            ("kubernetes.io/metadata.name", namespace),
        ]),
        ips: pod.ips.clone(),
        ports: BTreeMap::from([
            ("first".to_owned(), (Protocol::Tcp, 80)),
            ("second".to_owned(), (Protocol::Tcp, 81)),
            ("third".to_owned(), (Protocol::Udp, 80)),
        ]),
    })
}
