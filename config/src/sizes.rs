//! Sizes of the parts of a machine, in pages, slots and table entries. The modules that build and
//! check a machine use them.

use crate::domain::StackApp;
use crate::domain::{self, GrantMode, NicConfig, NicKindConfig, Offloads};
use crate::guest::{Endpoint, GuestSection, Vif};
use crate::model::Config;
use abi::xdp::Ring;

/// The first grant reference that is assigned. Lower ones are reserved, as in Xen.
pub(crate) const RESERVED_GRANTS: u32 = 8;
/// Number of frames for a program's other data.
pub(crate) const SPARE_FRAMES: u32 = 64;
/// Number of pages of buffers in use that one guest may revoke by force. The driver gets time to
/// release some of them before it is killed.
pub(crate) const COLLATERAL_PAGES: u32 = 64;
/// Number of staging pages for copies of one vif: a batch of 64 packets of up to 4 pages in each
/// direction, and their headers.
pub(crate) const STAGING_PAGES: u32 = 576;
/// Number of a NIC's buffers per page.
pub(crate) const BUFFERS_PER_PAGE: u32 = abi::PAGE as u32 / domain::BUFFER_BYTES;
/// Maximum number of a guest's grant references: the range of the index bits of a reference.
pub(crate) const GRANTS_MAX: u32 = 1 << abi::GrantRef::INDEX_BITS;
/// Maximum number of pages that the driver domain exchanges with all guests
/// ([`GrantMode::exchanges_pages`]).
pub(crate) const FLIP_PAGES_MAX: usize = 16_384;

/// Number of pages of a NIC's buffers for linearized aggregates. They are always reserved, because
/// linearizing can be enabled while traffic runs.
const LINEAR_PAGES: u32 = domain::LINEAR_BUFFERS * (domain::LINEAR_BYTES / abi::PAGE as u32);
/// Number of pages in which a worker queues guests' frames to other guests.
pub(crate) const QUEUE_PAGES: u32 = domain::QUEUE_BYTES / abi::PAGE as u32;
/// Returns the number of pages of a worker's tables of flows.
pub(crate) fn flow_pages(config: &Config) -> u32 {
    let driver = &config.driver;
    domain::flow_table_pages(driver.flows).saturating_mul(driver.flow_tables)
}

/// Number of pages for frames from the guest if packets of 64 KB are possible. Half of these pages
/// hold two such packets.
const FROM_GUEST_PAGES_TSO: u32 = 64;

/// Returns a sum, or the maximum if it is larger.
pub(crate) fn sum(parts: impl IntoIterator<Item = u32>) -> u32 {
    parts.into_iter().fold(0, u32::saturating_add)
}

/// Returns the name of a worker of the driver domain.
pub(crate) fn worker_name(worker: u32) -> String {
    match worker {
        0 => "driver".to_owned(),
        _ => format!("driver-{worker}"),
    }
}

/// Returns the number of window slots that the rings of an AF_XDP socket occupy.
pub(crate) const fn rings_slots(entries: u32) -> u32 {
    Ring::ALL.len() as u32 * Ring::slots(entries)
}

/// Returns the number of pages of a NIC's buffers and rings.
pub(crate) fn nic_pages(nic: &NicConfig) -> u32 {
    nic.settings.buffers.div_ceil(BUFFERS_PER_PAGE) + nic.ring_pages() + LINEAR_PAGES
}

/// Returns the number of pages that a NIC's device may access if it runs in a separate domain.
pub(crate) fn device_pages(nic: &NicConfig) -> u32 {
    match nic.kind {
        NicKindConfig::Device { .. } => nic_pages(nic) - LINEAR_PAGES,
        _ => 0,
    }
}

/// Returns the first slot of a device domain's window for grants of guests. It follows the slots of
/// the driver domain's grants and their table.
pub(crate) fn guests_slot(nic: &NicConfig) -> u32 {
    let pages = device_pages(nic);
    pages.saturating_add(abi::counted::table_slots(pages))
}

/// Returns the name of the domain of a NIC's device.
pub(crate) fn device_name(nic: &str) -> String {
    format!("device-{nic}")
}

/// Returns the number of pages of one vif's two rings.
pub(crate) fn ring_pages(config: &Config) -> u32 {
    2 << config.ring_order()
}

