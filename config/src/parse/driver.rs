//! Reads the driver domain, and the settings that all guest interfaces share.

use crate::deprecated;
use crate::domain::BufferSize;
use crate::lro::{FLUSH_REMEDY, LroConfig};
use crate::model::{DriverSection, VifBuffers, VifRings};
use crate::table::TomlTable;

pub(super) fn read(t: &TomlTable<'_, '_>) -> DriverSection {
    let usual = DriverSection::default();
    DriverSection {
        cpus: t.numbers("cpus"),
        workers: t.number("workers").unwrap_or(usual.workers),
        grants: t
            .renamed_word("grants", &deprecated::GRANTS)
            .unwrap_or(usual.grants),
        offloads: t.word("offloads").unwrap_or(usual.offloads),
        spin_us: t.number("spin_us"),
        broadcast_pps: t.number("broadcast_pps").unwrap_or(usual.broadcast_pps),
        mac_ageing_s: t.number("mac_ageing_s").unwrap_or(usual.mac_ageing_s),
        flows: t.number("flows").unwrap_or(usual.flows),
        flow_tables: t.number("flow_tables").unwrap_or(usual.flow_tables),
        ledger: t.flag("ledger").unwrap_or(usual.ledger),
        restart: t.flag("restart").unwrap_or(usual.restart),
        restart_pause_ms: t
            .number("restart_pause_ms")
            .unwrap_or(usual.restart_pause_ms),
    }
}

pub(super) fn lro(t: &TomlTable<'_, '_>) -> LroConfig {
    let usual = LroConfig::default();
    LroConfig {
        at: t.word("at").unwrap_or(usual.at),
        rules: t.word("rules").unwrap_or(usual.rules),
        psh: t.word("psh").unwrap_or(usual.psh),
        buffers: t.word("buffers").unwrap_or(usual.buffers),
        backend: t.word("backend").unwrap_or(usual.backend),
        meta: t.word("meta").unwrap_or(usual.meta),
        flush: t.parsed_or("flush", FLUSH_REMEDY).unwrap_or(usual.flush),
        flows: t.number("flows").unwrap_or(usual.flows),
        segments: t.number("segments").unwrap_or(usual.segments),
    }
}

/// Reads the buffers, and their size if it is set.
pub(super) fn buffers(t: &TomlTable<'_, '_>) -> (VifBuffers, Option<BufferSize>) {
    let usual = VifBuffers::default();
    let size = t.word("size");
    let buffers = VifBuffers {
        size: size.unwrap_or(usual.size),
        to_guest: t.number("to_guest").unwrap_or(usual.to_guest),
        spare: t.number("spare").unwrap_or(usual.spare),
        release_threshold: t.number("release_threshold"),
        from_guest: t.number("from_guest").unwrap_or(usual.from_guest),
        prefetch: t.number("prefetch").unwrap_or(usual.prefetch),
    };
    (buffers, size)
}

pub(super) fn ring(t: &TomlTable<'_, '_>) -> VifRings {
    let usual = VifRings::default();
    VifRings {
        slots: t.number("slots").unwrap_or(usual.slots),
        format: t.word("format").unwrap_or(usual.format),
    }
}
