//! Checksums and segmentation in software.

#[path = "../common/mod.rs"]
mod common;

mod checksums;
mod segments;

use common::Build;
use net::packet::checksum::{fold, pseudo_v4, pseudo_v6};
use net::packet::protocol;
use nic::Checksum;

fn blank(build: &Build, bytes: &mut [u8]) -> Checksum {
    let at = build.transport_at();
    let len = bytes.len() - at;
    let pseudo = if build.v6 {
        pseudo_v6(common::SRC6.into(), common::DST6.into(), protocol::TCP, len)
    } else {
        pseudo_v4(common::SRC4.into(), common::DST4.into(), protocol::TCP, len)
    };
    bytes[at + 16..at + 18].copy_from_slice(&fold(pseudo).to_be_bytes());
    Checksum::Blank {
        start: at as u16,
        offset: 16,
    }
}
