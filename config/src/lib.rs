//! Configuration: what people write (TOML), what the monitor builds ([`abi::machine::Machine`]),
//! and what the domains' programs are told ([`domain`]). Pure: no file is read, nothing is asked
//! of the system.

mod address;
pub mod domain;

pub use address::{Cidr, Mac, NotAnAddress};
