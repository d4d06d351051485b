//! Creates interfaces from a configuration.

use super::Interface;
use super::device::EndpointDevice;
use super::from_guest::TxBacklog;
use super::link::NetfrontLink;
use super::memory::{GuestContext, InterfaceMemory, InterfaceSpec};
use super::to_guest::RxPath;
use crate::devices;
use abi::layout::info;
use abi::{ConnId, PAGE, Slot};
use config::domain::{EndpointConfig, GuestConfig, GuestVif, LroConfig, Offloads, RingFormat};
use nic::Nic;
use runtime::call::Calls;
use runtime::frontend::FrontendConnection;
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use shmem::domain_memory::DomainMemory;
use std::cell::RefCell;
use std::rc::Rc;
use vif::netfront::{GrantTable, Layout, Sizes};
use vif::netif::Features;

/// Creates every interface of the guest, one per queue, all unconnected.
///
/// # Errors
/// Returns an error if an endpoint's device was rejected.
pub fn interfaces(
    domain_memory: &DomainMemory,
    platform: &Rc<dyn Platform>,
    calls: &Rc<RefCell<Calls>>,
    config: &GuestConfig,
) -> Result<Vec<Interface>, StartError> {
    let entries = domain_memory.grant_entries as usize * 8;
    let table = domain_memory
        .info
        .at(info::GRANT_TABLE, entries)
        .ok_or(StartError::BadStartInfo("no grant table"))?;
    let common = GuestContext {
        platform: Rc::clone(platform),
        calls: Rc::clone(calls),
        table: Rc::new(RefCell::new(GrantTable::new(table))),
        grant_entries: domain_memory.grant_entries,
        frames: domain_memory.frames,
    };
    // The frames, and the slots of exchanged pages, of each queue follow those of the previous
    // queue.
    let (mut first_frame, mut flip_slot) = (0, 0);
    // In this domain's memory the pages of files follow the pages of all interfaces.
    let pages = |vif: &GuestVif| Layout::new(sizes(vif)).frames() * vif.conns.len() as u32;
    let mut first_of_file: u32 = config.vifs.iter().map(pages).sum();
    let mut all = Vec::new();
    for (number, vif) in config.vifs.iter().enumerate() {
        let layout = Layout::new(sizes(vif));
        if vif
            .rx_pool
            .is_some_and(|pool| pool != first_frame + layout.rx_pool().start)
        {
            return Err(StartError::BadStartInfo(
                "a device does not receive into its interface's pool",
            ));
        }
        let file = file(common.frames, first_of_file, vif.file_pages)?;
        first_of_file += vif.file_pages;
        let memory = file.map(|(memory, _)| memory);
        let endpoints = devices::endpoints(platform, vif, memory)?;
        for (queue, (endpoint, &conn)) in endpoints.into_iter().zip(&vif.conns).enumerate() {
            let name = match vif.conns.len() {
                1 => number.to_string(),
                _ => format!("{number}.{queue}"),
            };
            let cpu_payload = touches_payload(&vif.endpoint);
            let shape = InterfaceSpec {
                first_frame,
                flip_slot: Slot(flip_slot),
                layout,
                features: features(vif, cpu_payload),
                prefetch: vif.buffers.prefetch,
                release_threshold: vif.buffers.release_threshold,
                headroom: vif.buffers.headroom as u16,
                swap: vif.rx_pool.is_none() && cpu_payload,
                mac: vif.mac,
                file,
            };
            let memory = InterfaceMemory::new(common.clone(), shape);
            let connection = FrontendConnection::new(ConnId(conn), Rc::clone(platform));
            // Half of the buffers always stay posted for the driver domain.
            let held_max = vif.buffers.to_guest as usize / 2;
            all.push(interface(
                name,
                connection,
                memory,
                endpoint,
                &config.lro,
                held_max,
            ));
            first_frame += layout.frames();
            flip_slot += layout.sizes().rx_pages;
        }
    }
    Ok(all)
}

/// Returns the memory of a file of `pages` pages and its first frame number, or `None` if it has no
/// pages.
fn file(frames: Area, first: u32, pages: u32) -> Result<Option<(Area, u32)>, StartError> {
    if pages == 0 {
        return Ok(None);
    }
    let memory = frames.part(first as usize * PAGE, pages as usize * PAGE);
    let memory = memory.ok_or(StartError::BadStartInfo(
        "the domain has too few page frames for a file",
    ))?;
    Ok(Some((memory, first)))
}

fn interface(
    name: String,
    connection: FrontendConnection,
    memory: InterfaceMemory,
    endpoint: Box<dyn Nic>,
    lro: &LroConfig,
    held_max: usize,
) -> Interface {
    Interface {
        name,
        connection,
        memory,
        link: NetfrontLink::default(),
        to_guest: RxPath::new(endpoint.caps(), lro, held_max),
        from_guest: TxBacklog::default(),
        device: EndpointDevice::new(endpoint),
        touched: false,
    }
}

/// Returns whether an endpoint writes or reads the payload of its frames. An endpoint that does
/// neither may get buffers that are in another CPU's cache, and such a source fills each buffer
/// only once.
fn touches_payload(endpoint: &EndpointConfig) -> bool {
    match endpoint {
        EndpointConfig::Source(source) => source.touch,
        EndpointConfig::Sink { touch } => *touch,
        _ => true,
    }
}

/// Returns the netfront's sizes from its configuration.
fn sizes(config: &GuestVif) -> Sizes {
    let buffers = &config.buffers;
    let per_page = buffers.size.per_page();
    let rx_pages = buffers.to_guest.div_ceil(per_page);
    let tx_pages = config.pool_pages.saturating_sub(rx_pages).max(2);
    let tso = config.offloads == Offloads::Tso;
    let tx_large_pages = if tso { tx_pages / 2 } else { 0 };
    Sizes {
        tx_order: config.ring_order,
        rx_order: config.ring_order,
        rx_pages,
        rx_spare_pages: buffers.spare.div_ceil(per_page),
        rx_buffer: buffers.size.bytes() as u16,
        tx_small_pages: tx_pages - tx_large_pages,
        tx_large_pages,
    }
}

/// Returns the netfront's maximum features from its configuration.
fn features(config: &GuestVif, cpu_payload: bool) -> Features {
    let offloads = match config.offloads {
        Offloads::None => Features::PLAIN,
        Offloads::Checksum => Features::CHECKSUM,
        Offloads::Tso => Features::ALL,
    };
    let native = config.ring_format == RingFormat::Native;
    let optional = [
        (native, Features::NATIVE_RINGS),
        (cpu_payload, Features::CPU_PAYLOAD),
    ];
    let chosen = optional.into_iter().filter(|(is_chosen, _)| *is_chosen);
    chosen.fold(offloads, |all, (_, feature)| all.with(feature))
}
