//! Kubernetes network policies as firewall rules of the pods of a node, and its routes to the pods
//! of other nodes.
//!
//! | module | purpose |
//! |---|---|
//! | `api` | pods, namespaces and nodes, decoded from JSON |
//! | `object` | objects of these kinds, and policies |
//! | `policy` | network policies, decoded from JSON |
//! | `selector` | label selectors |
//! | `prefix` | sets of addresses |
//! | `compile` | policies and pods to the rules of one pod |
//! | `rule` | those rules, as the control socket takes them |
//! | `list` | the output of `kubectl get` |
//! | `server` | the API server: address, trust, login, HTTP |
//! | `watch` | follows all objects of a kind |
//! | `view` | the objects of some kinds, kept up to date |
//! | `machine` | sets rules through the control socket |
//! | `agent` | keeps the rules of a node's pods up to date with the policies |
//! | `routes` | keeps a node's routes to the pods of other nodes |

pub mod agent;
pub mod api;
pub mod compile;
pub mod list;
mod machine;
pub mod object;
pub mod policy;
pub mod prefix;
pub mod routes;
pub mod rule;
pub mod selector;
pub mod server;
mod view;
mod watch;