/// Returns the number of pages of one vif's pool.
pub(crate) fn pool_pages(config: &Config) -> u32 {
    let buffers = config.buffers;
    let pages = sum([buffers.to_guest, buffers.from_guest]).div_ceil(buffers.size.per_page());
    if config.driver.offloads < Offloads::Tso {
        return pages;
    }
    pages.max(sum([rx_pages(config), FROM_GUEST_PAGES_TSO]))
}

/// Returns the number of pages of one vif's buffers that are granted on demand.
pub(crate) fn spare_pages(config: &Config) -> u32 {
    let buffers = config.buffers;
    buffers.spare.div_ceil(buffers.size.per_page())
}

/// Returns the number of pages of one vif's receive buffers.
pub(crate) fn rx_pages(config: &Config) -> u32 {
    let buffers = config.buffers;
    buffers.to_guest.div_ceil(buffers.size.per_page())
}

/// Returns the number of pages that each end of one queue of a vif exchanges.
pub(crate) fn flip_pages(config: &Config) -> u32 {
    match config.driver.grants.exchanges_pages() {
        true => config.buffers.to_guest,
        false => 0,
    }
}

/// Returns the number of the driver domain's staging pages for copies of one vif.
pub(crate) fn staging_pages(config: &Config) -> u32 {
    match config.driver.grants {
        GrantMode::Copy => STAGING_PAGES,
        _ => 0,
    }
}

/// Returns the number of a guest's queues over all of its interfaces.
pub(crate) fn queues(config: &Config, guest: &GuestSection) -> u32 {
    (guest.vifs.len() as u32).saturating_mul(config.driver.workers.max(1))
}

/// Returns the first frame of the receive pool of a guest's vif number `vif`. It follows the pages
/// of the vifs before it, the vif's rings and its event page. The guest's program verifies it.
pub(crate) fn rx_pool(config: &Config, vif: usize) -> u32 {
    let rx = rx_pages(config);
    let tx = pool_pages(config).saturating_sub(rx).max(2);
    let before = ring_pages(config).saturating_add(1);
    let pages = sum([before, rx, tx, spare_pages(config)]);
    pages.saturating_mul(vif as u32).saturating_add(before)
}

/// Returns the number of pages of a file that the programs behind a vif send in place; 0: no file.
pub(crate) fn file_pages(vif: &Vif) -> u32 {
    let Endpoint::Stack { station } = &vif.endpoint else {
        return 0;
    };
    let kb = |app: &StackApp| match app {
        StackApp::TcpSource { file_kb, .. } => *file_kb,
        _ => None,
    };
    let most = station.apps.iter().filter_map(kb).max().unwrap_or(0);
    most.div_ceil(abi::PAGE as u32 / 1024)
}

/// Returns the number of page frames of a guest.
pub(crate) fn guest_frames(config: &Config, guest: &GuestSection) -> u32 {
    let pages = sum([pool_pages(config), spare_pages(config), ring_pages(config)]);
    let pages = pages.saturating_mul(queues(config, guest));
    let files = sum(guest.vifs.iter().map(file_pages));
    sum([pages, files, SPARE_FRAMES])
}

/// Returns the number of entries of a guest's grant table: two for each page that it may grant, so
/// that it need not reuse a reference immediately.
pub(crate) fn grant_entries(config: &Config, guest: &GuestSection) -> u32 {
    let buffers = sum([pool_pages(config), spare_pages(config)]);
    let pages = sum([buffers, buffers, ring_pages(config)]);
    let files = guest.vifs.iter().filter(|vif| file_pages(vif) > 0).count() as u32;
    let pages = pages.saturating_mul(queues(config, guest));
    let files = files.saturating_mul(domain::FILE_GRANTS);
    let wanted = sum([pages, files, RESERVED_GRANTS]);
    wanted.checked_next_power_of_two().unwrap_or(u32::MAX)
}

/// Returns the number of slots of the driver domain's grant window that follow a guest's `entries`:
/// for the sub-tables of its grants, or for the exchanged pages.
pub(crate) fn table_slots(config: &Config, entries: u32) -> u32 {
    match config.driver.grants.has_tables() {
        true => abi::counted::table_slots(entries),
        false => flip_pages(config),
    }
}
