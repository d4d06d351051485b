//! The two rings of an interface. Control blocks of native rings lie in the event channel's page,
//! behind its words (NETIF-25).

use super::negotiated::Negotiated;
use crate::ring::{Back, BadPages, CONTROL_BYTES, Front, GrantedRingPages};
use shmem::Span;

/// Words of a request of the ring from the guest (`netif_tx_request`: 12 bytes).
pub const TX_REQUEST: usize = 3;
/// Words of its responses (`netif_tx_response`: 4 bytes).
pub const TX_RESPONSE: usize = 1;
/// Words of a request of the ring to the guest (`netif_rx_request`: 8 bytes).
pub const RX_REQUEST: usize = 2;
/// Words of its responses (`netif_rx_response`: 8 bytes).
pub const RX_RESPONSE: usize = 2;

/// The ring from the guest, at the driver domain's end.
pub type TxBack = Back<GrantedRingPages, TX_REQUEST, TX_RESPONSE>;
/// The ring to the guest, at the driver domain's end.
pub type RxBack = Back<GrantedRingPages, RX_REQUEST, RX_RESPONSE>;
/// The ring from the guest, at the guest's end.
pub type TxFront = Front<GrantedRingPages, TX_REQUEST, TX_RESPONSE>;
/// The ring to the guest, at the guest's end.
pub type RxFront = Front<GrantedRingPages, RX_REQUEST, RX_RESPONSE>;

/// Offset of the first control block in the event channel's page; the second one follows.
const CONTROL: usize = 256;

/// Opens both rings as negotiated. Returns the ring from the guest, then the ring to it.
///
/// # Errors
/// Returns [`BadPages`].
pub fn rings(
    negotiated: &Negotiated,
    tx: &[Span],
    rx: &[Span],
    event_page: Span,
) -> Result<(GrantedRingPages, GrantedRingPages), BadPages> {
    let made = |pages: &[Span], order: u8, number: usize| {
        if pages.len() != 1 << order {
            return Err(BadPages);
        }
        GrantedRingPages::new(negotiated.format, pages, control_block(event_page, number))
    };
    Ok((
        made(tx, negotiated.tx_order, 0)?,
        made(rx, negotiated.rx_order, 1)?,
    ))
}

/// Returns the control block of ring `number`.
#[must_use]
pub fn control_block(event_page: Span, number: usize) -> Span {
    event_page
        .sub(CONTROL + number * CONTROL_BYTES, CONTROL_BYTES)
        .unwrap_or(Span::EMPTY)
}
